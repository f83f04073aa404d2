"""A database is built aside, checked, and renamed into place: whoever opens it finds the old one or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from clerk import storage
from clerk.errors import ClerkError, Critical

_CACHE_KIB = 32 * 1024
_NOBODY_CAN_WRITE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


@contextlib.contextmanager
def building(path: Path) -> Iterator[None]:
    """Whoever changes `path` holds this lock, so that every other `….tmp-*` is of a dead process, and goes."""
    with storage.locked(path.with_name(f".{path.name}.lock")), _understood(path):
        for left_over in path.parent.glob(f"{path.name}.tmp-*"):
            left_over.unlink(missing_ok=True)
        yield


@contextlib.contextmanager
def replacing(
    path: Path,
    run: int,
    check: Callable[[sqlite3.Connection], None],
    *,
    begin_with: Path | None = None,
    backup: bool = False,
) -> Iterator[sqlite3.Connection]:
    """A database to fill, within `building`; at the end of the block it is checked and becomes `path`, at once."""
    aside = path.with_name(f"{path.name}.tmp-{run}")
    try:
        if begin_with is not None:
            shutil.copyfile(begin_with, aside)
        with contextlib.closing(_opened(aside)) as db:
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")
            check(db)
        aside.chmod(0o644)
        storage.sync(aside)
        if backup:
            _back_up(path)
        aside.replace(path)
        storage.sync(path.parent)
    finally:
        for left in (aside, aside.with_name(aside.name + "-journal")):
            left.unlink(missing_ok=True)


def read_only(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _opened(aside: Path) -> sqlite3.Connection:
    """Without journal and without waiting for the disk: what is interrupted is thrown away, never repaired."""
    db = sqlite3.connect(aside.absolute().as_uri(), isolation_level=None, uri=True)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", f"cache_size = -{_CACHE_KIB}"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    return db


def _back_up(path: Path) -> None:
    """The present one also gets the name `.bk`; it keeps its own until the new one takes that."""
    second_name = path.with_name(f"{path.name}.tmp-bk")
    try:
        os.link(path, second_name)
    except FileNotFoundError:
        return  # the first build
    except OSError:  # a file system without hard links
        shutil.copyfile(path, second_name)
    second_name.replace(path.with_name(path.name + ".bk"))
    second_name.unlink(missing_ok=True)  # a rename between two names of one file does nothing


@contextlib.contextmanager
def _understood(path: Path) -> Iterator[None]:
    with storage.critical_if_nobody_can():
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOBODY_CAN_WRITE:
                raise Critical(f"the storage cannot be written: {error} while {path} was built") from error
            raise ClerkError(f"{path} could not be built: {error}; what was there stays") from error
