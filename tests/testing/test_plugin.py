"""The fixtures, in a real pytest run of somebody else's tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

from gristmill import Context, task
from gristmill.testing import assert_enqueued, drain, refute_enqueued


@task
def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


@pytest.fixture
def mill(open_mill):
    return open_mill(greet)


@pytest.mark.parametrize("name", ["Ada", "Bob"])
def test_each_test_has_a_database_of_its_own(mill, name):
    refute_enqueued(mill, greet)
    job = mill.enqueue(greet, args={"name": name}, delay=60)
    assert_enqueued(mill, greet, count=1)
    assert drain(mill) == 1
    assert mill.job(job.id).result == f"hello {name}"


def test_the_clock_stands_still_until_it_is_moved(mill, open_mill, frozen_clock):
    job = mill.enqueue(greet, args={"name": "Ada"})
    assert job.created_at == frozen_clock.now
    frozen_clock.advance(60)
    again = open_mill(greet)
    assert (frozen_clock.now - again.job(job.id).created_at).total_seconds() == 60
"""


def test_the_fixtures_of_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["gristmill.testing.pytest_plugin"]\n')
    (tmp_path / "test_greet.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
