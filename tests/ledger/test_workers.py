"""Workers: the lease is theirs, a lost one is lost for ever, and its jobs come back."""

from __future__ import annotations

import os
from functools import partial

import pytest

from gristmill import housekeeping
from gristmill.clock import FrozenClock
from gristmill.errors import NotYours
from gristmill.housekeeping import Housekeeping
from gristmill.identity import born, host
from gristmill.ledger import stop, workers
from gristmill.ledger.duties import DUTIES
from gristmill.ledger.finish import Verdict
from gristmill.ledger.sql import Sql
from gristmill.ledger.workers import Registration
from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, Player, each, plan, solo, step, stubborn


def expired(play: Play) -> list[int]:
    with play.ledger.reading() as tx:
        return workers.expired(tx)


def test_a_worker_is_known_by_what_it_said_of_itself(play: Play) -> None:
    who = Registration("mill-1", 77, "ns:1.00", ["a", "b"], 4, "0.1")
    number = play.ledger.do(workers.register, who, 30_000_000)
    (worker,) = play.mill.workers()
    assert (worker.id, worker.host, worker.pid, worker.queues) == (number, "mill-1", 77, ("a", "b"))
    assert (worker.slots, worker.version, worker.state, worker.holding) == (4, "0.1", "active", 0)


def test_every_registration_is_a_new_worker(play: Play) -> None:
    assert play.player().id != play.player().id


def test_a_worker_is_expired_once_its_lease_is_over(play: Play, clock: FrozenClock) -> None:
    player = play.player(lease=30)
    clock.advance(30)
    assert expired(play) == []
    clock.advance(0.000_001)
    assert expired(play) == [player.id]
    player.heartbeat(30)
    assert expired(play) == []


def test_a_rescue_takes_the_jobs_of_an_expired_worker_back(play: Play, clock: FrozenClock) -> None:
    numbers = play.mill.enqueue_many(solo, [{}] * 3)
    player = play.player(lease=30)
    player.take()
    clock.advance(31)
    assert play.ledger.do(workers.rescue, player.id) == 3
    jobs = [play.mill.job(number) for number in numbers]
    assert {(job.state, job.losses, job.attempt, job.worker) for job in jobs} == {("queued", 1, 1, None)}
    assert [worker.state for worker in play.mill.workers(every=True)] == ["lost"]
    assert sorted(job.id for job in play.player().take()) == numbers


def test_a_rescue_keeps_the_lost_attempt(play: Play, clock: FrozenClock) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player(lease=30)
    player.take()
    clock.advance(31)
    play.ledger.do(workers.rescue, player.id)
    (attempt,) = play.mill.attempts(number)
    assert (attempt.attempt, attempt.outcome, attempt.error_class, attempt.worker) == (1, "lost", "worker_lost", player.id)


def test_a_job_that_was_lost_too_often_fails(play: Play, clock: FrozenClock) -> None:
    number = play.mill.enqueue(stubborn).id  # one loss allowed
    for state in ("queued", "failed"):
        player = play.player(lease=30)
        player.take()
        clock.advance(31)
        play.ledger.do(workers.rescue, player.id)
        assert play.mill.job(number).state == state
    assert play.mill.job(number).error_class == "worker_lost"


def test_a_rescue_that_fails_the_last_item_moves_the_run_on(opened: Open, clock: FrozenClock) -> None:
    from gristmill import Retries

    play = opened(plan("site", find=step(), page=each("find", retries=Retries(0, losses=0)), total=step("page")))
    run = play.mill.start("site", "s")
    player = play.player(lease=30)
    play.turn(player, {"find": ["a", "b"]}, {})
    one, _ = player.take()
    player.complete(one)
    clock.advance(31)
    play.ledger.do(workers.rescue, player.id)
    assert play.counters(run.id, "page") == (2, 1, 1, 0, 0)
    play.drain()
    assert (play.ran, play.run(run).state) == (["find", "total"], "completed_with_errors")


def test_a_worker_that_is_back_in_time_is_not_rescued(play: Play, clock: FrozenClock) -> None:
    play.mill.enqueue(solo)
    player = play.player(lease=30)
    player.take()
    clock.advance(31)
    player.heartbeat(30)
    before = invariants.snapshot(play.ledger)
    assert play.ledger.do(workers.rescue, player.id) is None
    assert invariants.snapshot(play.ledger) == before


def test_a_second_rescue_finds_nothing(play: Play, clock: FrozenClock) -> None:
    play.mill.enqueue(solo)
    player = play.player(lease=30)
    player.take()
    clock.advance(31)
    assert [play.ledger.do(workers.rescue, player.id) for _ in range(2)] == [1, None]


def test_a_worker_whose_process_is_gone_is_rescued_without_waiting(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    player = play.player(lease=30)
    player.take()
    assert play.ledger.do(workers.rescue, player.id, gone=True) == 1
    assert play.mill.job(number).state == "queued"


def test_a_rescue_leaves_jobs_that_ended_or_went_on_to_others(play: Play, clock: FrozenClock) -> None:
    ended, released, held = play.mill.enqueue_many(solo, [{}] * 3)
    player, other = play.player(lease=30), play.player(lease=300)
    jobs = {job.id: job for job in player.take()}
    player.complete(jobs[ended])
    player.end(jobs[released], Verdict.RELEASED)
    assert other.take_one().id == released
    clock.advance(31)
    assert play.ledger.do(workers.rescue, player.id) == 1
    assert [play.mill.job(n).state for n in (ended, released, held)] == ["completed", "in_progress", "queued"]
    assert play.mill.job(released).worker == other.id


def test_rescue_counts_an_attempt_but_never_lowers_it(play: Play, clock: FrozenClock) -> None:
    number = play.mill.enqueue(solo).id
    for attempt in (1, 2, 3):
        player = play.player(lease=30)
        assert player.take_one().attempt == attempt
        clock.advance(31)
        play.ledger.do(workers.rescue, player.id)
        assert play.mill.job(number).attempt == attempt


# ---- strays


def test_strays_are_given_back_unspent(play: Play) -> None:
    """A claim whose COMMIT got no answer: the rows are in the worker's name, but not in its hands."""
    kept, stray = play.mill.enqueue_many(solo, [{}] * 2)
    player = play.player()
    player.take()
    assert play.ledger.do(workers.release_strays_of, player.id, held={kept}) == 1
    job = play.mill.job(stray)
    assert (job.state, job.losses, job.attempt) == ("queued", 0, 1)
    assert play.mill.job(kept).state == "in_progress"
    assert player.take_one().attempt == 2


def test_a_worker_without_strays_gives_nothing_back(play: Play) -> None:
    play.mill.enqueue_many(solo, [{}] * 2)
    player = play.player()
    held = {job.id for job in player.take()}
    assert play.ledger.do(workers.release_strays_of, player.id, held=held) == 0


def test_strays_of_a_lost_worker_are_not_its_any_more(play: Play, clock: FrozenClock) -> None:
    player = play.player(lease=30)
    clock.advance(31)
    play.ledger.do(workers.rescue, player.id)
    with pytest.raises(NotYours):
        play.ledger.do(workers.release_strays_of, player.id, held=set())


def test_leaving_gives_everything_back_unspent(play: Play) -> None:
    numbers = play.mill.enqueue_many(solo, [{}] * 3)
    player = play.player()
    player.take()
    play.ledger.do(workers.leave, player.id)
    assert {(play.mill.job(n).state, play.mill.job(n).losses) for n in numbers} == {("queued", 0)}
    assert [worker.state for worker in play.mill.workers(every=True)] == ["stopped"]
    assert play.mill.workers() == []
    with pytest.raises(NotYours):
        play.ledger.do(workers.leave, player.id)


def test_a_worker_that_left_does_not_expire(play: Play, clock: FrozenClock) -> None:
    player = play.player(lease=30)
    play.ledger.do(workers.leave, player.id)
    clock.advance(31)
    assert expired(play) == []


# ---- housekeeping: what every worker does for all


def test_one_worker_tidies_for_all_and_when_it_goes_the_next_one_does(play: Play, clock: FrozenClock) -> None:
    first, second = (play.player(lease=10**8) for _ in range(2))
    houses = {player: Housekeeping(play.ledger) for player in (first, second)}

    def left_by(player: Player) -> int:
        """Of ten events that are old by now, when this worker has kept house; the newest always stays."""
        for n in range(10):
            play.mill.event(f"a.e{n}")
        play.mill.events(None)  # so that they have their places
        clock.advance(10**6)
        houses[player].tick(clock.at / 10**6, player.id, set, [])
        return sum(event.name.startswith("a.") for event in play.mill.events(None).events)

    assert left_by(second) == 10
    assert left_by(first) == 1
    play.ledger.do(workers.leave, first.id)
    assert left_by(second) <= 1


def test_one_tick_promotes_rescues_and_sweeps(opened: Open, clock: FrozenClock) -> None:
    play = opened(plan("one", work=step()))
    due = play.mill.enqueue(solo, delay=5)
    run = play.mill.start("one", "s")
    play.ledger.do(stop.cancel_run, run.id, by="me")
    lost = play.mill.enqueue(solo)
    play.player(lease=30).take(queues=["default"])
    clock.advance(31)
    seen = Housekeeping(play.ledger).tick(0.0, play.player().id, set, [])
    assert (seen.next_due, seen.to_cancel) == (None, [])
    assert [play.mill.job(job.id).state for job in (due, lost)] == ["queued", "queued"]
    assert play.mill.job(due.id).run_at is None
    assert play.run(run).state == "cancelled"


def test_a_run_with_many_items_is_swept_in_several_ticks(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million would keep a worker from its heartbeat: it goes on where it was, tick by tick."""
    play = opened(plan("site", find=step(), page=each("find"), total=step("page")))
    run = play.mill.start("site", "s")
    play.turn(play.player(), {"find": [f"p{n:03}" for n in range(20)]}, {})
    play.ledger.do(stop.cancel_run, run.id, by="me")
    monkeypatch.setattr(housekeeping, "_AT_MOST", 0.0)
    sweep = partial(stop.sweep, most=5)
    sweep.__dict__["repeatable"] = getattr(stop.sweep, "repeatable", False)
    monkeypatch.setattr(stop, "sweep", sweep)
    house, player = Housekeeping(play.ledger), play.player()
    left = []
    while play.run(run).state != "cancelled":
        house.tick(0.0, player.id, set, [])
        left.append(play.unfinished())
    assert len(left) >= 4
    assert left == sorted(left, reverse=True)


def test_a_tick_rescues_a_neighbour_whose_process_is_gone(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    ghost = Registration(host(), os.getpid(), f"{(born(os.getpid()) or '').rpartition(':')[0]}:1.00", [], 1, "test")
    player = play.player()
    player.id = play.ledger.do(workers.register, ghost, 3_600_000_000)
    player.take()
    Housekeeping(play.ledger).tick(0.0, play.player().id, set, [])
    assert play.mill.job(number).state == "queued"


def test_what_every_worker_asks_each_second_reads_no_whole_table_of_jobs(opened: Open) -> None:
    """PostgreSQL read all jobs for those that end with their parts, until it had counted how few these are."""
    play = opened(plan("one", work=step()))
    play.mill.enqueue_many(solo, [{}] * 5000)
    word = "EXPLAIN QUERY PLAN" if play.ledger.is_sqlite else "EXPLAIN"
    explained = Sql(f"{word} {DUTIES.text}")
    told = [str(row) for row in play.ledger.glance(lambda tx: list(tx.tuples(explained, known=0, quiet=0)))]
    assert any("gm_job_ending" in line or "gm_job_open_parts" in line for line in told), told
    assert not [line for line in told if "Seq Scan on gm_job" in line or "SCAN gm_job'" in line], told


def test_each_of_several_neighbours_that_are_gone_is_rescued_by_those_that_are_there(play: Play) -> None:
    """In a ring: nobody looks at all of them, but at the next until two are there."""
    here, birth = (born(os.getpid()) or "").rpartition(":")[0], born(os.getpid()) or ""
    births = [birth, f"{here}:1.00", f"{here}:2.00", birth, birth, f"{here}:3.00", "elsewhere:1.00"]
    said = [Registration(host(), os.getpid(), birth, [], 1, "test") for birth in births]
    numbers = [play.ledger.do(workers.register, each, 3_600_000_000) for each in said]
    Housekeeping(play.ledger).tick(0.0, numbers[0], set, [])
    lost = "SELECT id FROM gm_worker WHERE state = 2 ORDER BY id"
    assert [row.id for row in play.rows(lost)] == numbers[1:3]  # another one is behind two that are there
    Housekeeping(play.ledger).tick(0.0, numbers[4], set, [])
    assert [row.id for row in play.rows(lost)] == [*numbers[1:3], numbers[5]]


def test_a_tick_leaves_a_neighbour_whose_process_is_there(play: Play) -> None:
    number = play.mill.enqueue(solo).id
    me = Registration(host(), os.getpid(), born(os.getpid()) or "", [], 1, "test")
    player = play.player()
    player.id = play.ledger.do(workers.register, me, 3_600_000_000)
    player.take()
    Housekeeping(play.ledger).tick(0.0, play.player().id, set, [])
    assert play.mill.job(number).state == "in_progress"
