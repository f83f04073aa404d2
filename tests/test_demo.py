"""The demonstration of the engine alone: it ends by itself, shows what it promises, and its commands work when pasted."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.demo import TOWNS, make_documents
from tests.cli.conftest import clean_environment

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "gristmill.demo", "--documents", "60", "--folder", str(folder)]
    result = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_it_shows_progress_in_plain_lines(shown: str) -> None:
    for number, town in enumerate(TOWNS, 1):
        said = [line for line in shown.splitlines() if line.startswith(f"run {number} minutes {town}: ")]
        assert len(said) >= 2
        assert "completed_with_errors" in said[-1]
    assert "\x1b" not in shown


def test_it_names_what_failed_and_says_why(shown: str) -> None:
    failed = shown.split("could not be read")[1].split("What else")[0]
    assert failed.count("empty file") == 3
    assert failed.count("UnicodeDecodeError: ") == 1


def test_it_tells_of_the_retry_and_the_copies(shown: str) -> None:
    assert "needed 2 attempts: ConnectionError: the archive does not answer" in shown
    assert shown.count("% alike") == 3
    assert "jobs/s" in shown


def test_its_commands_work_when_pasted(shown: str) -> None:
    commands = [line.strip() for line in shown.splitlines() if " --database sqlite:///" in line]
    assert len(commands) == 4
    for command in commands:
        result = subprocess.run(shlex.split(command), cwd=ROOT, env=clean_environment(), capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.strip()


def test_the_documents_are_always_the_same(tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_documents(tmp_path / name, 40)
    one, other = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.txt")}
        for name in ("one", "other")
    )
    assert one == other
    assert len(one) == 40
