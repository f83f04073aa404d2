"""Async jobs of one process follow each other without a pause, and none sees anything of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Mill
from tests.apps import everyday, loops
from tests.worker.helpers import all_end, drain, eventually, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike
MANY = 3000


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "everyday", "loops") as mill:
        yield mill


@pytest.mark.parametrize("wait", [False, True])
def test_each_has_a_context_and_a_task_of_its_own(mill: Mill, wait: bool) -> None:
    jobs = mill.enqueue_many(loops.leave_things_behind, [{"wait": wait}] * 200)
    with working(mill, slots=1, async_slots=1):
        ended = all_end(mill, *jobs)
    assert {job.state for job in ended} == {"completed"}
    assert {job.result["variable"] for job in ended} == {"nobody's"}
    assert "the task" not in {job.result["task"] for job in ended}
    assert all(job.result["same"] for job in ended)


def test_what_one_left_behind_cancels_no_other(mill: Mill) -> None:
    jobs = mill.enqueue_many(loops.leave_things_behind, [{}] * 100)
    others = mill.enqueue_many(loops.at_once, [{}] * 100)
    with working(mill, slots=1, async_slots=2):
        ended = all_end(mill, *jobs, *others)
    assert {(job.state, job.errors) for job in ended} == {("completed", 0)}


def test_the_first_step_is_the_jobs_own(mill: Mill) -> None:
    jobs = mill.enqueue_many(loops.use_timeouts_at_once, [{}] * 100)
    with working(mill, slots=1, async_slots=2):
        ended = all_end(mill, *jobs)
    assert {(job.state, job.result) for job in ended} == {("completed", "done")}


def test_those_that_never_wait_are_begun_one_after_the_other(mill: Mill) -> None:
    """Each begins the next; thousands within each other would be too deep."""
    jobs = mill.enqueue_many(everyday.add_async, [{"a": n} for n in range(MANY)])
    with working(mill, slots=1, async_slots=2):
        ended = all_end(mill, *jobs[::30])
    assert [job.result for job in ended] == list(range(0, MANY, 30))


@pytest.mark.parametrize("wait", [False, True])
def test_one_that_wants_to_end_its_process_fails_and_the_others_go_on(mill: Mill, wait: bool) -> None:
    guilty = [mill.enqueue(loops.leave, args={"wait": wait}).id for _ in range(5)]
    others = mill.enqueue_many(loops.at_once, [{}] * 50)
    drain(mill, slots=1, async_slots=2)
    ended = [mill.job(job) for job in (*guilty, *others)]
    assert [(job.state, job.error_class, job.crashes) for job in ended[:5]] == [("failed", "SystemExit", 0)] * 5
    assert {(job.state, job.crashes + job.losses) for job in ended[5:]} == {("completed", 0)}


def test_one_that_ends_as_another_begins_and_ends_is_told_of(mill: Mill, tmp_path: Path) -> None:
    """While others run on: else it would be stopped at its time limit, though it is over."""
    came, over = tmp_path / "came", tmp_path / "over"
    long = mill.enqueue(loops.rest, args={"until": str(over)})
    with working(mill, slots=1, async_slots=50):
        eventually(lambda: mill.job(long.id).state == "in_progress", "the long one runs")
        first = mill.enqueue(loops.end_as_another_comes, args={"came": str(came)})
        eventually(lambda: mill.job(first.id).state == "in_progress", "the loop is held")
        second = mill.enqueue(loops.begin_and_end)
        eventually(lambda: mill.job(second.id).state == "in_progress", "another was given")
        came.touch()
        ended = all_end(mill, first.id, second.id)
        over.touch()
        ended += all_end(mill, long.id)
    assert [(job.state, job.attempt) for job in ended] == [("completed", 1)] * 3


def test_no_process_runs_more_than_it_may_before_it_is_replaced(mill: Mill) -> None:
    jobs = mill.enqueue_many(loops.in_which_process, [{}] * 600)
    drain(mill, slots=1, async_slots=20, recycle=50)
    ran = Counter(mill.job(job).result for job in jobs)
    assert (len(jobs), max(ran.values()) <= 50) == (ran.total(), True), ran


def test_who_only_waited_is_no_suspect_when_a_process_dies(mill: Mill) -> None:
    """Suspects run alone, one after the other."""
    before = mill.enqueue_many(loops.in_which_process, [{}] * 200)
    killer = mill.enqueue(loops.kill_process)
    after = mill.enqueue_many(loops.in_which_process, [{}] * 200)
    with working(mill, slots=1, async_slots=1):
        ended = all_end(mill, *before, killer.id, *after)
    assert {(job.state, job.crashes) for job in ended if job.id != killer.id} == {("completed", 0)}
    assert Counter(job.result for job in ended if job.id != killer.id).total() == 400
    assert len({job.result for job in ended if job.id != killer.id}) <= 3  # before it, after it; not one for each
    told = mill.job(killer.id)
    assert (told.state, told.crashes) == ("failed", 3)
    assert {mill.job(job).attempt for job in before} == {1}


def test_a_process_that_is_to_be_replaced_but_has_a_long_job_keeps_nobody_waiting(mill: Mill, tmp_path: Path) -> None:
    over = tmp_path / "over"
    long = mill.enqueue(loops.rest, args={"until": str(over)})
    with working(mill, slots=1, async_slots=20, recycle=10):
        eventually(lambda: mill.job(long.id).state == "in_progress", "the long one runs")
        jobs = mill.enqueue_many(loops.in_which_process, [{}] * 40)
        ended = all_end(mill, *jobs)
        over.touch()
        all_end(mill, long.id)
    assert max(Counter(job.result for job in ended).values()) <= 10
    assert mill.job(long.id).attempt == 1


def test_a_process_is_replaced_though_a_job_has_left_a_thread_that_never_ends(mill: Mill) -> None:
    jobs = mill.enqueue_many(loops.give_up_on_a_thread, [{}] * 2)
    others = mill.enqueue_many(loops.in_which_process, [{}] * 6)
    drain(mill, slots=1, async_slots=2, recycle=2)
    assert {mill.job(job).state for job in (*jobs, *others)} == {"completed"}
