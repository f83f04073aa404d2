"""A message is only a doorbell: with it an idle worker starts at once, without it a little later."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gristmill import Mill
from gristmill import worker as worker_module
from gristmill.bookkeeping import write
from tests import servers
from tests.apps import everyday
from tests.worker.helpers import all_end, eventually, worker_process, working
from tests.worker.program import open_mill

DEAF = {"poll": 60.0, "lease": 600.0, "slots": 1}  # only the bell can wake it within a test's time
PROMPT = 5.0  # seconds: generous, but far from the poll


def is_idle(mill: Mill) -> bool:
    """It has run something, so its child is up, and there is nothing left."""
    return not mill.jobs(state="in_progress") and not mill.jobs(state="queued")


def warmed_up(mill: Mill) -> None:
    all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
    eventually(lambda: is_idle(mill))


def starts_promptly(mill: Mill) -> None:
    job = mill.enqueue(everyday.add, args={"a": 1})
    eventually(lambda: mill.job(job.id).state == "completed", "the bell wakes the worker", within=PROMPT)


def test_an_idle_worker_starts_a_new_job_promptly(mill: Mill) -> None:
    with working(mill, **DEAF):
        warmed_up(mill)
        for _ in range(5):
            starts_promptly(mill)


def test_a_bell_rings_across_processes_and_for_every_worker(mill: Mill, database_url: str, tmp_path: Path) -> None:
    with (
        worker_process(database_url, "everyday", log=tmp_path / "1", queues=["default"], **DEAF),
        worker_process(database_url, "everyday", log=tmp_path / "2", queues=["tools"], **DEAF),
    ):
        eventually(lambda: len(mill.workers()) == 2)
        warmed_up(mill)
        starts_promptly(mill)
        tools = mill.enqueue(everyday.unspent_once, args={"pause": 0})
        eventually(lambda: mill.job(tools.id).attempt > 0, within=PROMPT)


def test_a_stage_that_starts_rings_too(flows: Mill, database_url: str, tmp_path: Path) -> None:
    """Each stage is on a queue that another worker serves."""
    with (
        working(flows, queues=["find"], **DEAF),
        worker_process(database_url, "flows", log=tmp_path / "log", queues=["default"], **DEAF),
    ):
        eventually(lambda: len(flows.workers()) == 2)
        run = flows.start("site", "books", args={"pages": 3})
        eventually(lambda: flows.run(run.id).state == "completed", within=3 * PROMPT)


def test_resuming_a_queue_rings(mill: Mill) -> None:
    with working(mill, **DEAF):
        warmed_up(mill)
        mill.pause("default")
        job = mill.enqueue(everyday.add, args={"a": 1})
        mill.resume("default")
        eventually(lambda: mill.job(job.id).state == "completed", within=PROMPT)


@pytest.mark.exact
def test_without_its_pipe_a_worker_still_finds_its_jobs(lite: Mill, sqlite_url: str) -> None:
    bells = Path(sqlite_url.removeprefix("sqlite:///") + "-bells")
    with working(lite, slots=1, poll=0.2):
        warmed_up(lite)
        for pipe in bells.iterdir():
            pipe.unlink()
        for _ in range(3):
            starts_promptly(lite)


@pytest.mark.exact
@pytest.mark.parametrize("poll", [0.2, 60.0])
def test_without_its_listening_connection_a_worker_still_finds_its_jobs(pg_url: str, poll: float) -> None:
    listening = "FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN%%'"
    name = [servers.database_name(pg_url)]
    with open_mill(pg_url, "everyday") as mill, working(mill, slots=1, poll=poll, lease=600):
        warmed_up(mill)
        ((ended, pid),) = servers.execute(pg_url, f"SELECT pg_terminate_backend(pid), pid {listening}", name)
        assert ended
        eventually(lambda: (pid,) not in servers.execute(pg_url, f"SELECT pid {listening}", name))
        if poll == 60:
            eventually(lambda: servers.execute(pg_url, f"SELECT pid {listening}", name), "it listens again")
        for _ in range(3):
            starts_promptly(mill)


@pytest.mark.exact
def test_what_others_say_on_its_channel_is_no_harm(pg_url: str) -> None:
    with open_mill(pg_url, "everyday") as mill, working(mill, **DEAF):
        warmed_up(mill)
        with mill.ledger.engine.begin() as connection:
            connection.exec_driver_sql("NOTIFY gristmill")
            connection.exec_driver_sql("NOTIFY gristmill, 'not one of ours'")
        starts_promptly(mill)


@pytest.mark.exact
def test_the_pipe_of_a_dead_worker_is_cleared_away(lite: Mill, sqlite_url: str, tmp_path: Path) -> None:
    bells = Path(sqlite_url.removeprefix("sqlite:///") + "-bells")
    with worker_process(sqlite_url, "everyday", log=tmp_path / "log", slots=1) as worker:
        all_end(lite, lite.enqueue(everyday.add, args={"a": 1}).id)  # its child has started: no copy of the pipe is left
        assert list(bells.iterdir())
        worker.kill()
    lite.enqueue(everyday.add, args={"a": 1})
    assert list(bells.iterdir()) == []


def test_what_ends_during_a_turn_is_written_at_once(
    lite: Mill, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn hears children before it deals out jobs; what they said then must not wait for the poll."""
    other = tmp_path / "other"
    other.mkdir()
    second: list[int] = []

    def slowly(*given: Any) -> Any:
        done = write(*given)
        if second and done.taken is not None and second[0] in [job.id for job in done.taken.jobs]:
            (folder / "go").touch()
            eventually((folder / "ended").exists)
            time.sleep(0.2)  # until its child has said so
        return done

    monkeypatch.setattr(worker_module, "write", slowly)
    with working(lite, **{**DEAF, "slots": 2}):
        first = lite.enqueue(everyday.hold, args={"folder": str(folder)})
        eventually((folder / "started").exists)
        all_end(lite, lite.enqueue(everyday.add, args={"a": 0}).id)  # by a second child
        second.append(lite.enqueue(everyday.hold, args={"folder": str(other)}).id)
        eventually((other / "started").exists)
        eventually(lambda: lite.job(first.id).state == "completed", within=PROMPT)
        (other / "go").touch()
        all_end(lite, second[0])
