"""Graceful stop: no new jobs, running ones may end, the rest goes back as if it had never been taken."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gristmill import Mill
from gristmill.model import Job
from tests.apps import everyday
from tests.worker.helpers import WorkerProcess, drain, eventually, is_running, lines, worker_process

pytestmark = pytest.mark.alike


def spent(job: Job) -> int:
    return job.errors + job.crashes + job.timeouts + job.losses


def assert_left_in_order(mill: Mill, worker: WorkerProcess, children: list[int]) -> None:
    assert worker.wait() == 0
    assert not any(map(is_running, children))
    assert [w.state for w in mill.workers(every=True)] == ["stopped"]
    assert mill.jobs(state="in_progress") == []


def test_a_running_job_may_end_and_nothing_new_starts(mill: Mill, database_url: str, folder: Path, log: Path) -> None:
    assert_stops_gracefully(mill, database_url, folder, log, signal.SIGTERM)


def test_an_interrupt_does_the_same(lite: Mill, sqlite_url: str, folder: Path, log: Path) -> None:
    assert_stops_gracefully(lite, sqlite_url, folder, log, signal.SIGINT)


def assert_stops_gracefully(mill: Mill, url: str, folder: Path, log: Path, number: signal.Signals) -> None:
    running = mill.enqueue(everyday.hold, args={"folder": folder, "name": "running"})
    with worker_process(url, "everyday", log=log, slots=1) as worker:
        eventually(lambda: lines(folder / "started"))
        children = [child.pid for child in worker.children]
        worker.send(number)
        waiting = mill.enqueue(everyday.add, args={"a": 1})
        (folder / "go").touch()
        assert_left_in_order(mill, worker, children)
    assert (mill.job(running.id).state, mill.job(running.id).attempt) == ("completed", 1)
    assert (mill.job(waiting.id).state, mill.job(waiting.id).attempt) == ("queued", 0)


def test_a_signal_to_the_whole_group_does_not_harm_running_jobs(
    lite: Mill, sqlite_url: str, folder: Path, log: Path
) -> None:
    """systemd's default, and Ctrl-C: the children get it too."""
    plain = lite.enqueue(everyday.hold, args={"folder": folder, "name": "plain"})
    asynchronous = lite.enqueue(everyday.hold_async, args={"folder": folder, "name": "async"})
    with worker_process(sqlite_url, "everyday", log=log, slots=1) as worker:
        eventually(lambda: len(lines(folder / "started")) == 2)
        children = worker.children
        for child in children:
            child.terminate()
        worker.send(signal.SIGTERM)
        (folder / "go").touch()
        assert_left_in_order(lite, worker, [child.pid for child in children])
    for job in (plain, asynchronous):
        assert (lite.job(job.id).state, lite.job(job.id).attempt) == ("completed", 1)


def test_a_worker_puts_the_signal_handlers_back(lite: Mill) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    drain(lite, slots=1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_stopping_a_worker_that_has_ended_is_harmless(lite: Mill) -> None:
    worker = lite.worker(slots=1)
    worker.run(until="drained")
    worker.stop()


def test_what_was_taken_in_advance_goes_back_unspent(mill: Mill, database_url: str, folder: Path, log: Path) -> None:
    """Short jobs teach the worker to take many of this queue at once; then one blocks, with others behind it."""
    mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": "early"} for _ in range(200)])
    blocking = mill.enqueue(everyday.hold, args={"folder": folder})
    behind = mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": "behind"} for _ in range(200)])
    with worker_process(database_url, "everyday", log=log, slots=1) as worker:
        eventually(lambda: lines(folder / "started"))
        children = [child.pid for child in worker.children]
        worker.send(signal.SIGTERM)
        eventually(
            lambda: [job.id for job in mill.jobs(state="in_progress")] == [blocking.id], "only the running job is held"
        )
        (folder / "go").touch()
        assert_left_in_order(mill, worker, children)
    assert mill.job(blocking.id).state == "completed"
    back = [mill.job(number) for number in behind]
    assert {(job.state, spent(job), job.returns) for job in back} == {("queued", 0, 0)}
    assert all(mill.attempts(job.id) == [] for job in back[:3])
    assert lines(folder / "done").count("behind") == 0


def test_when_the_grace_is_over_running_jobs_go_back_unspent(mill: Mill, database_url: str, folder: Path, log: Path) -> None:
    jobs = [mill.enqueue(task, args={"folder": folder}).id for task in (everyday.hold, everyday.hold_async)]
    with worker_process(database_url, "everyday", log=log, slots=1, grace=0.3) as worker:
        eventually(lambda: len(lines(folder / "started")) == 2)
        children = [child.pid for child in worker.children]
        worker.send(signal.SIGTERM)
        assert_left_in_order(mill, worker, children)
    for back in map(mill.job, jobs):
        assert (back.state, back.attempt, spent(back)) == ("queued", 1, 0)
    assert not lines(folder / "ended")


def test_the_grace_ends_on_time_although_the_poll_is_slow(lite: Mill, sqlite_url: str, folder: Path, log: Path) -> None:
    lite.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(sqlite_url, "everyday", log=log, slots=1, grace=0.3, poll=60, lease=180) as worker:
        eventually(lambda: lines(folder / "started"))
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_second_signal_stops_at_once(mill: Mill, database_url: str, folder: Path, log: Path) -> None:
    job = mill.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(database_url, "everyday", log=log, slots=1, grace=600) as worker:
        eventually(lambda: lines(folder / "started"))
        children = [child.pid for child in worker.children]
        worker.send(signal.SIGTERM)
        eventually(lambda: "once more to stop at once" in log.read_text(), "it says what it waits for")
        worker.send(signal.SIGTERM)
        assert_left_in_order(mill, worker, children)
    assert (mill.job(job.id).state, spent(mill.job(job.id))) == ("queued", 0)


def test_an_idle_worker_stops_at_once(mill: Mill, database_url: str, log: Path) -> None:
    with worker_process(database_url, "everyday", log=log, slots=1, grace=600, poll=60, lease=600) as worker:
        eventually(lambda: mill.workers())
        eventually(lambda: worker.children)
        worker.send(signal.SIGTERM)
        assert_left_in_order(mill, worker, [])


def test_a_producer_that_is_stopped_starts_over_and_emits_nothing_twice(
    flows: Mill, database_url: str, folder: Path, log: Path
) -> None:
    run = flows.start("streaming", "books", args={"folder": folder})
    with worker_process(database_url, "flows", log=log, slots=2, grace=0) as worker:
        eventually(lambda: lines(folder / "dropped") == ["first"])
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    (folder / "go").touch()
    drain(flows, slots=1)
    assert flows.run(run.id).state == "completed"
    assert lines(folder / "dropped") == ["first", "second"]
    (producer,) = flows.jobs(run=run.id, stage="drip")
    assert (producer.attempt, spent(producer)) == (2, 0)
