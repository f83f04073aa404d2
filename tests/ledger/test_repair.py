"""Repair: damage done behind the ledger's back is found, said, and mended, and a dry run only says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gristmill import Pipeline
from gristmill.ledger import flow
from gristmill.ledger.finish import Verdict
from gristmill.ledger.store import Tx
from gristmill.model import Repair, Run
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, plan, solo, step

Damage = Callable[[Play], None]


def site() -> Pipeline:
    return plan("site", find=step(), page=each("find"), total=step("page"))


def half_done(play: Play, player: Player) -> Run:
    """A run with four pages: one completed, one failed, one in progress, one queued."""
    run = play.mill.start("site", "s")
    play.turn(player, {"find": list("abcd")}, {})
    jobs = play.labelled(player.take(3))
    player.complete(jobs["page/a"])
    player.end(jobs["page/b"], Verdict.PERMANENT)
    return run


def wrong_counters(play: Play) -> None:
    play.change("UPDATE gm_stage SET total = 9, completed = 3, failed = 0, skipped = 2 WHERE name = 'page'")


def a_job_counted_twice(play: Play) -> None:
    play.change("UPDATE gm_stage SET completed = completed + 1 WHERE name = 'page'")


def a_job_not_counted(play: Play) -> None:
    play.change("UPDATE gm_stage SET completed = 0 WHERE name = 'page'")


def a_lost_total(play: Play) -> None:
    play.change("UPDATE gm_stage SET total = 3 WHERE name = 'page'")


def an_orphan(play: Play) -> None:
    play.change("UPDATE gm_worker SET state = 2")


def an_orphan_without_a_worker(play: Play) -> None:
    play.change("DELETE FROM gm_worker")


def out_of_line(play: Play) -> None:
    play.change("UPDATE gm_job SET ready = NULL WHERE state = 0 AND key = 'd'")


def a_stage_that_waits_for_too_many(play: Play) -> None:
    play.change("UPDATE gm_stage SET waiting_for = 2 WHERE name = 'total'")


def a_stage_that_waits_for_too_few(play: Play) -> None:
    play.change("UPDATE gm_stage SET waiting_for = 0 WHERE name = 'total'")


DAMAGES = [
    a_stage_that_waits_for_too_many,
    a_stage_that_waits_for_too_few,
    wrong_counters,
    a_job_counted_twice,
    a_job_not_counted,
    a_lost_total,
    an_orphan,
    an_orphan_without_a_worker,
    out_of_line,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_found_and_mended_and_the_run_ends(opened: Open, damage: Damage) -> None:
    play = opened(site())
    run = half_done(play, play.player())
    damage(play)
    assert invariants.broken(play.ledger)
    assert play.mill.reconcile()
    assert invariants.broken(play.ledger) == {}
    assert play.mill.reconcile() == []
    play.change("UPDATE gm_worker SET lease_until = 0 WHERE state = 0")
    play.mill.reconcile()
    play.drain()
    assert play.run(run).state == "completed_with_errors"
    assert play.counters(run.id, "page") == (4, 3, 1, 0, 0)
    assert Counter(play.ran)["total"] == 1


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_dry_run_says_the_same_and_changes_nothing(opened: Open, damage: Damage) -> None:
    play = opened(site())
    half_done(play, play.player())
    damage(play)
    before = invariants.snapshot(play.ledger)
    would = play.mill.reconcile(dry_run=True)
    assert invariants.snapshot(play.ledger) == before
    assert play.mill.reconcile() == would


def test_what_cannot_be_mended_is_said_once_and_does_not_keep_reconcile_for_ever(opened: Open) -> None:
    play = opened()
    play.mill.enqueue(solo)
    play.player().take_one()
    play.change("UPDATE gm_worker SET state = 2")
    play.change("UPDATE gm_job SET task_id = 1000")  # nobody knows how it is to be tried again
    assert [repair.what for repair in play.mill.reconcile()] == ["release"]
    play.consistent = False


def test_a_sound_ledger_needs_no_repair(opened: Open) -> None:
    play = opened(site())
    half_done(play, play.player())
    before = invariants.snapshot(play.ledger)
    assert play.mill.reconcile() == []
    assert invariants.snapshot(play.ledger) == before


def finished_but_for_the_closing(play: Play) -> Run:
    """Every page ended and was counted, but the stage was left sealed (a process that died between, in another system)."""
    run = half_done(play, play.player())
    play.change("UPDATE gm_job SET state = 2, worker_id = NULL, ready = NULL, finished_at = 1 WHERE key IN ('c', 'd')")
    play.change("UPDATE gm_stage SET completed = 3 WHERE name = 'page'")
    return run


def test_a_stage_that_is_full_but_not_closed_is_closed_and_what_follows_starts(opened: Open) -> None:
    play = opened(site())
    run = finished_but_for_the_closing(play)
    (repair,) = play.mill.reconcile()
    assert (repair.what, repair.target) == ("close", f"run {run.id} stage page")
    assert play.stage_states(run.id) == {"find": "closed", "page": "closed", "total": "sealed"}
    play.drain()
    assert (play.ran, play.run(run).state) == (["find", "total"], "completed_with_errors")


def test_a_stage_that_is_full_only_after_a_recount_is_closed_too(opened: Open) -> None:
    play = opened(site())
    run = finished_but_for_the_closing(play)
    play.change("UPDATE gm_stage SET completed = 1 WHERE name = 'page'")
    found = {repair.what for repair in play.mill.reconcile()}
    assert found == {"recount", "close"}
    assert play.stage_states(run.id)["total"] == "sealed"


def test_a_run_whose_stages_are_all_closed_is_ended(opened: Open) -> None:
    play = opened(plan("one", work=step()))
    run = play.mill.start("one", "s")
    follow_up = play.mill.start("one", "s", if_active="wait")
    play.change("UPDATE gm_job SET state = 2, ready = NULL, finished_at = 1")
    play.change("UPDATE gm_stage SET state = 3, outcome = 2, closed_at = 1, completed = 1 WHERE run_id = :run", run=run.id)
    (repair,) = play.mill.reconcile()
    assert repair.what == "end"
    assert (play.run(run).state, play.run(follow_up).state) == ("completed", "queued")


@pytest.mark.parametrize("waiting_for", [0, 1])
def test_a_stage_that_nobody_started_is_started(opened: Open, waiting_for: int) -> None:
    play = opened(plan("two", first=step(), second=step("first")))
    run = play.mill.start("two", "s")
    player = play.player()
    player.complete(player.take_one())
    play.change("DELETE FROM gm_job WHERE stage_id IN (SELECT id FROM gm_stage WHERE name = 'second')")
    play.change(
        "UPDATE gm_stage SET state = 0, opened_at = NULL, total = 0, waiting_for = :n WHERE name = 'second'", n=waiting_for
    )
    assert [repair.what for repair in play.mill.reconcile()] == (["wait", "start"] if waiting_for else ["start"])
    assert invariants.broken(play.ledger) == {}
    play.drain()
    assert play.run(run).state == "completed"


def test_a_stage_that_nobody_sealed_is_sealed_and_closed(opened: Open) -> None:
    play = opened(site())
    run = finished_but_for_the_closing(play)
    play.change("UPDATE gm_stage SET state = 1 WHERE name = 'page'")
    assert [repair.what for repair in play.mill.reconcile()] == ["start"]
    play.drain()
    assert play.run(run).state == "completed_with_errors"


def test_a_stopped_run_without_a_job_is_ended(opened: Open) -> None:
    play = opened(plan("two", first=step(), second=step("first")))
    run = play.mill.start("two", "s")
    play.change("UPDATE gm_run SET stop = 5")
    play.change("UPDATE gm_job SET state = 5, ready = NULL, finished_at = 1")
    play.change("UPDATE gm_stage SET state = 3, outcome = 5, closed_at = 1, cancelled = 1 WHERE name = 'first'")
    assert [repair.what for repair in play.mill.reconcile()] == ["move on"]
    assert play.run(run).state == "cancelled"


def test_looking_takes_no_lock(opened: Open) -> None:
    """A dry look, and a look that finds nothing, go on while someone else writes."""
    play = opened(site())
    run = half_done(play, play.player())

    def meanwhile(tx: Tx) -> list[Repair]:
        flow.lock_runs(tx, [run.id])
        return play.mill.reconcile()

    assert play.ledger.do(meanwhile) == []


def test_expired_workers_are_rescued_and_named(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player(lease=30)
    player.take()
    play.clock.advance(31)
    (repair,) = play.mill.reconcile()
    assert (repair.what, repair.target) == ("rescue", f"worker {player.id}")
    assert play.mill.job(number).state == "queued"


def test_a_stopped_run_that_nobody_sweeps_is_swept(opened: Open) -> None:
    from gristmill.ledger import stop

    play = opened(site())
    run = play.mill.start("site", "s")
    play.ledger.do(stop.cancel_run, run.id, by="me")
    play.mill.reconcile()
    assert play.run(run).state == "cancelled"


def test_one_subject_can_be_repaired_alone(opened: Open) -> None:
    play = opened(site())
    play.consistent = False
    runs = {subject: play.mill.start("site", subject) for subject in ("s", "t")}
    play.change("UPDATE gm_stage SET total = 5 WHERE name = 'page'")
    (repair,) = play.mill.reconcile(subject="s")
    assert repair.target == f"run {runs['s'].id} stage page"
    assert play.counters(runs["t"].id, "page")[0] == 5


def test_a_run_that_ended_is_left_alone(opened: Open) -> None:
    play = opened(site())
    play.mill.start("site", "s")
    play.drain()
    before = invariants.snapshot(play.ledger)
    assert play.mill.reconcile() == []
    assert invariants.snapshot(play.ledger) == before
