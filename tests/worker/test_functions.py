"""What a job's function gets and gives: plain and async functions, arguments by type, results, its context."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest

from gristmill import Mill, task
from gristmill.execution.child import Child as ChildProcess
from gristmill.execution.children import Child
from gristmill.execution.context import Common, Context
from gristmill.execution.crew import Crew
from gristmill.execution.loop import Loop
from gristmill.execution.status import Status, make_file
from tests.apps import everyday
from tests.apps.typed import Page
from tests.worker.helpers import PATIENCE, all_end, drain, eventually, lines, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


@pytest.mark.parametrize("task", [everyday.add, everyday.add_async])
def test_a_function_gets_its_arguments_and_its_result_is_kept(mill: Mill, task) -> None:
    job = mill.enqueue(task, args={"a": 2, "b": 40})
    drain(mill, slots=1)
    done = mill.job(job.id)
    assert (done.state, done.result, done.attempt, done.error) == ("completed", 42, 1, None)
    assert done.created_at is not None
    assert done.started_at is not None
    assert done.finished_at is not None
    assert done.created_at <= done.started_at <= done.finished_at


def test_json_of_every_kind_goes_in_and_out_unchanged(mill: Mill) -> None:
    given = {"t": "ä\u0000€😀", "n": None, "f": 1.5, "i": 2**53, "l": [1, [2, {}]], "d": {"": "x", "k/k": True}, "e": ""}
    job = mill.enqueue(everyday.anything, args=given)
    drain(mill, slots=1)
    assert mill.job(job.id).result == given


def test_payloads_up_to_the_limit_go_in_and_out(mill: Mill) -> None:
    """Far more than fits into a pipe at once, in both directions."""
    texts = [str(n) * 1_000_000 for n in range(8)]
    jobs = mill.enqueue_many(everyday.anything, [{"text": text} for text in texts])
    drain(mill, slots=1)
    assert [mill.job(number).result for number in jobs] == [{"text": text} for text in texts]


def test_arguments_arrive_as_the_types_that_the_hints_name(sqlite_url: str) -> None:
    at = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    args = {
        "path": Path("/a/b.txt"),
        "at": at,
        "point": {"x": 1, "y": "2"},
        "page": Page(url="http://x", depth=3),
        "pages": [{"url": "u"}, Page(url="v")],
    }
    with open_mill(sqlite_url, "typed") as mill:
        job = mill.enqueue("typed", args=args)
        drain(mill, slots=1)
        assert mill.job(job.id).result == [".txt", "2024-05-01T10:00:00+00:00", 3, "Page", 3, ["u", "v"]]


def test_a_job_on_its_own_knows_who_it_is(lite: Mill) -> None:
    job = lite.enqueue(everyday.describe)
    drain(lite, slots=1)
    said = lite.job(job.id).result
    left = said.pop("seconds_left"), said.pop("time_to_deadline")
    assert said == {
        "job": job.id,
        "attempt": 1,
        "task": "describe",
        "subject": None,
        "run": None,
        "stage": None,
        "key": None,
        "cancelled": False,
    }
    assert all(30 < seconds <= 60 for seconds in left)


def test_progress_and_phases_show_while_it_runs_and_after(mill: Mill, folder: Path) -> None:
    job = mill.enqueue(everyday.progressing, args={"folder": folder})
    with working(mill, slots=1):
        eventually(lambda: lines(folder / "started"))
        shown = eventually(lambda: mill.job(job.id).progress, "progress shows while the job runs")
        assert (shown["done"], shown["total"], shown["message"]) == (1, 4, "first")
        (folder / "go").touch()
        (done,) = all_end(mill, job.id)
    assert done.state == "completed"
    pages = {"total": 3, "in_progress": [], "completed": ["a", "b"], "skipped": {"c": "blank"}, "failed": {}}
    shown = {**done.progress["phases"]["pages"], "completed": sorted(done.progress["phases"]["pages"]["completed"])}
    assert (done.progress["done"], done.progress["total"], done.progress["message"], shown) == (4, 4, "last", pages)


def test_phases_of_a_running_job_show_its_items(lite: Mill, folder: Path) -> None:
    job = lite.enqueue(everyday.progressing, args={"folder": folder})
    with working(lite, slots=1):
        phases = eventually(lambda: (lite.job(job.id).progress or {}).get("phases"), "the phase shows while it runs")
        assert phases["pages"]["in_progress"] == ["a"]
        assert phases["pages"]["skipped"] == {"c": "blank"}
        (folder / "go").touch()
        all_end(lite, job.id)


def test_a_job_whose_own_items_failed_is_completed_with_errors(mill: Mill) -> None:
    job = mill.enqueue(everyday.partly)
    drain(mill, slots=1)
    done = mill.job(job.id)
    assert (done.state, done.result) == ("completed_with_errors", "two of three")
    assert done.progress["phases"]["pages"]["failed"] == {"two": "unreadable"}
    assert "two" in str(done.error)


def test_a_cancelled_job_is_told_and_ends_cancelled(mill: Mill, folder: Path) -> None:
    job = mill.enqueue(everyday.stop_when_cancelled, args={"folder": folder})
    with working(mill, slots=1, poll=0.1):
        eventually(lambda: lines(folder / "started"))
        mill.cancel_job(job.id, by="tester")
        (done,) = all_end(mill, job.id)
    assert lines(folder / "saw_cancel")
    assert (done.state, done.result) == ("cancelled", None)


@pytest.mark.parametrize("task", [everyday.hold, everyday.hold_async])
def test_a_cancelled_job_that_does_not_stop_is_killed(lite: Mill, folder: Path, task) -> None:
    job = lite.enqueue(task, args={"folder": folder})
    with working(lite, slots=1, poll=0.1, cancel_grace=0.1):
        eventually(lambda: lines(folder / "started"))
        lite.cancel_job(job.id)
        (done,) = all_end(lite, job.id)
    assert done.state == "cancelled"
    assert not lines(folder / "ended")


def test_a_cancellation_that_comes_too_late_does_not_stop_the_next_attempt(
    lite: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crosses the report that this attempt has failed."""
    hear = Crew.hear
    late: list[int] = []

    def hear_too_late(crew: Crew, child: Child) -> None:
        if child.held and not late:
            late.extend(child.held)
            crew.cancel(late)
        hear(crew, child)

    monkeypatch.setattr(Crew, "hear", hear_too_late)
    job = lite.enqueue(everyday.flaky, args={"failures": 1})
    drain(lite, slots=1)
    assert late == [job.id]
    assert (lite.job(job.id).state, lite.job(job.id).attempt) == ("completed", 2)


class AskedJustAfterItLooked(Context):
    """Whoever asks it to stop does so right after it has looked for the first time whether it shall."""

    desk: Desk
    looked = False

    @property
    def _asked(self) -> bool:  # type: ignore[override]
        looked, self.looked = self.looked, True
        if not looked:
            self.desk.loop.interrupt(self)
        return looked


class Desk:
    """As much of a child as async jobs need, one at a time."""

    def __init__(self, fn: Any, loop: asyncio.AbstractEventLoop, jobs: int = 1, kind: type[Context] = Context) -> None:
        self.task = task(fn)
        self.at_once = 1
        self.inbox = deque((Common(), [0, number, 1, None, None]) for number in range(jobs))
        self.done: list[Any] = []
        self.told: list[list[Any]] = []
        self.on: Context | None = None
        self.status = Status(make_file())
        self.kind = kind
        self.loop = Loop(cast(ChildProcess, self), loop)

    def context(self, given: Any, started: float) -> Context:
        self.on = self.kind(given[1], started=started)
        self.on.__dict__["desk"] = self
        return self.on

    def call(self, given: Any) -> tuple[Any, dict[str, Any]]:
        return self.task, {}

    def is_on(self, ctx: Context) -> bool:
        return ctx is self.on

    def forget(self, job: int) -> None:
        self.on = None

    def emitter(self, ctx: Context) -> None: ...

    def report(self) -> None:
        if self.done:
            self.told.append(self.done)
            self.done = []


def worked(fn: Any, jobs: int = 1, kind: type[Context] = Context) -> list[list[Any]]:
    """What a loop told of these jobs, each time."""
    with asyncio.Runner() as runner:
        desk = Desk(fn, runner.get_loop(), jobs, kind)
        desk.loop.arrived(True)
        desk.loop.arrived(False)
        runner.run(desk.loop.work())
    return desk.told


async def rest(ctx: Context) -> None:
    await asyncio.sleep(PATIENCE)


async def nothing(ctx: Context) -> None: ...


def test_an_async_job_is_told_to_stop_however_early_that_comes() -> None:
    began = time.monotonic()
    (((report, _),),) = worked(rest, kind=AskedJustAfterItLooked)
    assert report.verdict == "cancelled"
    assert time.monotonic() - began < PATIENCE / 2


def test_async_jobs_that_are_over_at_once_are_not_told_one_by_one() -> None:
    told = worked(nothing, jobs=1000)
    assert [job for batch in told for job, *_ in batch] == list(range(1000))
    assert len(told) < 500
