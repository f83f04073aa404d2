"""Part of a run once more, and part runs, with real workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gristmill import Mill
from gristmill.errors import Invalid, Refused
from tests.worker.helpers import drain, eventually, lines, run_ends, working
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "again") as mill:
        yield mill


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Mill]:
    with open_mill(sqlite_url, "again") as mill:
        yield mill


def test_what_a_worker_still_does_for_a_retried_run_is_stopped_and_done_again(mill: Mill, folder: Path) -> None:
    """By the same worker, which must not take the second attempt for the first."""
    (folder / "bad-b").touch()
    run = mill.start("book", "novel", args={"folder": str(folder)})
    with working(mill, slots=2, poll=0.1, cancel_grace=0.2):
        eventually(lambda: "begin 1" in lines(folder / "log"), "the total is under way")
        (folder / "bad-b").unlink()
        assert mill.retry_run(run.id).after == ("total",)
        eventually(lambda: [line for line in lines(folder / "log") if line.startswith("begin")][1:], "it begins again")
        (folder / "release").touch()
        over = run_ends(mill, run.id)
    assert (over.state, over.epoch, over.result("total")) == ("completed", 2, 3)
    said = lines(folder / "log")
    assert [said.count(f"page {key}") for key in "abc"] == [1, 2, 1]
    assert "end 1" not in said
    assert len([line for line in said if line.startswith("end")]) == 1


def test_what_has_not_changed_is_not_done_again_but_still_counts(database_url: str, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    with open_mill(database_url, "unchanged") as mill:
        run = mill.start("site", "s", args={"folder": tmp_path})
        drain(mill, slots=1)
        (tmp_path / "b.txt").write_text("longer")
        asked = datetime.now(UTC)
        mill.retry_run(run.id, stage="find")
        drain(mill, slots=1)
        over = mill.run(run.id)
        assert (over.state, over.result("total"), over.stage("read").completed) == ("completed", 3, 3)
        assert dict(mill.results(run.id, "read")) == {"a.txt": 1, "b.txt": 6, "c.txt": 1}
        assert all(
            job.started_at and job.started_at > asked for job in mill.jobs(run=run.id, stage="read")
        )  # each was asked


def test_work_on_one_run_leaves_others_alone_and_ends_with_it(mill: Mill, folder: Path) -> None:
    (folder / "release").touch()
    other = mill.start("book", "other", args={"folder": str(folder)}, priority="high")
    run = mill.start("book", "novel", args={"folder": str(folder)})
    mill.work(run=run, slots=2)
    assert (mill.run(run.id).state, mill.run(other.id).state) == ("completed", "queued")
    mill.work(run=run.id, slots=1)  # it is over already
    waiting = mill.start("book", "other", if_active="wait", args={"folder": str(folder)})
    with pytest.raises(Refused, match="has not begun: 'other' has an active run"):
        mill.work(run=waiting)
    with pytest.raises(Invalid, match="leave out until"):
        mill.work("drained", run=run)


def test_work_on_one_run_ends_when_the_rest_of_it_is_paused(
    lite: Mill, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = lite.start("book", "novel", args={"folder": str(folder)})
    lite.pause("default")
    with caplog.at_level(logging.WARNING):
        lite.work(run=run, slots=1)
    assert f"run {run.id} is not over, but what is left of it is not done here" in caplog.text
    assert lite.run(run.id).stage("find").completed == 1
