"""Mills for the tests of the worker, with the applications in `tests.apps`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill import Mill
from tests.valkey import Valkey
from tests.worker.program import open_mill


@pytest.fixture(autouse=True)
def chosen_delivery(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--delivery`: each of these tests with another one than the default."""
    name = str(request.config.getoption("--delivery"))
    if name != "database":
        valkey: Valkey = request.getfixturevalue("session_valkey")
        valkey.flush()
        monkeypatch.setenv("GRISTMILL_DELIVERY", name)
        monkeypatch.setenv("GRISTMILL_REDIS_URL", valkey.url)


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    """Everyday tasks, on both databases."""
    with open_mill(database_url, "everyday") as mill:
        yield mill


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Mill]:
    """Everyday tasks, where the database does not matter."""
    with open_mill(sqlite_url, "everyday") as mill:
        yield mill


@pytest.fixture
def flows(database_url: str) -> Iterator[Mill]:
    """Pipelines, on both databases."""
    with open_mill(database_url, "flows") as mill:
        yield mill


@pytest.fixture
def lite_flows(sqlite_url: str) -> Iterator[Mill]:
    """Pipelines, where the database does not matter."""
    with open_mill(sqlite_url, "flows") as mill:
        yield mill


@pytest.fixture
def lite_crawl(sqlite_url: str) -> Iterator[Mill]:
    """Jobs with limits, where the database does not matter."""
    with open_mill(sqlite_url, "crawl") as mill:
        yield mill


@pytest.fixture
def nasty(sqlite_url: str) -> Iterator[Mill]:
    """Jobs that misbehave, with everyday ones beside them."""
    with open_mill(sqlite_url, "everyday", "nasty") as mill:
        yield mill


@pytest.fixture
def mill_nasty(database_url: str) -> Iterator[Mill]:
    """The same on both databases."""
    with open_mill(database_url, "everyday", "nasty") as mill:
        yield mill


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What a worker's process says; shown when the test fails."""
    return tmp_path / "worker.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where jobs and tests meet."""
    path = tmp_path / "meet"
    path.mkdir()
    return path
