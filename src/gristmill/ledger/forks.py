"""What a forked process has of its parent's, and must not use: connections, and locks on files.

What it said on a connection would be said in its parent's name, and whoever reads first would have the answer. A lock would
be held for as long as the last of both lives.

SQLite notes for all connections of a process together which locks that has on a file. A fork has the notes, but not the
locks: what it wrote could be lost, since others see nobody there. So no file of SQLite's is open while a process is forked;
one that is (somebody was in a transaction) is refused in the fork.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

File = tuple[int, int]  # its device and its number there


class Pool(Protocol):
    def close_idle(self) -> None:
        """A fork is about to be made: what it could not use is closed, if nobody is at it."""

    def leave_behind(self) -> None:
        """From now on connections are made anew."""


class _Held(NamedTuple):
    files: Callable[[Any], Iterable[int]]
    database: File | None


_held: weakref.WeakKeyDictionary[Any, _Held] = weakref.WeakKeyDictionary()
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_parents: set[File] = set()  # databases that were open when this process was forked


def stay_here(what: Any, files: Callable[[Any], Iterable[int]], database: File | None = None) -> None:
    """Another process shall not have the open files of this connection or lock, of this SQLite database."""
    _held[what] = _Held(files, database)


def is_parents(database: File | None) -> bool:
    """Was this process forked while it had that SQLite database open?"""
    return database in _parents


def forget(what: Any) -> None:
    """They are about to be closed."""
    _held.pop(what, None)


def start_anew(pool: Pool) -> None:
    _pools.add(pool)


def _forking() -> None:
    for pool in list(_pools):
        pool.close_idle()


def _forked() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for what, held in list(_held.items()):
        for file in held.files(what):
            os.dup2(nothing, file, inheritable=False)
        if held.database is not None:
            _parents.add(held.database)
    os.close(nothing)
    for pool in list(_pools):
        pool.leave_behind()


os.register_at_fork(before=_forking, after_in_child=_forked)


def number_of(file: Any) -> Iterable[int]:
    return () if file.closed else (file.fileno(),)


def socket_of(connection: Any) -> Iterable[int]:
    """Of one to PostgreSQL."""
    return () if connection.closed else (connection.pgconn.socket,)
