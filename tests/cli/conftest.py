"""The command line as tests use it: `cli.run` is a real process, `cli.call` the same function in this one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import main
from tests import forking
from tests.forking import Process

APP = Path(__file__).with_name("letters.py")
OURS = ("GRISTMILL_", "DATABASE_URL", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


def words(value: object) -> str:
    """The name of a test's case: its command, and nothing of what is expected."""
    return " ".join(str(word) for word in value if word != str(APP))[:60] if isinstance(value, list) else ""


class Cli:
    """A folder with a database in it, and the command run there."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch | None = None,
        capture: Any = None,
        database: str | None = None,
    ) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capture = capture
        self._settings = {"GRISTMILL_DATABASE_URL": database} if database else {}

    def spawn(self, *args: object, **environment: str) -> Process:
        return forking.start(
            "gristmill",
            *map(str, args),
            cwd=self.folder,
            env=clean_environment() | self._settings | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *args: object, **environment: str) -> Result:
        """A real process, until it ends."""
        with self.spawn(*args, **environment) as process:
            out, err = process.communicate(timeout=60)
            return Result(process.wait(), out, err)

    def call(self, *args: object) -> Result:
        """The same without a process: much faster."""
        assert self._monkeypatch is not None
        self._monkeypatch.chdir(self.folder)
        for name in os.environ.keys() - clean_environment().keys():
            self._monkeypatch.delenv(name)
        for name, value in self._settings.items():
            self._monkeypatch.setenv(name, value)
        self._capture.readouterr()
        logger = logging.getLogger("gristmill")
        self._monkeypatch.setattr(logger, "handlers", [])
        self._monkeypatch.setattr(logger, "propagate", True)
        self._monkeypatch.setattr(logger, "level", logger.level)
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, args)))
        out, err = self._capture.readouterr()
        return Result(int(str(stop.value.code)), out, err)

    def sqlite(self, *statements: str) -> None:
        """Behind the ledger's back."""
        from gristmill.ledger.engines import sqlite_module

        connection = sqlite_module().connect(self.folder / "gristmill.db")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    def texts(self, **files: str) -> Path:
        """A folder of texts to count."""
        folder = self.folder / "texts"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.txt").write_text(text)
        return folder

    def fifo(self, name: str) -> Path:
        path = self.folder / name
        os.mkfifo(path)
        return path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, monkeypatch, capsys)


@pytest.fixture
def on_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database_url: str) -> Cli:
    """The same on each of both databases."""
    return Cli(tmp_path, monkeypatch, capsys, database_url)


@pytest.fixture
def made(cli: Cli, sqlite_template: Path) -> Cli:
    """The same with an empty database that has its schema: saves the half second of making it."""
    (cli.folder / "gristmill.db").write_bytes(sqlite_template.read_bytes())
    return cli


@pytest.fixture(scope="session")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database that has seen a run with failures and a job on its own, all by real processes."""
    cli = Cli(tmp_path_factory.mktemp("finished"))
    texts = cli.texts(good="abc", long="abcdef", empty="", odd="bad text", left="skip this")
    assert cli.run("-A", APP, "start", "letters", "books", "--arg", f"folder={texts}", "--priority", "high").code == 0
    assert cli.run("-A", APP, "enqueue", "greet", "--arg", "name=007").code == 0
    assert cli.run("-A", APP, "work", "--drain", "-n", 2).code == 0
    return cli.folder


@pytest.fixture
def finished(finished_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """For tests that only read."""
    return Cli(finished_folder, monkeypatch, capsys)
