"""The default delivery: LISTEN/NOTIFY on PostgreSQL, one named pipe per worker beside an SQLite file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from gristmill.delivery.protocol import ALL, ANYWHERE, Bell, Delivery, Doorbell, Heard, Seat
from gristmill.errors import Unavailable
from gristmill.ledger.engines import connect_defaults
from gristmill.ledger.store import Ledger
from gristmill.ledger.tx import Tx

CHANNEL = "gristmill"
_WHOLE = 65536  # bytes that a pipe holds
_ATOMIC = 4000  # bytes that a pipe takes whole, and that a notification holds


def database_delivery(ledger: Ledger) -> Delivery:
    return PipeDelivery(ledger.path) if ledger.is_sqlite else NotifyDelivery(ledger)


class PipeDelivery:
    """Every worker on an SQLite file has a FIFO in a folder beside it; ringing writes the queues' numbers into each."""

    name = "database"
    url: str | None = None

    def __init__(self, database: Path) -> None:
        self._folder = Path(f"{database}-bells")

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None:
        """SQLite has nothing that would ring at the commit itself."""

    def after_commit(self, queues: Iterable[int]) -> None:
        message = b"".join(b"%d\n" % queue for queue in queues)
        if len(message) > _ATOMIC:
            message = b"%d\n" % ALL
        with contextlib.suppress(OSError):  # it is committed: nothing that happens here may look like a failure
            for path in list(os.scandir(self._folder)):
                _ring(path.path, message)

    def notice(self, queue: int) -> None:
        """SQLite has none."""

    def ahead(self, queue: int) -> bool:
        self.after_commit((queue,))
        return True

    def bell(self, seat: Seat = ANYWHERE) -> Bell:
        return _PipeBell(self._folder)

    def close(self) -> None: ...


def _ring(path: str, message: bytes) -> None:
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nobody reads: its worker died without tidying up
            with contextlib.suppress(OSError):
                Path(path).unlink()
        return
    with contextlib.suppress(OSError):  # full: it is ringing already; or its worker left just now
        os.write(pipe, message)
    os.close(pipe)


class _PipeBell(Doorbell):
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / uuid4().hex
        # Made under another name first: a pipe that nobody reads yet would be taken for a dead worker's.
        hidden = folder.with_name(f"{folder.name}.{self._path.name}")
        os.mkfifo(hidden)
        self._pipe = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # RDWR: no end-of-file between rings
        hidden.rename(self._path)

    def fileno(self) -> int:
        return self._pipe

    def heard(self) -> Heard:
        rung = b""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe, _WHOLE):
                rung += data
                if len(data) < _WHOLE:  # to be told that there is no more costs as much as to read it
                    break
        return Heard(frozenset(map(int, rung.split())))

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._pipe)


class NotifyDelivery:
    """One NOTIFY per transaction that made jobs ready. It is part of the commit, so nobody hears of it too early."""

    name = "database"
    url: str | None = None

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None:
        payload = ",".join(f"{queue:d}" for queue in sorted(queues))
        tx.at_commit(f"NOTIFY {CHANNEL}, '{payload if len(payload) <= _ATOMIC else ALL}'")

    def after_commit(self, queues: Iterable[int]) -> None:
        """Rung with the commit."""

    def notice(self, queue: int) -> tuple[str, str]:
        return CHANNEL, f"{queue:d}"

    def ahead(self, queue: int) -> bool:
        return False  # there is no turn that who hears it would wait for

    def bell(self, seat: Seat = ANYWHERE) -> Bell:
        return _NotifyBell(self._ledger)

    def close(self) -> None: ...


class _NotifyBell(Doorbell):
    def __init__(self, ledger: Ledger) -> None:
        import psycopg

        self._error = psycopg.Error
        # A connection of its own, outside the pool: it must not be handed to anyone else.
        arguments, options = ledger.engine.dialect.create_connect_args(ledger.url)
        try:
            how: dict[str, Any] = {**options, **connect_defaults(ledger.url)}
            self._connection: Any = psycopg.connect(*arguments, **how, autocommit=True)
            self._connection.execute(f"LISTEN {CHANNEL}")
            self._number: int = self._connection.fileno()  # a connection that is lost does not tell it any more
        except psycopg.Error as error:
            raise Unavailable(f"cannot listen for work: {error}") from error

    def fileno(self) -> int:
        return self._number

    def heard(self) -> Heard:
        try:
            link = self._connection.pgconn  # `notifies(timeout=0)` does the same, and more, in five times the time
            link.consume_input()
            notices = [notice.extra for notice in iter(link.notifies, None)]
            try:
                return Heard(frozenset(int(queue) for notice in notices for queue in notice.split(b",")))
            except ValueError:  # somebody else's; beside it there may have been one of ours
                return Heard(frozenset({ALL}))
        except self._error as error:
            raise Unavailable(f"the connection that listens for work is gone: {error}") from error

    def close(self) -> None:
        self._connection.close()
