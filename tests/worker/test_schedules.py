"""Schedules with real workers: one that works until it is stopped fires them; of several, one."""

from __future__ import annotations

from contextlib import ExitStack

from sqlalchemy import text

from gristmill import Mill
from tests.worker.helpers import eventually, working
from tests.worker.program import open_mill


def make_due(mill: Mill) -> None:
    """A minute is long: their time has come already."""
    with mill.transaction() as connection:
        connection.execute(text("UPDATE gm_schedule SET fire_at = fire_at - 60000000, due_at = due_at - 60000000"))


def test_workers_fire_what_their_application_declares(database_url: str) -> None:
    with open_mill(database_url, "timed") as mill, ExitStack() as stack:
        mill.set_subject("timed-site", "a.org")
        mill.declare_schedules()
        make_due(mill)
        for _ in range(2):
            stack.enter_context(working(mill, schedules=True, slots=1))
        eventually(lambda: [job for job in mill.jobs(task="beat", state="completed") if job.result == 7])
        eventually(lambda: mill.runs(pipeline="timed-site", state="completed"))
        fired = mill.schedule_history()
        assert len({(one.schedule, one.fire_at) for one in fired}) == len(fired)


def test_a_worker_that_only_drains_fires_nothing(sqlite_url: str) -> None:
    with open_mill(sqlite_url, "timed") as mill:
        mill.declare_schedules()
        make_due(mill)
        mill.work(until="drained", slots=1)
        assert mill.jobs() == []


def test_a_worker_declares_when_it_starts(sqlite_url: str) -> None:
    with open_mill(sqlite_url, "timed") as mill, working(mill, schedules=True, slots=1):
        assert [(entry.name, entry.declared) for entry in mill.schedules()] == [("beat", True), ("sweep", True)]
