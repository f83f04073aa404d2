"""`when=` and `within=`: jobs that are skipped, with the reason."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill import Context, Mill, Task, task
from gristmill.errors import Invalid
from tests.apps import conditions
from tests.worker.helpers import drain, eventually, lines, worker_process
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "conditions") as mill:
        yield mill


@pytest.mark.parametrize("ocr", [True, False])
def test_items_and_stages_whose_condition_says_no_are_skipped_and_the_run_goes_on(mill: Mill, ocr: bool) -> None:
    run = mill.start("reading", "s", args={"count": 5, "ocr": ocr})
    drain(mill, slots=2)
    run = mill.run(run.id)
    assert (run.stage("even").completed, run.stage("even").skipped) == (3, 2)
    assert {job.error for job in mill.jobs(stage="even", state="skipped")} == {"its condition was not met"}
    assert run.stage("summary").outcome == ("completed" if ocr else "skipped")
    assert (run.state, run.result("last")) == ("completed", "done")


def test_a_job_that_was_not_started_in_time_is_skipped(mill: Mill) -> None:
    late = mill.enqueue(conditions.in_time)
    time.sleep(0.6)
    good = mill.enqueue(conditions.in_good_time)
    drain(mill, slots=1)
    assert (mill.job(late.id).state, mill.job(late.id).error) == ("skipped", "not started within 0.5 s")
    assert mill.job(good.id).result == "in time"


@pytest.mark.parametrize("task", [conditions.held_in_time, conditions.held_in_time_async], ids=["plain", "async"])
def test_one_that_began_in_time_is_not_late_after_its_worker_was_told_to_end(
    mill: Mill, database_url: str, tmp_path: Path, task: Task[Any, Any]
) -> None:
    job = mill.enqueue(task, args={"folder": str(tmp_path)})
    with worker_process(database_url, "conditions", log=tmp_path / "log", slots=1, grace=0) as worker:
        eventually(lambda: lines(tmp_path / "started"), "it has begun")
        worker.send(signal.SIGTERM)
        assert worker.process.wait(60) == 0
    assert (mill.job(job.id).state, mill.job(job.id).returns) == ("queued", 1)
    time.sleep(5.1)  # longer than it had to begin in
    (tmp_path / "go").touch()
    drain(mill, slots=1)
    assert (mill.job(job.id).state, mill.job(job.id).result) == ("completed", 2)


def test_a_condition_that_raises_is_an_error_of_the_job(mill: Mill) -> None:
    job = mill.enqueue(conditions.never_sure)
    drain(mill, slots=1)
    assert (mill.job(job.id).state, mill.job(job.id).error_class) == ("failed", "ZeroDivisionError")


def test_what_is_no_condition_is_refused_at_once() -> None:
    async def later(ctx: Context) -> bool:
        return True

    def nothing(ctx: Context) -> None: ...

    for wrong in (True, later):
        with pytest.raises(Invalid, match="when=… wants a plain function"):
            task(when=wrong)(nothing)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="within must be a number of seconds"):
        task(within=0)(nothing)
