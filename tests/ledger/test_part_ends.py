"""A job never ends before its parts; operators and the reconciler act on both."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.errors import Refused
from gristmill.ledger import adopt, workers
from gristmill.ledger.claim import Claimed
from gristmill.ledger.finish import Verdict
from tests.ledger.conftest import Open
from tests.ledger.play import Play, plan, solo
from tests.ledger.test_constraints import refused
from tests.ledger.test_parts import SITE, counts, in_run, parent, states, waits

# ---- a job never ends before its parts


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.COMPLETED, "completed"),
        (Verdict.WITH_ERRORS, "completed_with_errors"),
        (Verdict.SKIPPED, "skipped"),
        (Verdict.PERMANENT, "failed"),
        (Verdict.CANCELLED, "cancelled"),
    ],
)
def test_a_job_whose_end_is_decided_ends_with_its_last_part(opened: Open, verdict: Verdict, state: str) -> None:
    play = opened(plan("site", **SITE))
    player = play.player()
    run = play.mill.start("site", "s").id
    play.turn(player, {"find": ["doc"]}, {})
    item = player.take_one()
    player.hand_over(item, "a", "b")
    running = player.take_one()
    player.end(item, verdict, reason="so", result=None)
    found = play.mill.job(item.id)
    assert (found.state, found.ends_as, found.fingerprint) == ("queued", state, None)
    assert play.sweep() == 1
    assert states(play, item) == {"a": "in_progress", "b": "cancelled"}
    with play.ledger.reading() as tx:
        assert workers.asked_to_stop(tx, player.id, [running.id]) == [running.id]
    player.complete(running)
    assert play.mill.job(item.id).state == state
    assert sum(play.counters(run, "page")[1:]) == 1
    play.drain(player)
    assert play.mill.run(run).terminal


def test_a_plain_completion_with_parts_left_waits_for_them_too(play: Play) -> None:
    player = play.player()
    play.mill.enqueue(solo)
    job = player.take_one()
    player.hand_over(job, "a")
    assert player.complete(job, result="1") == []
    assert play.mill.job(job.id).ends_as == "completed"
    play.sweep()
    assert (play.mill.job(job.id).state, play.mill.job(job.id).result) == ("completed", 1)
    assert states(play, job) == {"a": "cancelled"}


def test_a_job_that_waits_is_cancelled_with_its_parts(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b")
    running = player.take_one()
    assert play.mill.cancel_job(job.id, reason="no use").ends_as == "cancelled"
    assert states(play, job) == {"a": "in_progress", "b": "cancelled"}
    with pytest.raises(Refused, match="will be cancelled already, once 1 parts"):
        play.mill.cancel_job(job.id)
    with pytest.raises(Refused):
        play.mill.retry_job(play.mill.jobs(part_of=job.id, state="cancelled")[0].id)
    player.end(running, Verdict.CANCELLED)
    found = play.mill.job(job.id)
    assert (found.state, found.error, found.ends_as) == ("cancelled", "no use", None)


def test_a_job_all_of_whose_parts_are_queued_is_cancelled_at_once(play: Play) -> None:
    job = parent(play, play.player(), "a", "b")
    assert play.mill.cancel_job(job.id).state == "cancelled"
    assert set(states(play, job).values()) == {"cancelled"}


def test_the_last_part_that_is_cancelled_calls_its_job(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a")
    play.mill.cancel_job(play.mill.jobs(part_of=job.id)[0].id)
    assert counts(play, job) == (1, 0, 1)
    assert player.take_one().id == job.id


@pytest.mark.parametrize("running", [0, 1, 2])
def test_a_stopped_run_ends_after_its_parts(opened: Open, running: int) -> None:
    play = opened(plan("site", **SITE))
    player = play.player()
    run, item = in_run(play, player, "a", "b")
    held = player.take(running)
    play.mill.cancel_run(run)
    assert play.mill.run(run).terminal == (not running)
    for part in held:
        player.end(part, Verdict.CANCELLED)
    assert play.mill.run(run).state == "cancelled"
    assert set(states(play, item).values()) == {"cancelled"}


def test_a_run_that_is_stopped_takes_no_more_parts(opened: Open) -> None:
    play = opened(plan("site", **SITE))
    player = play.player()
    run = play.mill.start("site", "s").id
    play.turn(player, {"find": ["doc"]}, {})
    item = player.take_one()
    player.hand_over(item, "a")
    play.mill.cancel_run(run)
    with pytest.raises(Refused, match="being stopped"):
        player.hand_over(item, "b")
    player.end(item, Verdict.WAITING)
    play.sweep()
    assert play.mill.run(run).state == "cancelled"


def test_end_run_from_a_job_with_parts_left_stops_them(opened: Open) -> None:
    play = opened(plan("site", **SITE))
    player = play.player()
    run = play.mill.start("site", "s").id
    play.turn(player, {"find": ["doc"]}, {})
    item = player.take_one()
    player.hand_over(item, "a")
    player.end(item, Verdict.END_RUN, reason="enough")
    play.drain(player)
    assert (play.mill.run(run).state, play.mill.job(item.id).state) == ("completed", "completed")


# ---- by operators


def test_a_failed_job_is_retried_with_its_failed_parts_only(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "good", "bad", "gone")
    by_key = {part.key: part for part in player.take(2)}
    player.complete(by_key["good"], result='"G"')
    player.end(by_key["bad"], Verdict.PERMANENT, reason="no")
    play.mill.cancel_job(play.mill.jobs(part_of=job.id, state="queued")[0].id)
    player.end(player.take_one(), Verdict.PERMANENT, reason="too few")
    play.mill.retry_job(job.id)
    assert states(play, job) == {"good": "completed", "bad": "queued", "gone": "queued"}
    assert counts(play, job) == (3, 2, 0)
    again = next(found for found in player.take() if found.id == job.id)
    player.split(again, "good", "bad", "gone")
    assert waits(play, job)


def test_a_part_is_retried_while_its_job_has_not_ended(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b")
    part = player.take_one()
    player.end(part, Verdict.PERMANENT, reason="no")
    play.mill.retry_job(part.id)
    assert counts(play, job) == (2, 2, 0)
    play.drain(player)
    assert play.mill.job(job.id).state == "completed"
    with pytest.raises(Refused):
        play.mill.retry_job(part.id)


def test_a_failed_part_of_an_ended_job_says_what_to_retry(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a")
    part = player.take_one()
    player.end(part, Verdict.PERMANENT, reason="no")
    player.complete(player.take_one())
    with pytest.raises(Refused, match=f"a part of job {job.id}, which has ended; retry that one"):
        play.mill.retry_job(part.id)


def test_parts_have_the_priority_of_their_run_and_follow_it(opened: Open) -> None:
    play = opened(plan("site", **SITE))
    player = play.player()
    _, item = in_run(play, player, "a", "b")
    play.mill.start("site", "s", priority="high")
    assert {part.priority for part in play.mill.jobs(part_of=item.id)} == {"high"}


def test_a_paused_queue_holds_parts_back(play: Play) -> None:
    player = play.player()
    parent(play, player, "a")
    play.mill.pause("default")
    assert player.take() == []
    play.mill.resume("default")
    assert [part.key for part in player.take()] == ["a"]


# ---- reconcile


def damaged(play: Play, job: Claimed, **columns: Any) -> None:
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    play.change(f"UPDATE gm_job SET {changes} WHERE id = :id", id=job.id, **columns)


def repairs(play: Play) -> list[tuple[str, str]]:
    found = play.mill.reconcile(dry_run=True)
    assert play.mill.reconcile() == found
    assert play.mill.reconcile() == []
    return [(repair.what, repair.target) for repair in found]


def test_a_job_whose_parts_have_all_ended_but_that_waits_still_is_called(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b")
    player.complete(*player.take())
    damaged(play, job, ready=None, parts_left=1)
    assert repairs(play) == [("recount", f"job {job.id}")]
    assert player.take_one().id == job.id


def test_the_same_with_right_counters(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a")
    player.complete(player.take_one())
    damaged(play, job, ready=None)
    assert repairs(play) == [("line up", f"job {job.id}")]
    assert player.take_one().id == job.id


def test_a_job_that_counts_fewer_parts_than_are_left_is_recounted(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b")
    damaged(play, job, parts_left=0, ready=1)
    assert repairs(play) == [("recount", f"job {job.id}")]
    assert counts(play, job) == (2, 2, 0)


def test_a_part_that_ends_where_no_part_should_be_left_hurts_nobody(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b")
    damaged(play, job, parts=2, parts_left=0, ready=1)
    player.complete(*[part for part in player.take() if part.part_of])
    play.consistent = False
    assert set(states(play, job).values()) == {"completed"}


def test_a_job_that_should_have_ended_with_its_last_part_ends(opened: Open) -> None:
    play = opened(plan("site", **SITE))
    player = play.player()
    run, item = in_run(play, player, "a")
    part = player.take_one()
    play.mill.cancel_job(item.id)
    player.end(part, Verdict.CANCELLED)
    assert play.mill.job(item.id).state == "cancelled"
    play.drain(player)
    assert play.mill.run(run).terminal


def test_parts_that_were_left_behind_end(play: Play) -> None:
    player = play.player()
    job = parent(play, player, "a", "b")
    running = player.take_one()
    damaged(play, job, state=2, parts_left=0, finished_at=1)
    assert {what for what, _ in repairs(play)} == {"end"}
    assert states(play, job) == {"a": "in_progress", "b": "cancelled"}
    player.end(running, Verdict.CANCELLED)
    play.consistent = False
    assert play.unfinished() == 0


# ---- what the database itself refuses

BREAKS = {
    "more parts left than there are": "UPDATE gm_job SET parts_left = 3 WHERE parts = 2",
    "more failed and left than there are": "UPDATE gm_job SET parts_failed = 2 WHERE parts = 2",
    "fewer than none left": "UPDATE gm_job SET parts_left = -1 WHERE parts = 2",
    "an ended job with parts left": "UPDATE gm_job SET state = 2, finished_at = 1 WHERE parts = 2",
    "a job in the line whose end is decided": "UPDATE gm_job SET ends_as = 4, ready = 1 WHERE parts = 2",
    "a job whose end is decided, but that has no parts": "UPDATE gm_job SET ends_as = 4 WHERE key = 'a' AND state = 0",
    "a running job whose end is decided": "UPDATE gm_job SET ends_as = 4 WHERE state = 1",
    "two parts of one key": "UPDATE gm_job SET key = 'a' WHERE key = 'b'",
}


def test_the_database_refuses_parts_that_make_no_sense(play: Play) -> None:
    player = play.player()
    play.mill.enqueue(solo)
    parent(play, player, "a", "b")
    player.take_one()
    assert [what for what, sql in BREAKS.items() if not refused(play, sql)] == []


def test_an_item_that_was_retried_with_its_parts_is_not_adopted(opened: Open) -> None:
    """Its output may be there, but its parts are under way, and what they find is not."""
    play = opened(plan("site", **SITE))
    player = play.player()
    run, item = in_run(play, player, "a", "b")
    for part in player.take():
        player.end(part, Verdict.PERMANENT)
    player.end(player.take_one(), Verdict.PERMANENT)
    play.drain(player)
    play.retry(run)
    found = play.mill.job(item.id)
    assert (found.state, play.value("SELECT parts_left FROM gm_job WHERE id = :id", id=item.id)) == ("queued", 2)
    with play.ledger.reading() as tx:
        assert adopt.candidates(tx, play.value("SELECT id FROM gm_stage WHERE name = 'page'"), None) == []
    assert play.ledger.do(adopt.adopt, [adopt.Adoption(item.id, found.attempt, run, "7")], by="me", target="x") == []
    play.drain(player)
    assert play.mill.run(run).state == "completed"
