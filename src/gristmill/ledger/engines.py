"""Engines: what is set up once for each connection to PostgreSQL or SQLite, and a fair turn for SQLite's writers."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, make_url

from gristmill.errors import Invalid, Unavailable
from gristmill.ledger import forks

_FROZEN_MS = 15_000  # PostgreSQL ends a transaction that did nothing for so long
_LOCK_MS = 20_000  # and a wait for a lock: longer than the above, so that a frozen holder is gone by then
_BUSY_MS = 60_000  # SQLite's own wait; the turnstile makes it nearly unused (other programs do not know it)
_OLDEST_SQLITE = (3, 38, 0)  # ->> and RETURNING


def parse_url(url: str | URL) -> URL:
    """A database URL that Gristmill can use, or a clear error."""
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        masked = re.sub(r"://[^@/]*@", "://***@", str(url))  # it may hold a password
        raise Invalid(
            f"the database URL {masked[:60]!r} is malformed; write sqlite:///FILE or postgresql://HOST/NAME"
        ) from None
    backend = parsed.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise Invalid(f"the database URL starts with {backend!r}; write sqlite:///FILE or postgresql://HOST/NAME")
    if not parsed.database or parsed.database == ":memory:":
        raise Invalid("an SQLite ledger must be a file, so that several processes can share it: sqlite:///FILE")
    return parsed


def shown(url: URL) -> str:
    """The URL as it may be shown: without its password, and as a person would write it."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def connect_defaults(url: URL) -> dict[str, Any]:
    """Connection options that the URL does not give itself."""
    defaults: dict[str, Any] = {
        "connect_timeout": 5,
        "application_name": "gristmill",
        # A cut network is noticed in seconds, well within a lease.
        "tcp_user_timeout": 5000,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def postgres_engine(url: URL) -> Engine:
    try:
        import psycopg
    except ImportError:
        raise Invalid("PostgreSQL needs psycopg; run: pip install 'gristmill[postgres]'") from None
    assert psycopg.paramstyle == "pyformat"
    engine = create_engine(url, connect_args=connect_defaults(url), pool_size=2, max_overflow=20)

    @event.listens_for(engine, "connect")
    def configure(dbapi: Any, record: Any) -> None:
        # Verbs find rows by key. The planner, whose statistics know nothing of a queue's last second, would rather read
        # the whole table for "in progress and held by this worker": 860 ms instead of 14 ms for 1,000 rows.
        # A worker that freezes within a transaction must not hold its locks for ever.
        for setting in (
            "enable_seqscan = off",
            "jit = off",
            f"idle_in_transaction_session_timeout = {_FROZEN_MS}",
            f"lock_timeout = {_LOCK_MS}",
        ):
            dbapi.execute(f"SET {setting}")
        dbapi.commit()
        forks.stay_here(dbapi, forks.socket_of)

    return engine


def sqlite_module() -> Any:
    """pysqlite3 where there is a wheel of it: the standard library's SQLite is often older than fixes we need."""
    try:
        from pysqlite3 import dbapi2
    except ImportError:
        return sqlite3
    return dbapi2


def sqlite_engine(url: URL) -> Engine:
    module = sqlite_module()
    if module.sqlite_version_info < _OLDEST_SQLITE:
        raise Invalid(
            f"SQLite {module.sqlite_version} is too old; install pysqlite3, or use Python with SQLite 3.38 or newer"
        )
    folder = Path(str(url.database)).absolute().parent
    if not folder.is_dir():
        raise Unavailable(f"the folder of the database {shown(url)} is not there: {folder}")
    engine = create_engine(url, module=module, connect_args={"check_same_thread": False, "timeout": _BUSY_MS / 1000})
    file = Path(str(url.database)).absolute()
    # Those who have it open share the second, which the last of them removes. They do not see one whose locks are gone: that
    # happens when another copy of SQLite in its process (Python's own) closes the database.
    files = (file, Path(f"{file}-shm"))
    made = False

    @event.listens_for(engine, "do_connect")
    def is_there(dialect: Any, record: Any, args: Any, options: Any) -> None:
        if made and not file.exists():  # SQLite would make an empty one
            raise Unavailable(f"the database {shown(url)}: its file is not there any more")
        if forks.is_parents(_identity(file)):
            raise Invalid(
                f"this process was forked while {shown(url)} was in use, and SQLite cannot go on there: fork outside of"
                " transactions, when no thread uses it, or start the process anew (multiprocessing: spawn)"
            )

    @event.listens_for(engine, "checkout")
    def is_the_same(dbapi: Any, record: Any, proxy: Any) -> None:
        """Else it would go on with files that nobody else sees, when these were deleted or others put in their place."""
        if _identities(files) != record.info["files"]:
            raise exc.DisconnectionError("another file is in its place")

    @event.listens_for(engine, "connect")
    def configure(dbapi: Any, record: Any) -> None:
        nonlocal made
        made = True
        dbapi.isolation_level = None  # transactions begin where _turn says
        _use_wal(dbapi, module.OperationalError)
        encoding = dbapi.execute("PRAGMA encoding").fetchone()[0]
        if encoding != "UTF-8":  # statements read bytes as text (see finish.py)
            raise Invalid(f"{shown(url)} keeps its text as {encoding}, and Gristmill needs UTF-8: let it make a new file")
        record.info.update(paths=files, files=_identities(files))
        for pragma in ("synchronous = FULL", "foreign_keys = ON", f"busy_timeout = {_BUSY_MS}"):
            dbapi.execute(f"PRAGMA {pragma}")
        record.info["turnstile"] = _Turnstile(file, _identity(file))

    @event.listens_for(engine, "close")
    def close(dbapi: Any, record: Any) -> None:
        record.info.pop("turnstile").close()

    return engine


def is_current(connection: Connection) -> bool:
    """Is it to the files that are there now?"""
    held = connection.info
    return "files" not in held or _identities(held["paths"]) == held["files"]


def _identities(files: Sequence[Path]) -> list[forks.File | None]:
    return [_identity(file) for file in files]


def _identity(file: Path) -> forks.File | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _use_wal(dbapi: Any, busy: type[Exception]) -> None:
    """SQLite does not wait here as it does elsewhere: two who open a new file at once would refuse each other."""
    until = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            dbapi.execute("PRAGMA journal_mode = WAL")
            return
        except busy as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.005)


class _Turnstile:
    """A fair turn for SQLite's writers: without it one process can commit 11,593 times before another gets one.

    Two locks on files beside the database: whoever wants to write waits at the gate, holds it until it owns the
    lock, and only then lets the next one up to the gate. Releasing and asking again puts a writer behind those.
    """

    def __init__(self, database: Path, identity: forks.File | None) -> None:
        self._gate = os.open(f"{database}-gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._lock = os.open(f"{database}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        forks.stay_here(self, lambda self: (self._gate, self._lock), identity)

    def __enter__(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        forks.forget(self)
        os.close(self._gate)
        os.close(self._lock)
