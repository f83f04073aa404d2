"""Servers for tests: a real process each, over a database with real runs and jobs in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gristmill import Mill
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


@pytest.fixture
def filled_url(database_url: str, tmp_path: Path) -> str:
    fill(database_url, tmp_path / "texts")
    return database_url


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
def shared(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Served]:
    """One for a module of tests that only look, or are refused."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "test.db").write_bytes(sqlite_template.read_bytes())
    url = f"sqlite:///{folder}/test.db"
    fill(url, folder / "texts")
    with serving(url) as server:
        yield server


@pytest.fixture
def made(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line over an empty database."""
    (tmp_path / "gristmill.db").write_bytes(sqlite_template.read_bytes())
    return Cli(tmp_path, monkeypatch, capsys)
