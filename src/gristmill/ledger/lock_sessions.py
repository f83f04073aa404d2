"""Asking for a named lock, holding it, giving it back: a session of PostgreSQL's own for each, or a row on SQLite.

Nothing here waits for a lock: who asks is told when to look again. One thread asks, and another may watch.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Any, Protocol

from gristmill.clock import SECOND
from gristmill.errors import DatabaseError, Unavailable
from gristmill.identity import born
from gristmill.ledger import forks, locks
from gristmill.ledger.engines import connect_defaults, shown
from gristmill.ledger.locks import LockKey, Who
from gristmill.ledger.store import Ledger
from gristmill.ledger.tx import Tx

_SNAPSHOT_FOR = 300.0  # seconds after which one that waits asks anew: its statement keeps dead rows from being vacuumed
_KEEP_IDLE = 10  # sessions that are kept for the next lock, and
_IDLE_FOR = 5.0  # for so many seconds: a connection costs a process of the server, and 5 ms to make


class Session(Protocol):
    """One request for one lock."""

    token: int | None  # once it is held: it only grows, for each resource

    def ask(self) -> None:
        """Gets in line."""

    def poll(self) -> bool:
        """Is it held now?"""

    def wait(self, seconds: float) -> None:
        """Sleeps until it may be, but not longer."""

    def fileno(self) -> int | None:
        """What to watch while it waits, and while it is held; None: nothing would be heard there."""

    def still_held(self) -> bool:
        """False: it is lost. Called about once a second."""

    def holds(self, tx: Tx) -> bool:
        """Is it still held, in a transaction that wants to rely on that?"""

    def release(self) -> bool:
        """Gives it back, or gives up; False: it was held, and had been lost before."""


class Rows:
    """Locks on SQLite."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.pid = os.getpid()
        self.born = born(self.pid) or ""

    def session(self, key: LockKey, who: Who) -> Session:
        return _Row(self, key, who)

    def close_idle(self, all_of_them: bool = False) -> bool:
        return False


class _Row:
    def __init__(self, rows: Rows, key: LockKey, who: Who) -> None:
        self.token: int | None = None
        self._rows, self._ledger = rows, rows.ledger
        self._key, self._who = key, who
        self._number: int | None = None
        self._pause = 0.005
        self._renew_at = 0.0

    def ask(self) -> None:
        self._number = self._ledger.do(locks.ask, self._key, self._who, self._rows.pid, self._rows.born)
        self._renew_at = time.time() + locks.WAIT_FOR / SECOND / 4

    def poll(self) -> bool:
        assert self._number is not None
        if self._ledger.glance(locks.may_take, self._key, self._number):
            taken = self._ledger.do(locks.take, self._key, self._number)
            if taken:
                self.token = self._number
                self._renew_at = time.time() + locks.HOLD_FOR / SECOND / 4
                return True
            if taken is None:  # this process was frozen, or its host asleep: it starts again at the end of the line
                self.ask()
        elif time.time() > self._renew_at:
            self._renew_at = time.time() + locks.WAIT_FOR / SECOND / 4
            self._ledger.do(locks.renew, self._number, self._rows.born, locks.WAIT_FOR)
        return False

    def wait(self, seconds: float) -> None:
        self._pause = min(self._pause * 1.5, 0.2)
        time.sleep(min(seconds, self._pause))

    def fileno(self) -> int | None:
        return None

    def still_held(self) -> bool:
        assert self._number is not None
        if time.time() < self._renew_at:  # not the monotonic clock: that may stand still while a host sleeps
            return True
        self._renew_at = time.time() + locks.HOLD_FOR / SECOND / 4
        return self._ledger.do(locks.renew, self._number, self._rows.born, locks.HOLD_FOR)

    def holds(self, tx: Tx) -> bool:
        return self._number is not None and locks.holds_row(tx, self._number, self._rows.born)

    def release(self) -> bool:
        number, self._number = self._number, None
        return number is None or self._ledger.do(locks.release, number, self._rows.born) or self.token is None


class Sessions:
    """Locks on PostgreSQL: a few sessions are kept for the next ones."""

    def __init__(self, ledger: Ledger) -> None:
        import psycopg

        self.ledger = ledger
        self.error = psycopg.Error
        self._idle: list[tuple[float, Any]] = []
        self._mutex = threading.Lock()

    def session(self, key: LockKey, who: Who) -> Session:
        return _Advisory(self, key, who)

    def connect(self) -> Any:
        """A session that nobody else has: a commit elsewhere must not hand it on, and those who wait need theirs."""
        import psycopg

        with self._mutex:
            while self._idle:
                connection = self._idle.pop()[1]
                if not _readable(connection):  # or the server has hung up meanwhile
                    return connection
                connection.close()
        url = self.ledger.url
        arguments, options = self.ledger.engine.dialect.create_connect_args(url)
        try:
            connection = psycopg.connect(*arguments, **{**options, **connect_defaults(url)}, autocommit=True)
            forks.stay_here(connection, forks.socket_of)
            try:
                connection.execute(_SETTINGS)
            except psycopg.DataError:  # one of them is not for the server's system
                for name, value in _WANTED.items():
                    with contextlib.suppress(psycopg.DataError, psycopg.ProgrammingError):
                        connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        except psycopg.Error as error:
            raise self.explained(error) from error
        return connection

    def keep(self, connection: Any) -> None:
        with self._mutex:
            if len(self._idle) < _KEEP_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def close_idle(self, all_of_them: bool = False) -> bool:
        """Closes what was not used for a while; says whether any are left."""
        until = time.monotonic() - (-1 if all_of_them else _IDLE_FOR)
        with self._mutex:
            old = [connection for since, connection in self._idle if since < until]
            self._idle = [idle for idle in self._idle if idle[0] >= until]
        for connection in old:
            connection.close()
        return bool(self._idle)

    def explained(self, error: Exception) -> DatabaseError:
        said = str(error).strip().splitlines()
        return Unavailable(f"the database {shown(self.ledger.url)}: {said[0] if said else type(error).__name__}")


# Nothing may end the session of one who waits, or holds for long; but one whose host is gone must not be kept for hours
# (keepalives), nor get the lock when its turn comes (the check while it waits). Settings that an older server lacks are
# left out.
_WANTED = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_connection_check_interval": "1s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10s",
}
_SETTINGS = (
    "SELECT set_config(f.name, f.setting, false) FROM (VALUES "
    + ", ".join(f"('{name}', '{value}')" for name, value in _WANTED.items())
    + ") AS f(name, setting) JOIN pg_settings s ON s.name = f.name"
)
# In this order: the name says since when, and the token is drawn, once the lock is held.
_LOCK = (
    b"SELECT pg_advisory_lock($1::int, $2::int), set_config('application_name',"
    b" left($3::text || extract(epoch FROM clock_timestamp())::bigint || ' ' || $4::text, 63), false),"
    b" nextval('gm_line'), pg_backend_pid()"
)
_NAME = (
    b"SELECT since, set_config('application_name', left($1::text || since || ' ' || $2::text, 63), false)"
    b" FROM (SELECT coalesce($3::text, extract(epoch FROM clock_timestamp())::bigint::text) AS since) AS asked"
)
_UNLOCK = b"SELECT pg_advisory_unlock($1::int, $2::int)"
_RENAME = b"SELECT set_config('application_name', $1::text, false)"


class _Advisory:
    def __init__(self, sessions: Sessions, key: LockKey, who: Who) -> None:
        self.token: int | None = None
        self._sessions = sessions
        self._key, self._who = key, who
        self._connection: Any = None
        self._pid = 0
        self._since: bytes | None = None  # when it was first asked for, by the server's clock
        self._again_at = 0.0
        self._mutex = threading.RLock()

    def ask(self) -> None:
        with self._mutex:
            self._connection = self._sessions.connect()
            whose, what = locks.label(self._who, self._key.name)
            with self._driving() as pgconn:
                self._since = self._only_row(pgconn.exec_params(_NAME, [whose, what, self._since])).get_value(0, 0)
                pgconn.send_query_params(_LOCK, [*self._numbers, whose, what])
                pgconn.flush()
            self._again_at = time.monotonic() + _SNAPSHOT_FOR

    @property
    def _numbers(self) -> list[bytes]:
        return [str(self._key.kind).encode(), str(self._key.object).encode()]

    def poll(self) -> bool:
        with self._mutex, self._driving() as pgconn:
            pgconn.consume_input()
            if pgconn.is_busy():
                if time.monotonic() > self._again_at:
                    self.release()
                    self.ask()
                return False
            result = self._only_row(pgconn.get_result())
            while pgconn.get_result() is not None:
                pass
            self.token, self._pid = int(result.get_value(0, 2)), int(result.get_value(0, 3))
            return True

    def _only_row(self, result: Any) -> Any:
        if result is None or result.ntuples != 1:
            said: bytes = b"no answer" if result is None else result.error_message
            raise self._sessions.error(said.decode("utf-8", "replace"))
        return result

    def wait(self, seconds: float) -> None:
        number = self.fileno()
        if number is None:
            time.sleep(seconds)
        else:
            heard(number, seconds)

    def fileno(self) -> int | None:
        with self._mutex:
            connection = self._connection
            return None if connection is None or connection.closed else connection.pgconn.socket

    def still_held(self) -> bool:
        with self._mutex:
            if self._connection is None or self._connection.closed:
                return False
            try:
                if _readable(self._connection):  # nothing is said to a session that asks nothing, but that it is over
                    self._connection.pgconn.consume_input()
                return not self._connection.closed
            except self._sessions.error:
                return False

    def holds(self, tx: Tx) -> bool:
        return locks.holds_session(tx, self._key, self._pid)

    def release(self) -> bool:
        with self._mutex:
            connection, self._connection = self._connection, None
            if connection is None:
                return self.token is None
            if self.token is None:  # it may still be waiting: the server must not give it the lock
                self._give_up(connection)
                return True
            try:
                found = connection.pgconn.exec_params(_UNLOCK, self._numbers)
                if found.ntuples == 1 and found.get_value(0, 0) == b"t":
                    connection.pgconn.exec_params(_RENAME, [b"gristmill locks"])
                    self._sessions.keep(connection)
                    return True
            except self._sessions.error:
                pass
            connection.close()  # a session of which it is not certain that it holds nothing is nobody's
            return False

    def _give_up(self, connection: Any) -> None:
        with contextlib.suppress(self._sessions.error, OSError):
            connection.cancel()
        connection.close()

    @contextlib.contextmanager
    def _driving(self) -> Any:
        try:
            if self._connection is None:
                raise self._sessions.error("the connection is gone")
            yield self._connection.pgconn
        except self._sessions.error as error:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            raise self._sessions.explained(error) from error


def _readable(connection: Any) -> bool:
    if connection.closed:
        return True
    return heard(connection.pgconn.socket, 0)


def heard(number: int, seconds: float) -> bool:
    """Is there something to read, within some seconds? (`select` cannot do this for numbers above 1023.)"""
    watching = select.poll()
    watching.register(number, select.POLLIN)
    return bool(watching.poll(seconds * 1000))
