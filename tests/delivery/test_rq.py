"""RQ's own programs see what there is: its queues, its jobs, a worker that is busy."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rq import Queue, Worker
from rq.job import Job
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from gristmill import Mill
from gristmill.delivery.rq import run
from tests.apps import everyday
from tests.delivery.conftest import opener
from tests.valkey import Valkey
from tests.worker.helpers import all_end, eventually, lines, working


@pytest.fixture
def mill(sqlite_url: str, valkey: Valkey) -> Iterator[Mill]:
    with opener(sqlite_url, "rq", valkey.url)() as mill:
        yield mill


def info(valkey: Valkey) -> str:
    command = [str(Path(sys.executable).with_name("rq")), "info", "--url", valkey.url, "--raw", "--serializer"]
    command += ["rq.serializers.JSONSerializer"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_jobs_are_in_real_queues_by_priority_and_carry_a_number_only(mill: Mill, valkey: Valkey) -> None:
    jobs = [mill.enqueue(everyday.add, args={"a": 1}, priority=level).id for level in ("high", "normal", "low")]
    with valkey.client as client:
        for name, number in zip(("default:high", "default", "default:low"), jobs, strict=True):
            (job,) = Queue(name, connection=client, serializer=JSONSerializer).jobs
            assert (job.args, job.kwargs, job.id) == ([number], {}, f"{number}-1")
    said = info(valkey)
    assert "queue default 1" in said
    assert "queue default:high 1" in said


def test_a_worker_that_has_stopped_is_not_seen_any_more(mill: Mill, valkey: Valkey) -> None:
    with valkey.client as client:
        with working(mill, slots=2, poll=60.0, lease=600.0):
            eventually(lambda: Worker.all(connection=client), "it says hello")
            eventually(lambda: any("b" in one["flags"] for one in client.client_list()), "it waits for a message")
        assert Worker.all(connection=client) == []
        assert not any("b" in one["flags"] for one in client.client_list())


def test_a_worker_is_seen_with_what_it_is_on(mill: Mill, valkey: Valkey, tmp_path: Path) -> None:
    with valkey.client as client, working(mill, slots=2, poll=60.0, lease=600.0):
        eventually(lambda: Worker.all(connection=client), "it says hello")
        for _ in range(2):  # what is there when it begins it finds for itself
            all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        jobs, folder = _held(mill, tmp_path, lambda: Worker.all(connection=client)[0].get_state() == "busy")
        (worker,) = Worker.all(connection=client, serializer=JSONSerializer)
        started = StartedJobRegistry("default", connection=client)

        def all_known() -> bool:
            known = {int(job.partition("-")[0]) for job in started.get_job_ids()}
            return known >= {job.id for job in mill.jobs(state="in_progress")}

        eventually(all_known, "RQ knows as started what has started")
        current = eventually(worker.get_current_job_id)
        assert int(current.partition("-")[0]) in jobs
        assert worker.name in info(valkey)
        (folder / "go").touch()
        all_end(mill, *jobs)
        eventually(lambda: started.get_job_count() == 0, "RQ knows that they are over")
        assert not Job.exists(f"{jobs[0]}-1", connection=client)
        eventually(lambda: Worker.all(connection=client)[0].get_state() == "idle")
        eventually(lambda: Worker.all(connection=client)[0].successful_job_count >= 3)
    eventually(lambda: not Worker.all(connection=valkey.client), "it says goodbye")


def _held(mill: Mill, folder: Path, is_busy: Callable[[], bool]) -> tuple[list[int], Path]:
    """Jobs that wait for a file in a folder, two of them in progress. A worker that has just ended another one may find them
    for itself, and RQ is told nothing of them: then others."""
    for n in range(10):
        time.sleep(0.5)
        here = folder / str(n)
        here.mkdir()
        started = here / "started"
        jobs = [mill.enqueue(everyday.hold, args={"folder": str(here), "name": str(n)}).id for n in range(3)]
        while len(lines(started)) < 2:
            time.sleep(0.02)
        until = time.monotonic() + 5  # its books are kept by a thread of their own
        while time.monotonic() < until:
            if is_busy():
                return jobs, here
            time.sleep(0.02)
        (here / "go").touch()
        all_end(mill, *jobs)
    pytest.fail("no job came by message")


def test_somebody_elses_job_is_left_among_the_failed_ones(mill: Mill, valkey: Valkey) -> None:
    with valkey.client as client, working(mill, slots=1, poll=0.2):
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        strange = Queue("default", connection=client, serializer=JSONSerializer).enqueue("os.getpid")
        pickled = Queue("default", connection=client).enqueue("os.getpid")
        eventually(lambda: FailedJobRegistry("default", connection=client).get_job_count() == 2)
        all_end(mill, mill.enqueue(everyday.add, args={"a": 0}).id)
        assert {strange.id, pickled.id} == set(FailedJobRegistry("default", connection=client).get_job_ids())


def test_a_plain_rq_worker_is_told_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="gristmill work --delivery rq"):
        run(7)
