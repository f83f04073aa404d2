"""What a forked process has of its parent's, and must not use: connections, and locks on files.

What it said on a connection would be said in its parent's name, and whoever reads first would have the answer. A lock would
be held for as long as the last of both lives.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Pool(Protocol):
    def leave_behind(self) -> None:
        """From now on connections are made anew."""


_files: weakref.WeakKeyDictionary[Any, Callable[[Any], Iterable[int]]] = weakref.WeakKeyDictionary()
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def stay_here(what: Any, files: Callable[[Any], Iterable[int]]) -> None:
    """Another process shall not have the open files of this connection or lock."""
    _files[what] = files


def forget(what: Any) -> None:
    """They are about to be closed."""
    _files.pop(what, None)


def start_anew(pool: Pool) -> None:
    _pools.add(pool)


def _forked() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for what, files in list(_files.items()):
        for file in files(what):
            os.dup2(nothing, file, inheritable=False)
    os.close(nothing)
    for pool in list(_pools):
        pool.leave_behind()


os.register_at_fork(after_in_child=_forked)


def socket_of(connection: Any) -> Iterable[int]:
    """Of one to PostgreSQL."""
    return () if connection.closed else (connection.pgconn.socket,)
