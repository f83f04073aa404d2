"""The tests that docs/testing.md shows pass in a real pytest run, and what it is about is named there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gristmill import testing
from gristmill.testing.calling import Called
from tests.docs.pages import PAGES, programs

PAGE = next(page for page in PAGES if page.name == "testing.md")


def test_the_tests_on_the_page_pass(tmp_path: Path) -> None:
    [program] = [program for program in programs(PAGE) if program.section == "With pytest"]
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["gristmill.testing.pytest_plugin"]\n')
    (tmp_path / "test_page.py").write_text("\n".join(block.text for block in program.definitions))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("name", [*testing.__all__, *(n for n in dir(Called) if not n.startswith("_") and n != "value")])
def test_what_a_test_can_use_is_documented(name: str) -> None:
    assert f"`{name}" in PAGE.read_text() or f"{name}(" in PAGE.read_text()
