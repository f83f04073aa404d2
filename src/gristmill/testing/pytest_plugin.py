"""Fixtures for pytest. In a conftest.py: `pytest_plugins = ["gristmill.testing.pytest_plugin"]`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from gristmill.clock import FrozenClock
from gristmill.mill import Mill
from gristmill.pipeline import Pipeline, Task
from gristmill.registry import Registry


class OpenMill(Protocol):
    """Opens a mill with some pipelines and tasks; every call of one test opens the same database."""

    def __call__(self, *pieces: Pipeline | Task[Any, Any] | Registry) -> Mill: ...


@pytest.fixture(scope="session")
def gristmill_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the schema in it: to copy it takes a hundredth of the time of making it."""
    from gristmill.ledger.migrate import upgrade

    path = tmp_path_factory.mktemp("gristmill") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def frozen_clock() -> FrozenClock:
    """The clock of the mills of this test."""
    return FrozenClock()


@pytest.fixture
def open_mill(tmp_path: Path, gristmill_template: Path, frozen_clock: FrozenClock) -> Iterator[OpenMill]:
    """A mill on an SQLite file of this test alone, with a clock that stands still."""
    for file in gristmill_template.parent.glob(f"{gristmill_template.name}*"):  # with -wal, if it was left
        shutil.copy(file, tmp_path / file.name.replace("template.db", "gristmill-test.db", 1))
    with ExitStack() as opened:

        def open_(*pieces: Pipeline | Task[Any, Any] | Registry) -> Mill:
            return opened.enter_context(Mill.open(f"sqlite:///{tmp_path}/gristmill-test.db", *pieces, clock=frozen_clock))

        yield open_
