"""Every meeting of two verbs on PostgreSQL: one stops after each of its statements, the other goes as far as it can.

On SQLite a transaction that writes is alone, so there is nothing to interleave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import pytest

from gristmill import Retries
from gristmill.clock import FrozenClock
from gristmill.errors import NotYours, Refused
from gristmill.ledger import adopt, queues, repair, start, stop, workers
from gristmill.ledger.claim import Lane, Want, claim
from gristmill.ledger.emit import Emission, Item, emit
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.finish import Verdict, finish
from gristmill.ledger.start import IfActive
from tests.ledger import invariants
from tests.ledger.conftest import EMPTY, empty
from tests.ledger.hooks import hooked
from tests.ledger.play import Play, Player, each, end, plan, solo, step

pytestmark = pytest.mark.slow  # of ./run chaos

EMPTY_BUT_NAMES = ";".join(line for line in EMPTY.split(";") if "gm_queue" not in line and "gm_task" not in line)
_LOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Call(NamedTuple):
    """A verb and its arguments."""

    verb: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


def call(verb: Callable[..., Any], *args: Any, **options: Any) -> Call:
    return Call(verb, args, options)


class Meeting(NamedTuple):
    """Two calls that meet, and what must be true after both, whichever was first."""

    one: Call
    other: Call
    check: Callable[[], None] = lambda: None


Scenario = Callable[[Play, str], Meeting]


# ---- scenarios: each sets up its own subject, so that one database serves them all


def two_branches_of_a_join(play: Play, subject: str) -> Meeting:
    run = play.mill.start("join", subject)
    left, right = play.player(), play.player()
    one, two = left.take_one(), right.take_one()

    def check() -> None:
        assert play.counters(run.id, "total")[0] == 1

    return Meeting(call(finish, left.id, [end(one)]), call(finish, right.id, [end(two)]), check)


def the_end_and_a_start_that_waits(play: Play, subject: str) -> Meeting:
    play.mill.start("one", subject)
    player = play.player()
    job = player.take_one()
    planned = play.mill._plan(play.mill.registry.pipeline("one"))

    def check() -> None:
        assert [run.state for run in play.mill.runs(subject=subject)] == ["queued", "completed"]

    waits = call(start.start, "one", subject, "{}", 1, planned, IfActive.WAIT)
    return Meeting(call(finish, player.id, [end(job)]), waits, check)


def two_starts(play: Play, subject: str) -> Meeting:
    planned = play.mill._plan(play.mill.registry.pipeline("join"))
    starts = call(start.start, "join", subject, "{}", 1, planned, IfActive.WAIT)

    def check() -> None:
        assert [run.state for run in play.mill.runs(subject=subject)] == ["waiting", "queued"]

    return Meeting(starts, starts, check)


def a_retry_and_a_cancel(play: Play, subject: str) -> Meeting:
    number = play.mill.enqueue(solo, retries=Retries(5, delays=[0])).id
    player = play.player()
    job = player.take_one()

    def check() -> None:
        assert play.mill.job(number).state == "cancelled"

    return Meeting(call(finish, player.id, [end(job, Verdict.ERROR)]), call(stop.cancel_job, number, by="me"), check)


def the_end_and_a_cancel_of_the_run(play: Play, subject: str) -> Meeting:
    run = play.mill.start("join", subject)
    player = play.player()
    jobs = player.take()

    def check() -> None:
        play.drain(player)
        assert play.run(run).state in {"completed", "cancelled"}

    return Meeting(call(finish, player.id, [end(job) for job in jobs]), call(stop.cancel_run, run.id, by="me"), check)


def items_and_a_cancel_of_the_run(play: Play, subject: str) -> Meeting:
    run = play.mill.start("site", subject)
    player = play.player()
    find = player.take_one()

    def check() -> None:
        play.sweep()
        player.end(find, Verdict.CANCELLED)
        assert play.run(run).state == "cancelled"

    emits = call(emit, player.id, [player.batch_of(find, "a", "b")])
    return Meeting(emits, call(stop.cancel_run, run.id, by="me"), check)


def a_workers_turn_and_a_cancel_of_the_run(play: Play, subject: str) -> Meeting:
    run = play.mill.start("site", subject)
    player = play.player()
    find = player.take_one()
    batch = Batch(emissions=[player.batch_of(find, "a", "b")], outcomes=[end(find)])
    want = Want(0, 9, (Lane(play.queue_ids()["default"], 0),))

    def check() -> None:
        play.ledger.do(workers.leave, player.id)
        play.drain()
        assert play.run(run).state == "cancelled"

    return Meeting(call(exchange, player.id, batch, [want], {0: 9}), call(stop.cancel_run, run.id, by="me"), check)


def a_claim_and_a_cancel(play: Play, subject: str) -> Meeting:
    number = play.mill.enqueue(solo).id
    player = play.player()

    def check() -> None:
        job = play.mill.job(number)
        with play.ledger.reading() as tx:
            asked = workers.asked_to_stop(tx, player.id, [number])
        assert (job.state, asked) in [("cancelled", []), ("in_progress", [number])]

    return Meeting(claims(play, player), call(stop.cancel_job, number, by="me"), check)


def claims(play: Play, player: Player) -> Call:
    return call(claim, player.id, [Want(0, 9, (Lane(play.queue_ids()["default"], 0),))], {0: 9})


def a_claim_and_a_rescue(play: Play, subject: str) -> Meeting:
    number = play.mill.enqueue(solo).id
    player = play.player()

    def check() -> None:
        play.ledger.do(workers.rescue, player.id, gone=True)  # the first one may have met it in the middle
        assert play.mill.job(number).state == "queued"

    return Meeting(claims(play, player), call(workers.rescue, player.id, gone=True), check)


def the_end_and_a_rescue(play: Play, subject: str) -> Meeting:
    run = play.mill.start("one", subject)
    player = play.player()
    job = player.take_one()

    def check() -> None:
        play.drain()
        assert play.run(run).state == "completed"

    return Meeting(call(finish, player.id, [end(job)]), call(workers.rescue, player.id, gone=True), check)


def a_return_and_a_rescue(play: Play, subject: str) -> Meeting:
    job = play.mill.enqueue(solo).id
    player = play.player(lease=30)
    player.take()
    play.clock.advance(31)

    def check() -> None:
        seen = play.mill.job(job)
        assert (seen.state, seen.losses) == ("queued", 0)  # whoever was first

    return Meeting(call(workers.come_back, player.id, []), call(workers.rescue, player.id), check)


def a_return_and_the_end_by_another(play: Play, subject: str) -> Meeting:
    """Whose rows are the same, in another order."""
    run = play.mill.start("site", subject)
    play.turn(play.player(), {"find": ["a", "b", "c"]}, {})
    player, other = play.player(), play.player()
    player.take()
    play.ledger.do(workers.rescue, player.id, gone=True)
    taken = other.take()

    def check() -> None:
        play.drain()
        assert play.run(run).state == "completed"

    return Meeting(call(workers.come_back, player.id, []), call(finish, other.id, [end(job) for job in taken[::-1]]), check)


def a_heartbeat_and_a_rescue(play: Play, subject: str) -> Meeting:
    player = play.player(lease=30)
    play.clock.advance(31)

    def check() -> None:
        state = play.value("SELECT state FROM gm_worker WHERE id = :id", id=player.id)
        lease = play.value("SELECT lease_until FROM gm_worker WHERE id = :id", id=player.id)
        assert state == 2 or lease > play.clock.at

    return Meeting(call(workers.heartbeat, player.id, 30_000_000), call(workers.rescue, player.id), check)


def a_sweep_and_the_end_of_the_last_running_job(play: Play, subject: str) -> Meeting:
    run = play.mill.start("site", subject)
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    job = player.take_one()
    play.ledger.do(stop.cancel_run, run.id, by="me")
    page = play.value("SELECT id FROM gm_stage WHERE name = 'page' AND run_id = :run", run=run.id)

    def check() -> None:
        assert play.run(run).state == "cancelled"

    return Meeting(call(stop.sweep, run.id, page), call(finish, player.id, [end(job, Verdict.CANCELLED)]), check)


def a_promotion_and_a_cancel(play: Play, subject: str) -> Meeting:
    number = play.mill.enqueue(solo, delay=1).id
    play.clock.advance(1)

    def check() -> None:
        assert play.mill.job(number).state == "cancelled"

    return Meeting(call(queues.promote), call(stop.cancel_job, number, by="me"), check)


def a_requeue_and_the_end_of_the_last_other_item(play: Play, subject: str) -> Meeting:
    run = play.mill.start("site", subject)
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    failed, other = player.take()
    player.end(failed, Verdict.PERMANENT)

    def check() -> None:
        play.drain(player)
        assert play.run(run).state in {"completed", "completed_with_errors"}

    return Meeting(call(stop.requeue_job, failed.id, by="me"), call(finish, player.id, [end(other)]), check)


def two_requeues(play: Play, subject: str) -> Meeting:
    run = play.mill.start("site", subject)
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    failed, _ = player.take()
    player.end(failed, Verdict.PERMANENT)

    def check() -> None:
        assert play.counters(run.id, "page") == (2, 0, 0, 0, 0)

    return Meeting(call(stop.requeue_job, failed.id, by="me"), call(stop.requeue_job, failed.id, by="me"), check)


def a_repair_and_the_end(play: Play, subject: str) -> Meeting:
    run = play.mill.start("join", subject)
    player = play.player()
    one, two = player.take()
    player.complete(one)

    def check() -> None:
        play.drain(player)
        assert play.run(run).state == "completed"

    return Meeting(call(repair.repair_run, run.id, True), call(finish, player.id, [end(two)]), check)


def a_repair_of_orphans_and_a_rescue(play: Play, subject: str) -> Meeting:
    number = play.mill.enqueue(solo).id
    player = play.player()
    player.take()

    def check() -> None:
        job = play.mill.job(number)
        assert (job.state, job.losses) == ("queued", 1)

    return Meeting(call(repair.repair_orphans, True), call(workers.rescue, player.id, gone=True), check)


def a_run_that_waits_behind_nothing_and_a_start(play: Play, subject: str) -> Meeting:
    first = play.mill.start("site", subject)
    second = play.mill.start("site", subject, if_active="wait")
    for table, column in (("gm_job", "run_id"), ("gm_stage", "run_id"), ("gm_run", "id")):
        play.change(f"DELETE FROM {table} WHERE {column} = :run", run=first.id)

    def check() -> None:
        active = play.rows("SELECT id FROM gm_run WHERE subject_id = (SELECT id FROM gm_subject WHERE name = :s)"
                           " AND state IN (0, 1)", s=subject)  # fmt: skip
        assert len(active) == 1
        play.drain()
        assert {run.state for run in play.mill.runs(subject=subject)} == {"completed"}

    planned = play.mill._plan(play.mill.registry.pipeline("site"))
    begin = call(start.start, "site", subject, "{}", 1, planned, IfActive.JOIN)
    return Meeting(call(repair.repair_stranded, second.id, True), begin, check)


def adoptable(play: Play, subject: str) -> tuple[int, Player, list[adopt.Adoption]]:
    run = play.mill.start("site", subject)
    player = play.player()
    play.turn(player, {"find": ["a", "b"]}, {})
    rows = play.rows("SELECT id FROM gm_job WHERE run_id = :run AND state = 0 ORDER BY id", run=run.id)
    return run.id, player, [adopt.Adoption(row.id, 0, run.id, "7") for row in rows]


def an_adoption_and_a_claim(play: Play, subject: str) -> Meeting:
    run, player, found = adoptable(play, subject)

    def check() -> None:
        done = play.mill.run(run).stage("page").completed
        assert done in (0, 1, 2)
        assert play.value("SELECT count(*) FROM gm_attempt WHERE outcome = 'adopted' AND job_id IN"
                          " (SELECT id FROM gm_job WHERE run_id = :run)", run=run) == done  # fmt: skip
        play.ledger.do(workers.rescue, player.id, True)
        play.drain()
        assert play.mill.run(run).state == "completed"

    take = call(claim, player.id, [Want(0, 1, (Lane(play.queue_ids()["default"], 0),))], {0: 1})
    return Meeting(call(adopt.adopt, found, by="me", target="x"), take, check)


def an_adoption_and_a_cancel(play: Play, subject: str) -> Meeting:
    run, _, found = adoptable(play, subject)

    def check() -> None:
        play.sweep()
        play.drain()
        assert play.mill.run(run).terminal

    return Meeting(call(adopt.adopt, found, by="me", target="x"), call(stop.cancel_run, run, by="me"), check)


def two_adoptions(play: Play, subject: str) -> Meeting:
    run, _, found = adoptable(play, subject)

    def check() -> None:
        assert play.counters(run, "page") == (2, 2, 0, 0, 0)

    again = call(adopt.adopt, found, by="me", target="x")
    return Meeting(again, again, check)


def two_unique_jobs(play: Play, subject: str) -> Meeting:
    twin = start.NewJob(*play.mill._how(solo, None, None, None), 1, "{}", unique_key=subject, unique_scope=0)

    def check() -> None:
        assert play.value("SELECT count(*) FROM gm_job WHERE unique_key = :key", key=subject) == 1

    return Meeting(call(start.enqueue, twin), call(start.enqueue, twin), check)


def a_unique_job_and_the_end_of_its_twin(play: Play, subject: str) -> Meeting:
    twin = start.NewJob(*play.mill._how(solo, None, None, None), 1, "{}", unique_key=subject, unique_scope=0)
    play.ledger.do(start.enqueue, twin)
    player = play.player()
    job = player.take_one()

    def check() -> None:
        assert play.mill.job(job.id).state == "completed"

    return Meeting(call(finish, player.id, [end(job)]), call(start.enqueue, twin), check)


def a_requeue_and_a_new_twin(play: Play, subject: str) -> Meeting:
    twin = start.NewJob(*play.mill._how(solo, None, None, None), 1, "{}", unique_key=subject, unique_scope=0)
    old, *_ = play.ledger.do(start.enqueue, twin)
    player = play.player()
    player.end(player.take_one(), Verdict.PERMANENT)

    def check() -> None:
        assert play.value("SELECT count(*) FROM gm_job WHERE unique_name = :key AND state = 0", key=subject) == 1

    return Meeting(call(stop.requeue_job, old, by="me"), call(start.enqueue, twin), check)


def wide(play: Play, subject: str) -> tuple[int, Player]:
    """A run of low priority with two queued items, one of them delayed; the worker still holds their producer."""
    run = play.mill.start("site", subject, priority="low")
    player = play.player()
    find = player.take_one()
    player.emit(find, "a", "b")
    other = play.player()
    other.finish(*[end(job, Verdict.LATER, delay=60) for job in other.take(1)])
    play.clock.advance(60)
    return run.id, player


def all_high(play: Play, run: int) -> Callable[[], None]:
    def check() -> None:
        assert [row.priority for row in play.rows("SELECT priority FROM gm_job WHERE run_id = :run AND state = 0", run=run)]
        assert play.value("SELECT max(priority) FROM gm_job WHERE run_id = :run AND state = 0", run=run) == 0

    return check


def joining(play: Play, subject: str, priority: int) -> Call:
    """Joins, and raises what is queued, as one caller does (in two transactions; here in one, which is harder)."""
    planned = play.mill._plan(play.mill.registry.pipeline("site"))

    def join(tx: Any) -> None:
        started = start.start(tx, "site", subject, "{}", priority, planned, IfActive.JOIN)
        start.raise_jobs(tx, started.run_id)

    return call(join)


def two_raises(play: Play, subject: str) -> Meeting:
    """The weaker one must not hide jobs from the stronger one, whose raise came in the meantime."""
    run, _ = wide(play, subject)
    play.ledger.do(start.start, "site", subject, "{}", 1, (), IfActive.JOIN)
    return Meeting(call(start.raise_jobs, run), joining(play, subject, 0), all_high(play, run))


def a_raise_and_a_promotion(play: Play, subject: str) -> Meeting:
    run, _ = wide(play, subject)
    play.ledger.do(start.start, "site", subject, "{}", 0, (), IfActive.JOIN)
    return Meeting(call(start.raise_jobs, run), call(queues.promote), all_high(play, run))


def a_join_and_new_items(play: Play, subject: str) -> Meeting:
    run, player = wide(play, subject)
    [held] = play.rows("SELECT id, attempt FROM gm_job WHERE worker_id = :worker", worker=player.id)
    batch = Batch(emissions=[Emission(held.id, held.attempt, run, 2, [Item("c", None)])])
    return Meeting(joining(play, subject, 0), call(exchange, player.id, batch), all_high(play, run))


def a_raise_and_a_job_that_is_given_back(play: Play, subject: str) -> Meeting:
    run, _ = wide(play, subject)
    other = play.player()
    back = [end(job, Verdict.RELEASED) for job in other.take()]
    return Meeting(joining(play, subject, 0), call(finish, other.id, back), all_high(play, run))


SCENARIOS: list[Scenario] = [
    two_raises,
    a_raise_and_a_promotion,
    a_join_and_new_items,
    a_raise_and_a_job_that_is_given_back,
    two_branches_of_a_join,
    the_end_and_a_start_that_waits,
    two_starts,
    a_retry_and_a_cancel,
    the_end_and_a_cancel_of_the_run,
    items_and_a_cancel_of_the_run,
    a_workers_turn_and_a_cancel_of_the_run,
    a_claim_and_a_cancel,
    a_claim_and_a_rescue,
    the_end_and_a_rescue,
    a_return_and_a_rescue,
    a_return_and_the_end_by_another,
    a_heartbeat_and_a_rescue,
    a_sweep_and_the_end_of_the_last_running_job,
    a_promotion_and_a_cancel,
    a_requeue_and_the_end_of_the_last_other_item,
    two_requeues,
    a_requeue_and_a_new_twin,
    a_repair_and_the_end,
    a_run_that_waits_behind_nothing_and_a_start,
    an_adoption_and_a_claim,
    an_adoption_and_a_cancel,
    two_adoptions,
    a_repair_of_orphans_and_a_rescue,
    two_unique_jobs,
    a_unique_job_and_the_end_of_its_twin,
]


# ---- letting them meet


@pytest.fixture
def play(pg_url: str, clock: FrozenClock) -> Iterator[Play]:
    pipelines = [
        plan("one", work=step()),
        plan("join", left=step(), right=step(), total=step("left", "right")),
        plan("site", find=step(), page=each("find"), total=step("page")),
    ]
    play = Play(pg_url, pipelines, clock)
    play.mill.cancel_job(play.mill.enqueue(solo).id)  # so that queue and task are there
    yield play
    play.close()


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_whatever_meets_it_ends_well(play: Play, scenario: Scenario, turned: bool) -> None:
    stopped, at = True, 0
    while stopped:  # until the verb has no such statement: then all places were tried
        at += 1
        meeting = scenario(play, f"s{at}")
        first, second = (meeting.other, meeting.one) if turned else (meeting.one, meeting.other)
        stopped = meet(play, first, second, at)
        invariants.check(play.ledger)
        meeting.check()
        empty(play.ledger, EMPTY_BUT_NAMES)


def meet(play: Play, first: Call, second: Call, at: int) -> bool:
    """`first` up to its statement `at`, `second` until it ends or waits for a lock, the rest. Was there such a statement?"""
    there, go_on = Event(), Event()

    def after(statement: int) -> None:
        if statement == at:
            there.set()
            assert go_on.wait(30)

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(do, play, first._replace(verb=hooked(first.verb, after)))
        one.add_done_callback(lambda _: there.set())
        there.wait(30)
        stopped = not one.done()
        other = pool.submit(do, play, second)
        ended_or_blocked(play, other)
        go_on.set()
        one.result(30)
        other.result(30)
    return stopped


def do(play: Play, call: Call) -> None:
    """Being told that it is too late is a good answer; any other error is not."""
    with contextlib.suppress(Refused, NotYours):
        play.ledger.do(call.verb, *call.args, **call.options)


def ended_or_blocked(play: Play, future: Future[None]) -> None:
    ended = Event()
    future.add_done_callback(lambda _: ended.set())
    while not ended.wait(0.001) and not play.value(_LOCKED):
        pass
