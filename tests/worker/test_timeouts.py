"""A time limit really stops the work, whatever it is doing; nobody else is harmed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from gristmill import Mill
from tests.apps import everyday
from tests.worker.helpers import all_end, drain, eventually, is_running, lines, pids_of, working
from tests.worker.program import open_mill


@pytest.mark.parametrize("task", ["sleep_for_ever", "native_for_ever", "deaf_to_signals", "swallow_everything"])
def test_a_job_over_its_time_is_stopped_and_the_others_go_on(nasty: Mill, task: str) -> None:
    before = nasty.enqueue(everyday.add, args={"a": 1})
    job = nasty.enqueue(task)
    after = nasty.enqueue(everyday.add, args={"a": 2})
    drain(nasty, slots=1)
    stopped = nasty.job(job.id)
    assert (stopped.state, stopped.error_class, stopped.timeouts) == ("failed", "timeout", 1)
    assert "0.3 s" in str(stopped.error)
    for number, result in ((before, 1), (after, 2)):
        other = nasty.job(number.id)
        assert (other.state, other.result, other.crashes + other.timeouts + other.errors) == ("completed", result, 0)


def test_what_a_process_needs_to_read_arguments_is_not_on_its_first_jobs_time(sqlite_url: str) -> None:
    """The import of pydantic alone takes a third of a second on a busy machine."""
    with open_mill(sqlite_url, "slow_to_convert") as mill:
        job = mill.enqueue("read", args={"text": "a"})
        drain(mill, slots=1)
        done = mill.job(job.id)
    assert (done.state, done.result, done.timeouts) == ("completed", "Elaborate a", 0)


def test_what_a_stopped_job_printed_is_kept(nasty: Mill) -> None:
    job = nasty.enqueue("sleep_for_ever")
    drain(nasty, slots=1)
    (kept,) = nasty.attempts(job.id)
    assert kept.outcome == "timeout"
    assert "about to sleep" in str(kept.log)
    assert kept.started_at is not None
    assert kept.ended_at is not None
    assert 0.25 < (kept.ended_at - kept.started_at).total_seconds() < 5


def test_what_a_job_started_is_stopped_with_it(nasty: Mill, folder: Path) -> None:
    job = nasty.enqueue("with_grandchildren", args={"folder": folder})
    drain(nasty, slots=1)
    assert nasty.job(job.id).error_class == "timeout"
    shell, sleep = pids_of(folder / "grandchildren")
    eventually(lambda: not is_running(shell) and not is_running(sleep), "the programs that it started end")


def test_what_a_job_started_in_a_session_of_its_own_is_stopped_too(nasty: Mill, folder: Path) -> None:
    job = nasty.enqueue("with_a_detached_grandchild", args={"folder": folder})
    drain(nasty, slots=1)
    assert nasty.job(job.id).error_class == "timeout"
    (program,) = pids_of(folder / "grandchildren")
    try:
        eventually(lambda: not is_running(program), "the program ends", within=3)
    finally:
        if is_running(program):
            os.kill(program, signal.SIGKILL)


def test_a_job_may_be_tried_again_after_a_timeout(mill_nasty: Mill) -> None:
    job = mill_nasty.enqueue("slow_once")
    drain(mill_nasty, slots=1)
    done = mill_nasty.job(job.id)
    assert (done.state, done.result, done.timeouts) == ("completed", 2, 1)


def test_the_limit_may_be_given_with_the_job(nasty: Mill, folder: Path) -> None:
    job = nasty.enqueue(everyday.hold, args={"folder": folder}, timeout=0.2)
    drain(nasty, slots=1)
    assert (nasty.job(job.id).error_class, nasty.job(job.id).error) == (
        "timeout",
        "it was stopped at its time limit of 0.2 s",
    )


def test_time_counts_from_the_jobs_own_start_not_from_its_claim(lite: Mill) -> None:
    """Many short jobs behind each other in one child take longer in all than each one may."""
    jobs = lite.enqueue_many(everyday.add, [{"a": n} for n in range(300)])
    last = lite.enqueue(everyday.add, args={"a": 7}, timeout=0.3)
    drain(lite, slots=1)
    assert lite.job(last.id).state == "completed"
    assert lite.job(jobs[-1]).state == "completed"


def test_finished_jobs_are_recorded_while_a_longer_one_runs(lite: Mill, folder: Path) -> None:
    """They came to the same child in one batch; the long one must not keep the others' results to itself."""
    short = lite.enqueue_many(everyday.add, [{"a": n} for n in range(100)])
    long = lite.enqueue(everyday.hold, args={"folder": folder})
    with working(lite, slots=1):
        eventually(lambda: lines(folder / "started"))
        all_end(lite, *short)
        assert lite.job(long.id).state == "in_progress"
        (folder / "go").touch()
        all_end(lite, long.id)


def test_jobs_behind_a_longer_one_go_to_another_child(lite: Mill, folder: Path) -> None:
    """Nothing waits behind a job that takes longer than was thought while a slot is free."""
    lite.enqueue_many(everyday.add, [{"a": n} for n in range(100)])
    lite.enqueue(everyday.hold, args={"folder": folder})
    behind = lite.enqueue_many(everyday.add, [{"a": n} for n in range(100)])
    with working(lite, slots=2):
        eventually(lambda: lines(folder / "started"))
        done = all_end(lite, *behind)
        assert {job.state for job in done} == {"completed"}
        assert not lines(folder / "ended")
        (folder / "go").touch()


# ---- async


def test_an_async_job_over_its_time_is_cancelled_and_its_process_lives_on(nasty: Mill, folder: Path) -> None:
    bystander = nasty.enqueue(everyday.hold_async, args={"folder": folder})
    with working(nasty, slots=1):
        eventually(lambda: lines(folder / "started"))
        late = nasty.enqueue("async_sleep_for_ever", args={"folder": folder})
        (stopped,) = all_end(nasty, late.id)
        (folder / "go").touch()
        (other,) = all_end(nasty, bystander.id)
    assert (stopped.state, stopped.error_class, stopped.timeouts) == ("failed", "timeout", 1)
    assert pids_of(folder / "started") == [int(line) for line in lines(folder / "cancelled")]
    assert (other.state, other.attempt) == ("completed", 1)


@pytest.mark.parametrize("task", ["async_block_for_ever", "async_will_not_be_cancelled"])
def test_an_async_job_that_cannot_be_cancelled_is_killed_and_bystanders_are_not_blamed(
    nasty: Mill, folder: Path, task: str
) -> None:
    bystanders = [nasty.enqueue(everyday.hold_async, args={"folder": folder, "name": str(n)}).id for n in range(3)]
    with working(nasty, slots=1):
        eventually(lambda: len(lines(folder / "started")) == 3)
        args = {"folder": folder} if task == "async_block_for_ever" else {}
        late = nasty.enqueue(task, args=args)
        (stopped,) = all_end(nasty, late.id)
        (folder / "go").touch()
        others = all_end(nasty, *bystanders)
    assert (stopped.state, stopped.error_class, stopped.timeouts, stopped.attempt) == ("failed", "timeout", 1, 1)
    for other in others:
        assert (other.state, other.errors + other.crashes + other.timeouts + other.losses) == ("completed", 0)
        assert nasty.attempts(other.id) == []


def test_an_async_job_that_turns_its_cancellation_into_a_result_is_too_late(nasty: Mill) -> None:
    job = nasty.enqueue("async_is_done_when_cancelled")
    drain(nasty, slots=1)
    assert (nasty.job(job.id).state, nasty.job(job.id).error_class) == ("failed", "timeout")


def test_an_async_jobs_time_does_not_count_while_its_process_starts(sqlite_url: str) -> None:
    with open_mill(sqlite_url, "slow_to_load") as mill:
        job = mill.enqueue("quick_async", timeout=0.5)
        drain(mill, slots=1)
        assert mill.job(job.id).state == "completed"


def test_a_worker_that_is_slow_to_listen_is_not_on_a_jobs_time(nasty: Mill, folder: Path) -> None:
    """A child that has more to tell than fits into its socket waits for its worker, after the last job that it tells of."""
    seen = [0]

    def listen_late(now: float) -> float:
        shouted = len(lines(folder / "shouted"))
        if shouted >= seen[-1] + 40:
            seen.append(shouted)
            threading.Event().wait(0.5)  # longer than the time limit
        return 0.001

    nasty.enqueue_many("short_or_deadly", [{}] * 300)  # so that many are given to a child at once
    jobs = nasty.enqueue_many("shout", [{"folder": folder}] * 300)
    nasty.work(until="drained", slots=1, tickers=[listen_late])
    assert len(seen) > 2
    assert {nasty.job(number).error_class for number in jobs} == {"ValueError"}
