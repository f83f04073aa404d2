"""What a delivery must offer. It fits on a screen, on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from gristmill.ledger.tx import Tx

ALL = 0  # rung instead of a queue's number: in any queue


class Heard(NamedTuple):
    """What rang: queues that have ready jobs; and, where a delivery carries jobs by name, which ones it offers."""

    queues: frozenset[int] = frozenset()
    jobs: tuple[int, ...] = ()


class Seat(NamedTuple):
    """What a worker says about itself when it takes a bell."""

    queues: Sequence[str] = ()  # none: all
    by_name: bool = True  # False: it looks for itself, and wants no offers


ANYWHERE = Seat()


class Bell(Protocol):
    """A worker's end: something to select on. It is never the only way: every worker polls the ledger too."""

    feeds: bool  # jobs come by name just now: the worker waits for offers, and polls only as a net

    def fileno(self) -> int:
        """Readable when someone rang."""
        ...

    def heard(self) -> Heard:
        """Takes all the ringing there is, so that `fileno` is quiet again.

        Raises Unavailable when the bell broke.
        """
        ...

    def want(self, jobs: int) -> None:
        """So many more jobs could be taken here now."""
        ...

    def done(self, jobs: Iterable[int]) -> None:
        """Offered jobs that have ended here, or were not to be had."""
        ...

    def close(self) -> None: ...

    def say_goodbye(self) -> None:
        """Of a closed one: waits a moment until nobody is shown as listening who does not any more."""
        ...


class Delivery(Protocol):
    """Rings for queues that got ready jobs (`Announcer`), and hands out bells."""

    name: str
    url: str | None  # of its server, password and all; with the name, enough to make the same one in another process

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None: ...
    def after_commit(self, queues: Iterable[int]) -> None: ...
    def notice(self, queue: int) -> tuple[str, str] | None: ...
    def ahead(self, queue: int) -> bool: ...
    def bell(self, seat: Seat = ANYWHERE) -> Bell: ...
    def close(self) -> None: ...


class Doorbell:
    """What bells that offer no jobs by name have in common."""

    feeds = False

    def want(self, jobs: int) -> None: ...
    def done(self, jobs: Iterable[int]) -> None: ...
    def say_goodbye(self) -> None: ...
