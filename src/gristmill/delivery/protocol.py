"""What a delivery must offer. It fits on a screen, on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gristmill.ledger.tx import Tx

ALL = 0  # rung instead of a queue's number: in any queue


class Bell(Protocol):
    """A worker's end: something to select on."""

    def fileno(self) -> int:
        """Readable when someone rang."""
        ...

    def heard(self) -> set[int]:
        """Takes all the ringing there is, so that `fileno` is quiet again; says for which queues it was.

        Raises Unavailable when the bell broke.
        """
        ...

    def close(self) -> None: ...


class Delivery(Protocol):
    """Rings for queues that got ready jobs (`Announcer`), and hands out bells."""

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None: ...
    def after_commit(self, queues: Iterable[int]) -> None: ...
    def bell(self) -> Bell: ...
