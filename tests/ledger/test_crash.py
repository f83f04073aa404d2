"""Crash points: a process is killed after every statement of a verb, before its COMMIT, and after it.

Before the COMMIT nothing may have changed, after it everything; and then the work can be done, each stage once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest

from gristmill import Limit
from gristmill.ledger import again, bulk, chores, remove, workers
from gristmill.ledger.choose import Choice
from gristmill.ledger.chores import Selection
from gristmill.ledger.emit import Item
from gristmill.ledger.finish import Verdict
from gristmill.schedule import Schedule
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.crash import AFTER_COMMIT, Crasher, Order
from tests.ledger.play import Play, each, end, plain, plan, solo, step, stubborn

pytestmark = pytest.mark.slow  # of ./run chaos

ITEMS = {"find": ["a", "b", "c"]}


class Scene(NamedTuple):
    """A ledger at a moment, the verb whose process dies, and how the run ends once all is done."""

    verb: str
    arguments: dict[str, Any]
    ends: str = "completed"


def fanned_out(play: Play) -> tuple[int, Any]:
    """A run with three pages, and the worker that found them."""
    run = play.mill.start("site", "s")
    player = play.player()
    play.turn(player, ITEMS, {})
    return run.id, player


def the_end_of_the_last_item(play: Play) -> Scene:
    _, player = fanned_out(play)
    *others, last = player.take()
    player.complete(*others)
    return Scene("finish", {"worker": player.id, "outcomes": [end(last)]})


def the_plain_completion_of_a_whole_stage(play: Play) -> Scene:
    _, player = fanned_out(play)
    completed = plain(*player.take())
    return Scene("complete", {"worker": player.id, "rows": completed.rows, "origins": completed.origins})


def the_end_of_a_stage_that_needs_more(play: Play) -> Scene:
    _, player = fanned_out(play)
    outcomes = [end(job, Verdict.PERMANENT, reason="no") for job in player.take()]
    return Scene("finish", {"worker": player.id, "outcomes": outcomes}, "failed")


def the_end_of_a_run_with_a_follow_up(play: Play) -> Scene:
    play.mill.start("one", "s")
    play.mill.start("one", "s", if_active="wait")
    player = play.player()
    return Scene("finish", {"worker": player.id, "outcomes": [end(player.take_one())]})


def an_end_run(play: Play) -> Scene:
    _, player = fanned_out(play)
    outcomes = [end(player.take_one(), Verdict.END_RUN, reason="enough")]
    return Scene("finish", {"worker": player.id, "outcomes": outcomes})


def a_retry(play: Play) -> Scene:
    play.mill.enqueue(stubborn)
    player = play.player()
    return Scene("finish", {"worker": player.id, "outcomes": [end(player.take_one(), Verdict.ERROR, reason="no")]})


def a_success_that_is_remembered(play: Play) -> Scene:
    _, player = fanned_out(play)
    return Scene("finish", {"worker": player.id, "outcomes": [end(job, digest="abc") for job in player.take()]})


def an_end_of_a_jobs_own(play: Play) -> Scene:
    _, player = fanned_out(play)
    *others, last = player.take()
    player.complete(*others)
    return Scene("own", {"worker": player.id, "outcome": end(last, digest="abc")})


def a_forgetting(play: Play) -> Scene:
    _, player = fanned_out(play)
    for job in player.take():
        player.end(job, digest="abc")
    return Scene("forget", {"pipeline": "site", "subject": "s"})


def a_subject_with_labels(play: Play) -> Scene:
    return Scene("set_subject", {"labels": {"tier": "gold", "county": "west"}})


def a_start(play: Play) -> Scene:
    stages = play.mill._plan(play.mill.registry.pipeline("site"))
    return Scene("start", {"pipeline": "site", "subject": "s", "stages": stages})


def a_start_that_waits(play: Play) -> Scene:
    play.mill.start("site", "s")
    return a_start(play)


def a_start_of_many(play: Play) -> Scene:
    found = [play.mill.set_subject("site", name).id for name in ("a", "b")]
    return Scene("start_idle", {"subjects": found, "stages": play.mill._plan(play.mill.registry.pipeline("site"))})


def items(play: Play) -> Scene:
    play.mill.start("site", "s")
    player = play.player()
    return Scene("emit", {"worker": player.id, "emissions": [player.batch_of(player.take_one(), "x", "y")]})


def a_workers_whole_turn(play: Play) -> Scene:
    play.mill.start("site", "s")
    player = play.player()
    find = player.take_one()
    queue = play.queue_ids()["default"]
    emissions = [player.batch_of(find, *(f"{n:02}" for n in range(25)))]
    return Scene("exchange", {"worker": player.id, "emissions": emissions, "outcomes": [end(find)], "queue": queue})


def a_claim(play: Play) -> Scene:
    play.mill.enqueue_many(solo, [{}] * 3)
    return Scene("claim", {"worker": play.player().id, "queue": play.queue_ids()["default"]})


def a_cancel_of_a_run(play: Play) -> Scene:
    run, player = fanned_out(play)
    player.take(1)
    return Scene("cancel_run", {"run": run}, "cancelled")


def a_sweep(play: Play) -> Scene:
    from gristmill.ledger import stop

    run, _ = fanned_out(play)
    play.ledger.do(stop.cancel_run, run, by="me")
    page = play.value("SELECT id FROM gm_stage WHERE name = 'page'")
    return Scene("sweep", {"run": run, "stage": page}, "cancelled")


def a_cancel_of_the_last_item(play: Play) -> Scene:
    _, player = fanned_out(play)
    player.complete(*player.take(2))
    return Scene("cancel_job", {"job": play.mill.jobs(state="queued")[0].id}, "completed_with_errors")


def a_requeue(play: Play) -> Scene:
    _, player = fanned_out(play)
    job = player.take_one()
    player.end(job, Verdict.PERMANENT)
    return Scene("requeue_job", {"job": job.id})


def choose(play: Play, run: int, **which: Any) -> again.Chosen:
    with play.ledger.reading() as tx:
        return again.choose(tx, run, Selection(), **which)


def a_retry_of_an_ended_run(play: Play) -> Scene:
    run, player = fanned_out(play)
    play.drain(player, verdicts={"page/b": Verdict.PERMANENT})
    return Scene("retry_run", {"chosen": choose(play, run, stage="page")})


def a_retry_of_a_run_under_way(play: Play) -> Scene:
    """With what depends on it in a worker's hands, who is told that it is not theirs any more."""
    run, player = fanned_out(play)
    play.turn(player, {}, {})
    player.take_one()
    return Scene("retry_run", {"chosen": choose(play, run, stage="page")})


def the_second_batch_of_a_retry(play: Play) -> Scene:
    run, player = fanned_out(play)
    play.drain(player)
    with mock.patch.object(chores, "requeue", partial(chores.requeue, most=1)):
        play.ledger.do(again.retry, choose(play, run, stage="page"), by="me")
    return Scene("carry_on", {"run": run})


def items_that_are_no_longer_emitted(play: Play) -> Scene:
    run, player = fanned_out(play)
    play.drain(player)
    play.ledger.do(again.retry, choose(play, run, stage="find"), by="me")
    find = player.take_one()
    player.emit(find, "b")
    return Scene("finish", {"worker": player.id, "outcomes": [end(find)]})


def an_item_that_is_emitted_with_other_arguments(play: Play) -> Scene:
    run, player = fanned_out(play)
    play.turn(player, {}, {})
    play.ledger.do(again.retry, choose(play, run, stage="find"), by="me")
    emission = player.batch_of(player.take_one(), Item("a", '{"n":1}'), "b", "c")
    return Scene("emit", {"worker": player.id, "emissions": [emission]})


def a_rescue(play: Play) -> Scene:
    _, player = fanned_out(play)
    player.take(2)
    return Scene("rescue", {"worker": player.id})


def a_rescue_that_is_written_down(play: Play) -> Scene:
    _, player = fanned_out(play)
    player.take(2)
    return Scene("recover", {"worker": player.id})


def a_lost_workers_return(play: Play) -> Scene:
    _, player = fanned_out(play)
    player.take(2)
    play.ledger.do(workers.rescue, player.id, gone=True)
    return Scene("come_back", {"worker": player.id})


def a_leave(play: Play) -> Scene:
    _, player = fanned_out(play)
    player.take(2)
    return Scene("leave", {"worker": player.id})


def an_adoption(play: Play) -> Scene:
    run = play.mill.start("chain", "s")
    play.turn(play.player(), ITEMS, {})
    rows = [[row.id, 0, run.id, "7"] for row in play.rows("SELECT id FROM gm_job WHERE state = 0")]
    return Scene("adopt", {"rows": rows, "item": ["", None, "word"]})


def a_repair_once_too_often(play: Play) -> Scene:
    run, _ = fanned_out(play)
    play.change("UPDATE gm_stage SET waiting_for = 2 WHERE name = 'total'")
    subject = play.value("SELECT subject_id FROM gm_run")
    for at in (3, 4):
        play.change(f"INSERT INTO gm_recovery VALUES ({subject}, {at}, 'repair', {run}, 1, '[]')")
    return Scene("repair_run", {"run": run}, "failed")


def a_repair_of_a_lost_job(play: Play) -> Scene:
    run = play.mill.start("one", "s")
    play.change("DELETE FROM gm_job")
    return Scene("repair_run", {"run": run.id})


def the_begin_of_a_run_that_waits_behind_nothing(play: Play) -> Scene:
    play.mill.start("one", "s")
    run = play.mill.start("one", "s", if_active="wait")
    for sql in ("DELETE FROM gm_job", "DELETE FROM gm_stage WHERE run_id < :run", "DELETE FROM gm_run WHERE id < :run"):
        play.change(sql, run=run.id) if ":run" in sql else play.change(sql)
    return Scene("repair_stranded", {"run": run.id})


def waiting_item(play: Play, *keys: str) -> tuple[int, Any, Any]:
    """A run with an item that waits for parts, and the worker that split it."""
    run, player = fanned_out(play)
    *others, item = player.take()
    player.complete(*others)
    player.split(item, *keys)
    return run, player, item


def parts_handed_over(play: Play) -> Scene:
    _, player = fanned_out(play)
    item = player.take_one()
    player.hand_over(item, "a", args="1")
    player.end(item, Verdict.RELEASED)
    again = next(job for job in player.take() if job.id == item.id)
    rows = [("a", "2"), ("b", "1")]
    given = {"worker": player.id, "job": again.id, "attempt": again.attempt, "kind": player.part_kind(), "rows": rows}
    return Scene("hand_over", given)


def a_wait_for_parts(play: Play) -> Scene:
    _, player = fanned_out(play)
    item = player.take_one()
    player.hand_over(item, "a", "b")
    return Scene("finish", {"worker": player.id, "outcomes": [end(item, Verdict.WAITING)]})


def the_end_of_the_last_part(play: Play) -> Scene:
    _, player, _ = waiting_item(play, "a", "b")
    one, last = player.take()
    player.complete(one)
    return Scene("finish", {"worker": player.id, "outcomes": [end(last)]})


def the_plain_completion_of_all_parts(play: Play) -> Scene:
    _, player, _ = waiting_item(play, "a", "b")
    completed = plain(*player.take())
    return Scene("complete", {"worker": player.id, "rows": completed.rows, "origins": completed.origins})


def the_last_part_of_an_item_that_is_cancelled(play: Play) -> Scene:
    _, player, item = waiting_item(play, "a", "b")
    part = player.take_one()
    play.mill.cancel_job(item.id)
    return Scene("finish", {"worker": player.id, "outcomes": [end(part, Verdict.CANCELLED)]}, "completed_with_errors")


def a_sweep_of_parts(play: Play) -> Scene:
    from gristmill.ledger import stop

    _, _, item = waiting_item(play, "a", "b")
    play.ledger.do(stop.cancel_job, item.id, by="me")
    return Scene("sweep_parts", {"job": item.id}, "completed_with_errors")


def a_cancel_of_an_item_that_waits(play: Play) -> Scene:
    _, _, item = waiting_item(play, "a", "b")
    return Scene("cancel_job", {"job": item.id}, "completed_with_errors")


def a_requeue_of_an_item_with_its_parts(play: Play) -> Scene:
    _, player = fanned_out(play)
    item = player.take_one()
    player.split(item, "a")
    part = next(job for job in player.take() if job.part_of)
    player.end(part, Verdict.PERMANENT)
    player.end(player.take_one(), Verdict.PERMANENT)
    return Scene("requeue_job", {"job": item.id})


def an_action_on_many(play: Play) -> Scene:
    fanned_out(play)
    return Scene("begin_bulk", {"verb": "job.cancel"})


def _order(play: Play, verb: str, ends: str = "completed") -> Scene:
    """A batch of an action that was begun."""
    order = play.ledger.do(bulk.begin, verb, Choice(before=play.clock.at), by="me")
    with play.ledger.reading() as tx:
        ids = bulk.portion(tx, bulk.order(tx, order)).ids
    assert ids
    return Scene("bulk", {"order": order, "ids": ids}, ends)


def a_batch_that_cancels(play: Play) -> Scene:
    fanned_out(play)
    play.player().take(1)
    return _order(play, "job.cancel", "failed")  # the one in hand is told to stop, and its worker dies


def a_batch_that_runs_now(play: Play) -> Scene:
    play.mill.enqueue(solo, delay=60)
    return _order(play, "job.run_now")


def a_batch_that_archives(play: Play) -> Scene:
    fanned_out(play)
    play.drain()
    return _order(play, "job.archive")


def a_batch_that_deletes(play: Play) -> Scene:
    play.mill.enqueue_many(solo, [{}] * 3)
    play.drain()
    return _order(play, "job.delete")


def a_batch_that_cancels_runs(play: Play) -> Scene:
    fanned_out(play)
    play.mill.start("site", "s", if_active="wait")
    return _order(play, "run.cancel", "cancelled")


def a_batch_that_deletes_runs(play: Play) -> Scene:
    fanned_out(play)
    play.drain()
    return _order(play, "run.delete")


def a_purge_of_a_subject(play: Play) -> Scene:
    fanned_out(play)
    play.mill.start("site", "s", if_active="wait")
    return Scene("purge_subject", {}, "cancelled")


def an_edit(play: Play) -> Scene:
    return Scene("edit_job", {"job": play.mill.enqueue(solo).id})


def the_end_of_a_removal(play: Play) -> Scene:
    run, _ = fanned_out(play)
    play.drain()
    page = play.value("SELECT id FROM gm_stage WHERE name = 'page'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remove, "BATCH", 2)  # so that it is not all done at once
        play.ledger.do(remove.remove_run, run)
    return Scene("remove_jobs", {"stage": page})


def a_run_that_is_not_kept(play: Play) -> Scene:
    run, _ = fanned_out(play)
    play.drain()
    play.mill.start("site", "s")
    play.drain()
    return Scene("prune_run", {"run": run})


def jobs_that_are_not_kept(play: Play) -> Scene:
    jobs = play.mill.enqueue_many(solo, [{}] * 3)
    play.drain()
    return Scene("prune_jobs", {"jobs": jobs})


def _due(play: Play, verb: str, what: str, **options: Any) -> Scene:
    """A schedule whose time has come, twice: what was missed is recorded too."""
    schedule = Schedule("timed", cron="* * * * *", **options)
    play.mill.add_schedule(schedule)
    play.clock.advance(120)
    number = play.value("SELECT id FROM gm_schedule")
    starts: Any = play.mill._prepare(schedule)
    if schedule.stalest is not None:
        starts = starts._replace(plan=play.mill._plan(play.mill.registry.pipeline("one")))
    return Scene(verb, {"number": number, "spec": schedule.spec, what: starts})


def a_fire_time_of_a_job(play: Play) -> Scene:
    return _due(play, "fire_job", "job", task="solo")


def a_fire_time_of_a_run(play: Play) -> Scene:
    return _due(play, "fire_run", "run", pipeline="site", subject="s")


def a_fire_time_of_the_stalest(play: Play) -> Scene:
    for name in "abc":
        play.mill.set_subject("one", name)
    return _due(play, "fire_stalest", "wanted", pipeline="one", batch=2)


def something_done_once(play: Play) -> Scene:
    task, queue, pool = play.mill._how(play.mill._task(solo), None, None, None)
    return Scene("once", {"job": [task, queue, pool, 1, "{}"]})


def crawled(play: Play) -> tuple[Any, list[Any]]:
    """A run with five pages of which two may be fetched at once, and the worker that has these."""
    play.mill.start("crawl", "s")
    player = play.player()
    play.turn(player, {"find": list("abcde")}, {})
    return player, player.take()


def a_turn_within_limits(play: Play) -> Scene:
    player, pages = crawled(play)
    assert len(pages) == 2
    queue = play.queue_ids()["default"]
    outcomes = [end(pages[0]), end(pages[1], Verdict.LATER, delay=5.0)]
    return Scene("exchange", {"worker": player.id, "emissions": [], "outcomes": outcomes, "queue": queue})


def jobs_that_go_on_within_limits(play: Play) -> Scene:
    crawled(play)
    limit = play.value("SELECT max(limit_id) FROM gm_job")
    play.change("UPDATE gm_job SET ready = NULL, run_at = 4611686018427387904, state = 0, worker_id = NULL WHERE state = 1")
    return Scene("promote", {"limits_": [limit]})


def a_limit_that_is_lowered(play: Play) -> Scene:
    play.mill.start("crawl", "s")
    play.turn(play.player(), {"find": list("abcde")}, {})
    return Scene("set_limit", {"name": "page", "numbers": {"at_once": 1}})


def a_queue_that_is_limited(play: Play) -> Scene:
    crawled(play)
    return Scene("limit_queue", {"numbers": {"at_once": 1}})


SCENES = [
    a_fire_time_of_a_job,
    a_fire_time_of_a_run,
    a_fire_time_of_the_stalest,
    a_start_of_many,
    something_done_once,
    an_adoption,
    a_repair_once_too_often,
    a_repair_of_a_lost_job,
    the_begin_of_a_run_that_waits_behind_nothing,
    the_end_of_the_last_item,
    the_plain_completion_of_a_whole_stage,
    the_end_of_a_stage_that_needs_more,
    the_end_of_a_run_with_a_follow_up,
    an_end_run,
    a_retry,
    a_success_that_is_remembered,
    an_end_of_a_jobs_own,
    a_forgetting,
    a_subject_with_labels,
    a_start,
    a_start_that_waits,
    items,
    a_workers_whole_turn,
    a_claim,
    a_cancel_of_a_run,
    a_sweep,
    a_cancel_of_the_last_item,
    a_requeue,
    a_retry_of_an_ended_run,
    a_retry_of_a_run_under_way,
    the_second_batch_of_a_retry,
    items_that_are_no_longer_emitted,
    an_item_that_is_emitted_with_other_arguments,
    a_rescue,
    a_rescue_that_is_written_down,
    a_lost_workers_return,
    a_leave,
    parts_handed_over,
    a_wait_for_parts,
    the_end_of_the_last_part,
    the_plain_completion_of_all_parts,
    the_last_part_of_an_item_that_is_cancelled,
    a_sweep_of_parts,
    a_cancel_of_an_item_that_waits,
    a_requeue_of_an_item_with_its_parts,
    an_action_on_many,
    a_batch_that_cancels,
    a_batch_that_runs_now,
    a_batch_that_archives,
    a_batch_that_deletes,
    a_batch_that_cancels_runs,
    a_batch_that_deletes_runs,
    a_purge_of_a_subject,
    an_edit,
    the_end_of_a_removal,
    a_run_that_is_not_kept,
    jobs_that_are_not_kept,
    a_turn_within_limits,
    jobs_that_go_on_within_limits,
    a_limit_that_is_lowered,
    a_queue_that_is_limited,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_verb_that_dies_changes_all_or_nothing(
    opened: Open, crasher: Crasher, scene: Callable[[Play], Scene], record_property: Callable[[str, object], None]
) -> None:
    chain = plan("chain", find=step(), page=each("find"), word=each("page"))
    crawl = plan("crawl", find=step(), page=each("find", limit=Limit("page", at_once=2)))
    site = plan("site", find=step(), page=each("find"), total=step("page"))
    play = opened(chain, crawl, plan("one", work=step()), site)
    verb, arguments, ends = scene(play)

    def die(at: int) -> str:
        return crasher(Order(play.url, play.clock.at, verb, arguments, at))

    before = invariants.snapshot(play.ledger)
    at = 1
    while die(at) == "statement":
        assert invariants.snapshot(play.ledger) == before
        at += 1
    assert at > 2
    assert invariants.snapshot(play.ledger) == before  # it died just before its COMMIT
    assert die(AFTER_COMMIT) == "done"
    record_property("crash points", at + 1)  # of which `./run chaos R5` says the sum
    assert invariants.snapshot(play.ledger) != before
    invariants.check(play.ledger)
    all_else(play)
    assert {run.state for run in play.mill.runs()} <= {ends, "completed"}
    assert all(job.state != "failed" for job in play.mill.jobs() if ends != "failed")


def all_else(play: Play) -> None:
    """Others find the dead workers, and do all that is left."""
    for worker in play.mill.workers():
        play.ledger.do(workers.rescue, worker.id, gone=True)
    play.drain_later()
    assert play.unfinished() == 0
    assert play.value("SELECT count(*) FROM gm_run WHERE finished_at IS NULL") == 0
    fired = play.rows("SELECT count(*) AS jobs FROM gm_job WHERE key = '' AND stage_id IS NOT NULL GROUP BY stage_id")
    assert all(row.jobs == 1 for row in fired)
