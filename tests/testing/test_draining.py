"""A mill drained inside the test's process does what a worker would have done, on both databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from gristmill import Context, Invalid, Mill, task
from gristmill.testing import FrozenClock, assert_enqueued, drain, refute_enqueued
from tests.ledger import invariants
from tests.testing.press import double, greet, outcome, patient, press, stream, tired

Open = Callable[..., Mill]


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def opened(database_url: str, clock: FrozenClock) -> Iterator[Open]:
    mills: list[Mill] = []

    def open_(*parts: Any) -> Mill:
        mills.append(Mill.open(database_url, *parts, clock=clock))
        return mills[-1]

    yield open_
    for mill in mills:
        invariants.check(mill.ledger)
        mill.close()


def test_a_run_goes_through_all_its_stages(opened: Open, clock: FrozenClock) -> None:
    mill = opened(press)
    began = clock.at
    run = mill.start(press, "books", args={"pages": ["a", "blank", "torn", "stuck"], "year": 2026})
    assert drain(mill) == 1 + 4 + 2 + 1
    run = mill.run(run.id)
    assert (run.state, run.result("bind")) == ("completed_with_errors", ["a of 2026", "stuck of 2026"])
    assert clock.at - began == 660 * 1_000_000  # the retries' own delays
    pages = {job.key: (job.state, job.attempt, job.error) for job in mill.jobs(run=run.id, stage="read")}
    assert pages["stuck"] == ("completed", 3, None)
    assert pages["torn"] == ("failed", 1, "half of it is missing")
    assert [a.outcome for a in mill.attempts(next(j.id for j in mill.jobs(run=run.id) if j.key == "torn"))] == ["permanent"]


def test_no_process_is_started(opened: Open) -> None:
    seen: list[int] = []

    @task
    def where(ctx: Context) -> None:
        seen.append(os.getpid())

    mill = opened(where)
    mill.enqueue(where)
    drain(mill)
    assert seen == [os.getpid()]


def test_idle_leaves_what_is_delayed_until_the_clock_is_moved(opened: Open, clock: FrozenClock) -> None:
    mill = opened(greet)
    job = mill.enqueue(greet, args={"name": "Ada"}, delay=3600)
    assert drain(mill, until="idle") == 0
    clock.advance(3599)
    assert drain(mill, until="idle") == 0
    clock.advance(1)
    assert drain(mill, until="idle") == 1
    assert mill.job(job.id).result == "hello Ada None out"


def test_later_and_unspent_cost_nothing_and_the_clock_says_how_long(opened: Open, clock: FrozenClock) -> None:
    mill = opened(patient, tired)
    began = clock.at
    job = mill.enqueue(patient)
    assert drain(mill) == 3
    assert (mill.job(job.id).result, mill.job(job.id).errors, clock.at - began) == ("after 3", 0, 7200 * 1_000_000)
    again = mill.enqueue(tired)
    assert drain(mill, until="idle") == 1
    assert drain(mill) == 1
    assert (mill.job(again.id).result, mill.job(again.id).returns) == (2, 1)


def test_urgent_jobs_come_first_and_others_in_their_order(opened: Open) -> None:
    order: list[str] = []

    @task
    def note(ctx: Context, name: str) -> None:
        order.append(name)

    @task(name="anote")
    async def anote(ctx: Context, name: str) -> None:
        order.append(name)

    mill = opened(note, anote)
    for name, priority in [("a", "low"), ("b", "normal"), ("c", "high"), ("d", "normal")]:
        mill.enqueue(note, args={"name": name}, priority=priority)
    mill.enqueue(anote, args={"name": "async"}, priority="high")
    drain(mill)
    assert order == ["c", "async", "b", "d", "a"]


def test_a_run_that_is_told_to_end_ends(opened: Open) -> None:
    mill = opened(stream)
    run = mill.start(stream, "s", args={"most": 700})  # more than one batch of items
    assert drain(mill) == 1 + 3
    run = mill.run(run.id)
    assert (run.state, run.reason) == ("completed", "enough")
    assert (run.stage("number").total, run.stage("number").completed, run.stage("number").cancelled) == (700, 3, 697)


def test_a_key_that_is_emitted_twice_fails_its_producer(opened: Open) -> None:
    mill = opened(double)
    run = mill.start(double, "s")
    drain(mill)
    assert mill.run(run.id).state == "failed"
    assert "the key 'same' was emitted twice" in str(mill.run(run.id).error)


def test_only_the_named_queues_are_drained(opened: Open, clock: FrozenClock) -> None:
    mill = opened(greet, outcome)
    mill.enqueue(greet, args={"name": "Ada"}, delay=60)
    mill.enqueue(outcome, args={"kind": ""})
    began = clock.at
    assert drain(mill, queues=["default"]) == 1
    assert clock.at == began
    with pytest.raises(Invalid, match="unknown queue 'mali'; did you mean 'mail'"):
        drain(mill, queues=["mali"])


def test_a_paused_queue_stays_as_it_is(opened: Open) -> None:
    mill = opened(greet)
    mill.enqueue(greet, args={"name": "Ada"})
    mill.enqueue(greet, args={"name": "Bob"}, delay=60)
    mill.pause("mail")
    assert drain(mill) == 0
    mill.resume("mail")
    assert drain(mill) == 2


def test_work_that_asks_for_more_work_is_drained_too(opened: Open) -> None:
    mills: list[Mill] = []

    @task
    def more(ctx: Context, left: int) -> None:
        if left:
            mills[0].enqueue(more, args={"left": left - 1})

    mills.append(opened(more))
    mills[0].enqueue(more, args={"left": 4})
    assert drain(mills[0]) == 5


def test_work_that_never_ends_is_noticed(opened: Open) -> None:
    @task
    def forever(ctx: Context) -> None:
        from gristmill import Later

        raise Later(1)

    mill = opened(forever)
    mill.enqueue(forever)
    with pytest.raises(AssertionError, match="still work to do after 20 attempts; the last was of 'forever'"):
        drain(mill, most=20)


def test_a_real_clock_is_not_waited_for(database_url: str) -> None:
    with Mill.open(database_url, greet) as mill:
        mill.enqueue(greet, args={"name": "Ada"}, delay=60)
        with pytest.raises(Invalid, match="this mill's clock is real"):
            drain(mill)


def test_an_interrupted_drain_leaves_nothing_in_its_hands(opened: Open) -> None:
    @task
    def interrupted(ctx: Context) -> None:
        raise KeyboardInterrupt

    mill = opened(interrupted)
    job = mill.enqueue(interrupted)
    with pytest.raises(KeyboardInterrupt):
        drain(mill)
    assert mill.job(job.id).state == "queued"
    assert mill.workers() == []


def test_drain_and_a_worker_leave_the_same_rows(opened: Open) -> None:
    """The same application, once drained here and once by a real worker with real child processes."""
    mill = opened(press)
    runs = []
    ways: dict[str, Callable[[], object]] = {"here": partial(drain, mill), "there": partial(mill.work, "drained", slots=1)}
    for subject, work in ways.items():
        runs.append(mill.start(press, subject, args={"pages": ["a", "blank", "torn"], "year": 2026}))
        work()
    told = [
        [(j.stage, j.key, j.state, j.attempt, j.result, j.error, j.error_class) for j in mill.jobs(run=run.id)]
        for run in runs
    ]
    assert sorted(told[0], key=str) == sorted(told[1], key=str)


# ---- looking


def test_assert_enqueued_finds_a_job_by_some_of_its_arguments(opened: Open) -> None:
    mill = opened(greet)
    mill.enqueue(greet, args={"name": "Ada", "on": "2026-11-15"}, priority="high")
    job = mill.enqueue(greet, args={"name": "Bob"}, delay=60)
    assert assert_enqueued(mill, greet, args={"name": "Bob"}).id == job.id
    assert_enqueued(mill, "greet", count=2, queue="mail")
    assert_enqueued(mill, greet, args={"on": "2026-11-15"}, priority="high", count=1)
    refute_enqueued(mill, greet, args={"name": "Cy"})
    refute_enqueued(mill, greet, args={"name": "Bob"}, priority="high")


def test_what_is_there_instead_is_said(opened: Open) -> None:
    mill = opened(greet)
    with pytest.raises(AssertionError, match="a queued job of 'greet'; there is none of this task at all"):
        assert_enqueued(mill, greet)
    job = mill.enqueue(greet, args={"name": "Ada"})
    with pytest.raises(AssertionError, match=f"0 fit of the 1 that are queued:\n  {job.id}: {{'name': 'Ada'}} in 'mail'"):
        assert_enqueued(mill, greet, args={"name": "Bob"})
    with pytest.raises(AssertionError, match="wanted: 2 queued jobs of 'greet'"):
        assert_enqueued(mill, greet, count=2)
    with pytest.raises(AssertionError, match=r"wanted: no queued job of 'greet', arguments {'name': 'Ada'}"):
        refute_enqueued(mill, greet, args={"name": "Ada"})
    with pytest.raises(Invalid, match="did you mean 'name'"):
        assert_enqueued(mill, greet, args={"nmae": "Ada"})
    drain(mill)
    refute_enqueued(mill, greet)


# ---- what jobs say of themselves


def test_conditions_and_ends_of_their_own_count_here_too(database_url: str) -> None:
    from tests.apps import conditions, own

    with Mill.open(database_url, own.page, conditions.reading) as mill:
        with mill.transaction() as connection:
            connection.execute(text("CREATE TABLE note (job bigint PRIMARY KEY)"))
        run = mill.start(own.page, "p", args={"text": "grist"})
        odd = mill.start(conditions.reading, "s", args={"count": 5})
        drain(mill)
        assert (mill.run(run.id).state, mill.run(run.id).result("after")) == ("completed", [{"length": 5}])
        assert mill.run(odd.id).stage("even").skipped == 2
