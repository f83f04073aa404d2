"""Workers that die, freeze or lose their lease: their children end in time, others take over, nothing is done twice."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from gristmill import Mill
from tests.apps import everyday
from tests.worker.helpers import (
    all_end,
    assert_attempts_do_not_overlap,
    drain,
    eventually,
    freeze,
    is_running,
    lines,
    worker_process,
    working,
)
from tests.worker.program import open_mill

LONG = {"lease": 600.0, "slots": 1}  # whoever takes over in a test's time did not wait for this lease


# ---- the supervisor is killed


@pytest.mark.parametrize("task", [everyday.hold, everyday.hold_async], ids=["plain", "async"])
def test_children_end_with_a_killed_supervisor(lite: Mill, sqlite_url: str, folder: Path, log: Path, task) -> None:
    lite.enqueue(task, args={"folder": folder})
    with worker_process(sqlite_url, "everyday", log=log, slots=2, lease=600) as worker:
        eventually(lambda: lines(folder / "started"))
        children = [child.pid for child in worker.children]
        worker.kill()
        assert children
        eventually(lambda: not any(map(is_running, children)), "the children end, long before the lease")
    assert not lines(folder / "ended")


def test_children_end_with_a_killed_supervisor_while_native_code_runs(nasty: Mill, sqlite_url: str, log: Path) -> None:
    job = nasty.enqueue("native_for_ever", timeout=600)
    with worker_process(sqlite_url, "everyday", "nasty", log=log, slots=1, lease=600) as worker:
        eventually(lambda: nasty.job(job.id).state == "in_progress")
        children = eventually(lambda: [child.pid for child in worker.children if child.cpu_times().user > 0.5])
        worker.kill()
        eventually(lambda: not any(map(is_running, children)), "the children end, long before the lease")


def test_another_worker_on_the_host_takes_over_at_once(mill: Mill, database_url: str, folder: Path, log: Path) -> None:
    job = mill.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(database_url, "everyday", log=log, **LONG) as worker:
        eventually(lambda: lines(folder / "started"))
        worker.kill()
        (folder / "go").touch()
        drain(mill, slots=1)
    done = mill.job(job.id)
    assert (done.state, done.attempt, done.losses, done.crashes) == ("completed", 2, 1, 0)
    (kept,) = mill.attempts(job.id)
    assert (kept.outcome, kept.error_class) == ("lost", "worker_lost")
    assert {w.state for w in mill.workers(every=True)} == {"lost", "stopped"}


def test_a_job_that_is_lost_too_often_is_parked(mill: Mill, database_url: str, folder: Path, log: Path) -> None:
    job = mill.enqueue(everyday.hold_once, args={"folder": folder})
    for n in range(2):
        with worker_process(database_url, "everyday", log=log, **LONG) as worker:
            eventually(lambda n=n: len(lines(folder / "started")) == n + 1)  # type: ignore[misc]
            worker.kill()
        mill.reconcile()
    done = mill.job(job.id)
    assert (done.state, done.error_class, done.losses) == ("failed", "worker_lost", 2)


def test_what_a_killed_worker_had_in_advance_is_not_lost_either(
    mill: Mill, database_url: str, folder: Path, log: Path
) -> None:
    """It dies in the middle of many short jobs; each leaves a trace when it runs."""
    jobs = mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": str(n)} for n in range(1000)])
    with worker_process(database_url, "everyday", log=log, **LONG) as worker:
        eventually(lambda: len(lines(folder / "done")) > 300)
        worker.kill()
    drain(mill, slots=2)
    states = {job.state for job in mill.jobs(limit=3000)}
    assert states == {"completed"}
    assert set(lines(folder / "done")) == {str(n) for n in range(len(jobs))}


def test_a_fan_out_survives_a_killed_worker(flows: Mill, database_url: str, folder: Path, log: Path) -> None:
    """Its producer starts over; what it had emitted is not emitted, and not counted, a second time."""
    run = flows.start("wide", "books", args={"items": 3000, "folder": folder})
    with worker_process(database_url, "flows", log=log, **LONG) as worker:
        eventually(lambda: flows.run(run.id).stage("leaf").total >= 1000)
        worker.kill()
    drain(flows, slots=2)
    ended = flows.run(run.id)
    assert (ended.state, ended.stage("leaf").total, ended.stage("leaf").completed) == ("completed", 3000, 3000)
    assert lines(folder / "closed") == [""]


# ---- the supervisor freezes


def test_a_frozen_workers_children_end_before_others_take_their_jobs(
    mill: Mill, database_url: str, folder: Path, log: Path
) -> None:
    """The job writes the time down while it runs: the two attempts must never overlap."""
    job = mill.enqueue(everyday.tick_until_told, args={"folder": folder})
    with worker_process(database_url, "everyday", log=log, slots=1, lease=1.5, poll=0.1) as frozen:
        eventually(lambda: lines(folder / "ticks"))
        children = [child.pid for child in frozen.children]
        freeze(frozen, mill)
        with working(mill, slots=1, poll=0.05):
            eventually(lambda: any(line.startswith("2 ") for line in lines(folder / "ticks")), "another takes the job")
            assert not any(map(is_running, children))
            (folder / "go").touch()
            (done,) = all_end(mill, job.id)
    assert_attempts_do_not_overlap(folder)
    assert (done.state, done.attempt, done.losses) == ("completed", 2, 1)


def test_a_worker_that_thaws_after_its_lease_starts_again_under_a_new_number(
    mill: Mill, database_url: str, folder: Path, log: Path
) -> None:
    job = mill.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(database_url, "everyday", log=log, slots=1, lease=1.0, poll=0.1) as frozen:
        eventually(lambda: lines(folder / "started"))
        (before,) = mill.workers()
        freeze(frozen, mill)
        eventually(lambda: mill.reconcile() and mill.job(job.id).losses == 1, "someone declares it lost")
        assert mill.workers() == []
        (folder / "go").touch()
        frozen.send(signal.SIGCONT)
        (done,) = all_end(mill, job.id)
        (after,) = mill.workers()
        other = mill.enqueue(everyday.add, args={"a": 3})
        assert all_end(mill, other.id)[0].result == 3
    assert (done.state, done.attempt, done.losses) == ("completed", 2, 1)  # it had begun
    assert after.pid == before.pid
    assert after.id > before.id


def test_late_outcomes_of_a_thawed_worker_are_refused(mill: Mill, database_url: str, folder: Path, log: Path) -> None:
    """Its child finishes while it is frozen, within the lease; nobody hears of it before the job is someone else's."""
    job = mill.enqueue(everyday.hold, args={"folder": folder, "name": "late"})
    with worker_process(database_url, "everyday", log=log, slots=1, lease=2.0, poll=0.1) as frozen:
        eventually(lambda: lines(folder / "started"))
        freeze(frozen, mill)
        (folder / "go").touch()
        eventually(lambda: lines(folder / "ended"))
        drain_when_lost(mill, job.id)
        finished = mill.job(job.id)
        frozen.send(signal.SIGCONT)
        eventually(lambda: mill.workers(), "it registers anew")
        assert mill.job(job.id) == finished
    assert (finished.state, finished.attempt, finished.losses) == ("completed", 2, 1)


def drain_when_lost(mill: Mill, job: int) -> None:
    with working(mill, slots=1, poll=0.1):
        all_end(mill, job)


def test_a_worker_that_freezes_for_less_than_its_lease_loses_nothing(
    mill: Mill, database_url: str, folder: Path, log: Path
) -> None:
    job = mill.enqueue(everyday.hold, args={"folder": folder})
    with worker_process(database_url, "everyday", log=log, slots=1) as frozen, working(mill, slots=1, poll=0.1):
        eventually(lambda: lines(folder / "started"))
        freeze(frozen, mill)
        (folder / "go").touch()
        eventually(lambda: lines(folder / "ended"))
        frozen.send(signal.SIGCONT)
        (done,) = all_end(mill, job.id)
    assert (done.state, done.attempt, done.losses) == ("completed", 1, 0)


def test_a_worker_that_freezes_inside_a_transaction_holds_up_nobody(pg_url: str, folder: Path, log: Path) -> None:
    """Its locks stay: others must not wait for them."""
    with open_mill(pg_url, "everyday") as mill:
        first = mill.enqueue(everyday.write_down, args={"folder": folder, "name": "first"})
        with worker_process(pg_url, "everyday", log=log, slots=1, lease=1.0, poll=0.1, freeze_in_claim=True) as frozen:
            eventually(lambda: psutil.Process(frozen.pid).status() == psutil.STATUS_STOPPED)
            (before,) = mill.workers()
            eventually(lambda: before.lease_until and before.lease_until < datetime.now(UTC), "its lease is over")
            with working(mill, slots=1, poll=0.1):
                other = mill.enqueue(everyday.write_down, args={"folder": folder, "name": "other"})
                all_end(mill, other.id)
                frozen.send(signal.SIGCONT)
                (done,) = all_end(mill, first.id)
    assert done.state == "completed"
    assert sorted(lines(folder / "done")) == ["first", "other"]


def test_leases_are_renewed_while_jobs_run(mill: Mill, folder: Path) -> None:
    """A job that takes longer than the lease is nobody else's business while its worker is well."""
    job = mill.enqueue(everyday.hold, args={"folder": folder})
    with working(mill, slots=1, lease=0.9, poll=0.1), working(mill, slots=1, lease=0.9, poll=0.1):
        eventually(lambda: lines(folder / "started"))
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 2.5)
        (folder / "go").touch()
        (done,) = all_end(mill, job.id)
    assert (done.state, done.attempt, done.losses) == ("completed", 1, 0)
