"""What was done before and has not changed is skipped, run after run: a daily run costs what changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Mill
from gristmill.errors import Invalid, NotConfirmed
from tests.worker.helpers import drain
from tests.worker.program import open_mill

pytestmark = pytest.mark.alike

Counts = tuple[int, int, int]


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with open_mill(database_url, "unchanged") as mill:
        yield mill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    return tmp_path


def daily(mill: Mill, folder: Path, subject: str = "s", slots: int = 1, **args: object) -> Counts:
    """(completed, skipped, failed) of the pages of one more run."""
    run = mill.start("site", subject, args={"folder": folder, **args})
    drain(mill, slots=slots)
    stage = mill.run(run.id).stage("read")
    return stage.completed, stage.skipped, stage.failed


def test_a_run_costs_what_changed(mill: Mill, folder: Path) -> None:
    assert daily(mill, folder, slots=2) == (3, 0, 0)
    first = mill.runs()[0].id
    assert daily(mill, folder) == (0, 3, 0)
    assert {job.error for job in mill.jobs(stage="read", state="skipped")} == {f"unchanged since run {first}"}
    (folder / "b.txt").write_text("changed")
    (folder / "d.txt").write_text("new")
    assert daily(mill, folder) == (2, 2, 0)
    assert daily(mill, folder) == (0, 4, 0)


def test_another_version_of_the_work_is_another_fingerprint(mill: Mill, folder: Path) -> None:
    daily(mill, folder)
    assert daily(mill, folder, version=2) == (3, 0, 0)
    assert daily(mill, folder, version=2) == (0, 3, 0)


def test_subjects_do_not_share(mill: Mill, folder: Path) -> None:
    daily(mill, folder)
    assert daily(mill, folder, subject="other") == (3, 0, 0)


def test_what_failed_is_not_done(mill: Mill, folder: Path) -> None:
    (folder / "b.txt").write_text("bad")
    assert daily(mill, folder) == (2, 0, 1)
    assert daily(mill, folder) == (0, 2, 1)
    (folder / "b.txt").write_text("b")
    assert daily(mill, folder) == (1, 2, 0)


def test_only_the_last_success_counts(mill: Mill, folder: Path) -> None:
    daily(mill, folder)
    (folder / "a.txt").write_text("other")
    daily(mill, folder)
    (folder / "a.txt").write_text("a")
    assert daily(mill, folder) == (1, 2, 0)


def test_forgetting_does_all_of_it_afresh(mill: Mill, folder: Path) -> None:
    daily(mill, folder)
    with pytest.raises(Invalid, match="no stage 'reed'"):
        mill.forget("site", "s", "reed")
    assert mill.forget("site", "nobody") == 0
    assert mill.forget("site", "s", "read", dry_run=True) == 3
    with pytest.raises(NotConfirmed, match="about 3 now, and 2 was confirmed"):
        mill.forget("site", "s", "read", confirm=2)
    assert mill.audit(verb="forget", target="site s") == []
    assert mill.forget("site", "s", "read", confirm=3) == 3
    assert daily(mill, folder) == (3, 0, 0)


@pytest.mark.parametrize(("task", "words"), [("on_its_own", "belongs to no subject"), ("not_text", "a fingerprint is text")])
def test_misuse_is_told(mill: Mill, task: str, words: str) -> None:
    job = mill.enqueue(task)
    drain(mill, slots=1)
    assert words in str(mill.job(job.id).error)
