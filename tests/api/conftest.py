"""Servers for tests: a real process each, over a database with real runs and jobs in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gristmill import Mill
from tests import servers
from tests.api.server import At, Served, serving, serving_here
from tests.cli import letters
from tests.cli.conftest import Cli


def fill(url: str, folder: Path) -> None:
    """A run with failures, jobs on their own that are done, delayed and waiting, a schedule."""
    folder.mkdir()
    for name, text in {"good": "abc", "long": "abcdef", "empty": "", "odd": "bad text", "left": "skip this"}.items():
        (folder / f"{name}.txt").write_text(text)
    with mill_of(url) as mill:
        mill.start("letters", "books", args={"folder": str(folder)})
        mill.set_subject("letters", "books", labels={"shelf": "one"})
        mill.enqueue("greet", args={"name": "ann"})
        mill.work(until="drained", slots=1)
        mill.enqueue("greet", args={"name": "bob"}, delay=86_400, unique="bob")
        mill.enqueue_many("anything", [{"n": n} for n in range(5)])


def mill_of(url: str) -> Mill:
    return Mill.open(url, letters.letters, letters.held, letters.greet, letters.anything, letters.hold)


@pytest.fixture(scope="session")
def filled_sqlite(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Path:
    """A filled database in a file. Filling starts a worker's processes, so it is done once, and then copied."""
    folder = tmp_path_factory.mktemp("filled")
    shutil.copy(sqlite_template, folder / "filled.db")
    fill(f"sqlite:///{folder}/filled.db", folder / "texts")
    assert not (folder / "filled.db-wal").exists(), "the file alone is not all of it"
    return folder / "filled.db"


@pytest.fixture(scope="session")
def filled_pg_rows(tmp_path_factory: pytest.TempPathFactory, swept_database: servers.SweptDatabase) -> servers.Rows:
    """The same for PostgreSQL: the rows of a filled database, for an empty one."""
    url = swept_database.fresh()
    fill(url, tmp_path_factory.mktemp("filled") / "texts")
    return swept_database.rows()


def filled(request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of a filled database of the kind that is asked for; in this folder, if it is a file."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("filled_sqlite"), folder / "test.db")
        return f"sqlite:///{folder}/test.db"
    rows: servers.Rows = request.getfixturevalue("filled_pg_rows")
    url: str = request.getfixturevalue("swept_database").fresh()
    rows.put_into(url)
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.pg)])
def filled_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return filled(request, tmp_path)


@pytest.fixture
def served(filled_url: str) -> Iterator[At]:
    """Without tokens, as on somebody's own machine; for tests that change something."""
    with mill_of(filled_url) as mill, serving_here(filled_url, mill) as server:
        yield server


@pytest.fixture
def client(served: At) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def mill(filled_url: str) -> Iterator[Mill]:
    with mill_of(filled_url) as mill:
        yield mill


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, filled_sqlite: Path) -> Iterator[Served]:
    """One for a module of tests that only look, or are refused."""
    path = shutil.copy(filled_sqlite, tmp_path_factory.mktemp("shared") / "test.db")
    with serving(f"sqlite:///{path}") as server:
        yield server


@pytest.fixture
def made(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line over an empty database."""
    (tmp_path / "gristmill.db").write_bytes(sqlite_template.read_bytes())
    return Cli(tmp_path, monkeypatch, capsys)
