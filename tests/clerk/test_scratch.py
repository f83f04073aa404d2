"""Temporary folders do not stay behind, however a process ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clerk.scratch import Scratch

HOLD = """
import sys
from clerk.scratch import Scratch
scratch = Scratch(sys.argv[1])
(scratch.path / "folder").mkdir()
(scratch.path / "folder" / "file").write_text("something")
print(scratch.path, flush=True)
sys.stdin.read()
scratch.close()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@contextmanager
def holding(name: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [sys.executable, "-c", HOLD, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_folder_is_for_this_user_and_goes_at_the_end(temporary: Path) -> None:
    with Scratch("test") as scratch:
        assert scratch.path.parent == temporary
        assert scratch.path.stat().st_mode & 0o777 == 0o700
    assert not list(temporary.iterdir())


def test_what_a_killed_process_left_goes_when_the_next_one_begins() -> None:
    with holding("test") as (process, left):
        process.kill()
        process.wait()
        assert (left / "folder" / "file").exists()
        with Scratch("other"):
            assert left.exists(), "of another name: nobody else's business"
        with Scratch("test") as mine:
            assert not left.exists()
            assert mine.path.is_dir()


def test_the_folder_of_a_process_that_lives_stays() -> None:
    with holding("test") as (process, theirs):
        with Scratch("test"):
            assert (theirs / "folder" / "file").exists()
        process.communicate()
        assert process.returncode == 0
        assert not theirs.exists()


def test_many_that_begin_at_once_do_not_take_each_others(temporary: Path) -> None:
    many = """
from clerk.scratch import Scratch
for _ in range(300):
    with Scratch("test") as scratch:
        (scratch.path / "file").write_text("mine")
        assert (scratch.path / "file").read_text() == "mine"
"""
    processes = [subprocess.Popen([sys.executable, "-c", many]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    assert not list(temporary.iterdir())


def test_a_link_that_somebody_put_there_is_not_followed(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    precious = tmp_path_factory.mktemp("precious")
    (precious / "file").write_text("kept")
    (temporary / "clerk-test-link").symlink_to(precious)
    with Scratch("test"):
        assert (precious / "file").read_text() == "kept"
