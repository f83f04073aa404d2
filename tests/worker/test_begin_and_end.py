"""When a worker begins and when it is done: schemas, applications that do not load, unknown tasks, until=…"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest

from gristmill import Invalid, Mill
from gristmill.errors import AppError, SchemaMismatch
from gristmill.execution import children, crew
from tests.apps import everyday, strangers
from tests.worker.helpers import all_end, drain, eventually, lines, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike

# ---- until


def test_idle_is_when_nothing_is_ready(mill: Mill) -> None:
    now = mill.enqueue(everyday.add, args={"a": 1})
    later = mill.enqueue(everyday.add, args={"a": 2}, delay=600)
    retried = mill.enqueue(everyday.fail_and_say_when, args={"folder": "/nowhere"}, retries=1)
    drain(mill, until="idle", slots=1)
    assert mill.job(now.id).state == "completed"
    assert (mill.job(later.id).state, mill.job(later.id).attempt) == ("queued", 0)
    assert (mill.job(retried.id).state, mill.job(retried.id).attempt) == ("queued", 1)


def test_drained_is_when_nothing_is_queued_either(mill: Mill) -> None:
    later = mill.enqueue(everyday.add, args={"a": 2}, delay=0.5)
    retried = mill.enqueue(everyday.flaky, args={"failures": 2})
    drain(mill, slots=1)
    assert (mill.job(later.id).state, mill.job(retried.id).state) == ("completed", "completed")


def test_nothing_to_do_is_done_at_once(mill: Mill) -> None:
    drain(mill, until="idle", slots=1)
    drain(mill, slots=1)
    assert [worker.state for worker in mill.workers(every=True)] == ["stopped", "stopped"]


@pytest.mark.parametrize(("jobs", "processes"), [(0, 1), (2, 2), (10, 3)])
def test_who_finds_work_starts_all_processes_that_it_has_use_for_at_once(mill: Mill, jobs: int, processes: int) -> None:
    mill.enqueue_many(everyday.add, [{"a": n} for n in range(jobs)])
    started: list[int] = []

    def count(now: float) -> float:
        started.append(len(worker.crew.children))
        return 1.0

    worker = mill.worker(slots=3, tickers=[count])
    worker.run("drained")
    assert started[0] == processes
    assert [job.state for job in mill.jobs()] == ["completed"] * jobs


def test_other_queues_are_nobodys_business(mill: Mill) -> None:
    elsewhere = mill.enqueue(everyday.unspent_once, args={"pause": 0})
    drain(mill, queues=["default"], slots=1)
    assert mill.job(elsewhere.id).attempt == 0


def test_a_paused_queue_is_not_waited_for(mill: Mill) -> None:
    stuck = mill.enqueue(everyday.add, args={"a": 2})
    mill.pause("default")
    drain(mill, slots=1)
    assert mill.job(stuck.id).attempt == 0


def test_a_burst_waits_for_what_runs_and_what_that_starts(flows: Mill) -> None:
    run = flows.start("nested", "books")
    drain(flows, until="idle", slots=2)
    assert flows.run(run.id).state == "completed"


def test_many_workers_share_the_work_and_end_together(mill: Mill, folder: Path) -> None:
    jobs = mill.enqueue_many(everyday.write_down, [{"folder": folder, "name": str(n)} for n in range(3000)])
    with working(mill, slots=1), working(mill, slots=1):
        drain(mill, slots=1)
        eventually(lambda: not mill.jobs(state="in_progress"))
    assert sorted(lines(folder / "done"), key=int) == [str(n) for n in range(len(jobs))], "each ran exactly once"


# ---- a database that it cannot use


def test_a_worker_refuses_a_database_without_schema(empty_pg_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"has no Gristmill schema; run: gristmill --database .* db upgrade"):
        open_mill(empty_pg_url, "everyday")


def test_a_worker_refuses_a_schema_that_it_does_not_know(mill: Mill, database_url: str) -> None:
    with mill.ledger.exclusively() as connection:
        connection.exec_driver_sql("UPDATE gm_version SET version_num = '9999'")
        connection.exec_driver_sql("UPDATE gm_ledger SET oldest = '9999'")
    with pytest.raises(SchemaMismatch, match=re.escape("is at schema 9999")):
        open_mill(database_url, "everyday")


# ---- an application that does not load


@pytest.mark.parametrize(
    ("app", "said"), [("broken_in_children", "a library that is missing"), ("deadly_in_children", "exit code 3")]
)
def test_an_application_that_children_cannot_load_is_said_so(sqlite_url: str, app: str, said: str) -> None:
    with open_mill(sqlite_url, app) as mill:
        job = mill.enqueue("never")
        with pytest.raises(AppError, match=said):
            drain(mill, slots=1)
        waiting = mill.job(job.id)
        assert (waiting.state, waiting.errors + waiting.crashes + waiting.losses) == ("queued", 0)
        assert [worker.state for worker in mill.workers(every=True)] == ["stopped"]


@pytest.mark.parametrize("whose", [children, crew], ids=["a newer child", "an older child"])
def test_a_worker_whose_package_was_updated_says_so_and_blames_no_job(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, whose: ModuleType
) -> None:
    job = mill.enqueue(everyday.add, args={"a": 1})
    monkeypatch.setattr(whose, "SPOKEN", "0.0.9/1")
    with pytest.raises(AppError, match=r"Gristmill was updated since this worker began .* start the worker again"):
        drain(mill, slots=1)
    left = mill.job(job.id)
    assert (left.state, left.crashes, left.losses) == ("queued", 0, 0)


def test_what_runs_may_end_when_the_package_was_updated(mill: Mill, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = mill.enqueue(everyday.hold, args={"folder": folder, "name": "long"})
    others: list[int] = []

    def update(now: float) -> float:
        if not others and lines(folder / "started"):
            monkeypatch.setattr(children, "SPOKEN", "0.0.9/1")
            others.extend(mill.enqueue_many(everyday.add, [{"a": n} for n in range(5)]))
        if worker.stopping_since is not None:
            (folder / "go").touch()
        return 0.05

    worker = mill.worker(slots=2, recycle=1, tickers=[update])  # a process for each job: some are started after the update
    with pytest.raises(AppError, match="Gristmill was updated since this worker began"):
        worker.run("drained")
    assert mill.job(long.id).state == "completed"
    left = list(map(mill.job, others))
    assert {job.crashes + job.losses for job in left} == {0}
    assert {job.state for job in left} - {"completed"} == {"queued"}


def test_a_mill_without_tasks_cannot_work(sqlite_url: str) -> None:
    with Mill.open(sqlite_url) as mill, pytest.raises(Invalid, match="no pipelines and no tasks"):
        mill.work(until="drained")


# ---- tasks that it does not know


def test_an_unknown_task_goes_back_and_a_worker_that_knows_it_takes_it(mill: Mill, database_url: str) -> None:
    with open_mill(database_url, "strangers") as other:
        job = other.enqueue(strangers.strange)
        drain(mill, until="idle", slots=1)
        back = mill.job(job.id)
        assert (back.state, back.errors + back.crashes + back.losses, back.run_at is not None) == ("queued", 0, True)
        assert "does not know the task 'strange'" in str(back.error)
        other.retry_job(job.id)
        drain(other, slots=1)
        assert other.job(job.id).result == "known here"


def test_an_unknown_task_does_not_hold_up_the_known_ones(
    mill: Mill, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.worker._UNKNOWN_TASK", 600.0)  # far more than a test waits
    with open_mill(database_url, "strangers") as other:
        strange = other.enqueue_many(strangers.strange, [{}] * 50)
        known = mill.enqueue(everyday.add, args={"a": 1})
        with working(mill, slots=1):
            all_end(mill, known.id)
        assert {other.job(number).state for number in strange} == {"queued"}
        assert sum(other.job(number).attempt for number in strange) < 10  # most were put off together


def test_drained_does_not_wait_for_jobs_that_it_cannot_run(
    mill: Mill, database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.worker._UNKNOWN_TASK", 600.0)  # far more than a test waits
    with open_mill(database_url, "strangers") as other:
        strange = [other.enqueue(strangers.strange).id, other.enqueue(strangers.strange, delay=600).id]
        known = mill.enqueue(everyday.add, args={"a": 1})
        drain(mill, slots=1)
        assert mill.job(known.id).state == "completed"
        assert [other.job(number).state for number in strange] == ["queued", "queued"]
    assert "left queued: 2 jobs of task 'strange', which this application does not know" in caplog.text


@pytest.mark.parametrize("until", ["idle", "drained"])
def test_the_end_names_paused_queues_that_hold_jobs(
    lite: Mill, until: Literal["idle", "drained"], caplog: pytest.LogCaptureFixture
) -> None:
    lite.enqueue(everyday.add, args={"a": 1})
    lite.pause("default")
    drain(lite, until=until, slots=1)
    assert "left queued: 1 job in queue 'default', which is paused" in caplog.text


def test_jobs_of_a_task_that_was_renamed_still_run(sqlite_url: str) -> None:
    with open_mill(sqlite_url, "strangers") as before, open_mill(sqlite_url, "renamed") as after:
        job = before.enqueue(strangers.strange)
        drain(after, slots=1)
        assert str(after.job(job.id).result).endswith("known by its old name")
