"""Jobs and locks, in real processes: waiting does not count, and a dead or cut-off holder holds nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gristmill import Mill
from gristmill.ledger.sql import Sql
from tests.apps import locking
from tests.worker.helpers import all_end, drain, eventually, lines, run_ends, working
from tests.worker.program import open_mill


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "locking") as mill:
        yield mill


@pytest.fixture
def pg(pg_url: str) -> Iterator[Mill]:
    with open_mill(pg_url, "locking") as mill:
        yield mill


def said(folder: Path) -> list[str]:
    return lines(folder / "said")


def waits(mill: Mill, *jobs: int) -> bool:
    found = [waiter.job for lock in mill.locks() for waiter in lock.waiters]
    return sorted(job for job in found if job) == sorted(jobs)


def test_waiting_does_not_count_and_a_cancelled_job_stops_waiting(mill: Mill, folder: Path) -> None:
    """One that holds; two that may run for 5 s and wait for longer; one that is cancelled while it waits."""
    holder = mill.enqueue(locking.hold, args={"folder": str(folder)})
    with working(mill, slots=4, cancel_grace=600):
        eventually(lambda: said(folder))
        brief = mill.enqueue(locking.brief, args={"folder": str(folder)})
        async_brief = mill.enqueue(locking.async_brief, args={"folder": str(folder)})
        cancelled = mill.enqueue(locking.after)
        eventually(lambda: waits(mill, brief.id, async_brief.id, cancelled.id), "three wait")
        why = mill.why(job=brief.id)
        assert (why.reason, why.command) == ("locked", ("why", "job", str(holder.id)))
        assert f"waits for the lock edition/42 since {why.at:%Y}" in why.sentence
        assert f"locked by job {holder.id} (worker " in why.sentence
        mill.cancel_job(cancelled.id)
        (ended,) = all_end(mill, cancelled.id)
        assert ended.state == "cancelled"
        waited_for(mill, brief.id, 5.5)
        (folder / "go").touch()
        jobs = all_end(mill, holder.id, brief.id, async_brief.id)
    assert [(job.state, job.result, job.timeouts) for job in jobs] == [("completed", None, 0), *[("completed", True, 0)] * 2]
    assert mill.locks() == []


def waited_for(mill: Mill, job: int, seconds: float) -> None:
    """By the database's clock."""

    def long_enough() -> bool:
        since = [user.since for lock in mill.locks() for user in lock.waiters if user.job == job]
        now: int = mill.ledger.glance(lambda tx: tx.value(_NOW))
        return since[0] is not None and now / 1e6 - since[0].timestamp() > seconds

    eventually(long_enough, f"job {job} has waited for {seconds} s")


def test_ten_at_once_in_one_job_a_time_limit_and_what_a_job_forgot(mill: Mill, folder: Path) -> None:
    jobs = [
        mill.enqueue(locking.many, args={"folder": str(folder)}),
        mill.enqueue(locking.holds_too_long),
        mill.enqueue(locking.forgets),
        mill.enqueue(locking.after),
        mill.enqueue(locking.two),
    ]
    drain(mill, slots=1, debug=True)
    ended = [mill.job(job.id) for job in jobs]
    assert [job.state for job in ended] == ["completed", "failed", "completed", "completed", "failed"]
    assert (ended[0].result, ended[1].error_class) == (10, "timeout")
    assert "project/1 is asked for while edition/42 is held" in str(ended[4].error)
    assert mill.locks() == []


def test_what_a_killed_child_held_is_free(mill: Mill, folder: Path) -> None:
    holder = mill.enqueue(locking.hold, args={"folder": str(folder)})
    with working(mill, slots=2):
        eventually(lambda: said(folder))
        after = mill.enqueue(locking.after)
        eventually(lambda: waits(mill, after.id))
        os.kill(int(said(folder)[0].split()[1]), signal.SIGKILL)
        assert [job.state for job in all_end(mill, after.id)] == ["completed"]
        (folder / "go").touch()
        (ended,) = all_end(mill, holder.id)
    assert (ended.state, ended.crashes) == ("completed", 1)


def test_a_job_whose_session_is_cut_is_ended_before_its_effects(pg: Mill, folder: Path) -> None:
    job = pg.enqueue(locking.effect, args={"folder": str(folder)})
    with working(pg, slots=1):
        eventually(lambda: said(folder) == ["holds 1"])
        with pg.ledger.engine.connect() as connection:
            connection.exec_driver_sql(_CUT)
        (ended,) = all_end(pg, job.id)
    assert (ended.state, ended.result, ended.errors, ended.crashes) == ("completed", "attempt 2", 1, 0)
    assert said(folder) == ["holds 1", "holds 2", "effect 2"]
    (attempt,) = pg.attempts(job.id)
    assert (attempt.error_class, "edition/42 was lost" in str(attempt.error)) == ("gristmill.errors.LockLost", True)


def test_what_is_committed_without_the_lock_is_undone(mill: Mill) -> None:
    with mill.transaction() as connection:
        connection.execute(text("CREATE TABLE note (attempt bigint)"))
    jobs = [mill.enqueue(locking.commits), mill.enqueue(locking.finishes)]
    drain(mill, slots=1)
    ended = [mill.job(job.id) for job in jobs]
    assert [(job.state, job.errors) for job in ended] == [("completed", 1)] * 2
    with mill.transaction() as connection:  # an attempt that waited in vain behind another has its number, too
        noted = connection.execute(text("SELECT attempt FROM note")).scalars().all()
    assert sorted(noted) == sorted(job.attempt for job in ended)


def test_an_older_build_that_ends_after_a_newer_one_is_skipped(mill: Mill, folder: Path) -> None:
    with working(mill, slots=2):
        old, new = (mill.start(locking.builds, f"b{n}", args={"number": n, "folder": str(folder)}) for n in (1, 2))
        eventually(lambda: sorted(said(folder)) == ["publish 1", "publish 2"])
        (folder / "go 2").touch()
        assert run_ends(mill, new.id).stage("publish").completed == 1
        (folder / "go 1").touch()
        assert run_ends(mill, old.id).stage("publish").skipped == 1
    (job,) = mill.jobs(run=old.id)
    assert (job.state, job.error, job.result) == ("skipped", "superseded by build 2", None)


_NOW = Sql("SELECT {now}")
_CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'gristmill lock %%'"
)
