"""The connection that verbs have one after the other. To give it back to the pool and have it again would take longer than
a short statement does."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

from gristmill.ledger import forks
from gristmill.ledger.engines import is_current

_parents: list[Any] = []  # connections that are never used here; SQLite minds that somebody else closes them
_IDLE = 0  # what libpq says of a connection outside of a transaction


class Kept:
    """One connection of a pool, if nobody has it just now; those who find none have another, for that once.

    On it each statement is for itself until one says BEGIN. The driver would say so before the first one.
    """

    def __init__(self, engine: Engine, connect: Callable[[], Connection]) -> None:
        self._engine, self._connect = engine, connect
        self._kept: list[Connection] = []
        event.listen(engine, "engine_disposed", self._lose)
        forks.start_anew(self)

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        connection = self._had() or self._new()
        try:
            yield connection
        finally:
            if self._kept or not _is_clean(connection):
                _give_back(connection)
            else:
                self._kept.append(connection)

    def let_go(self) -> None:
        """The pool has it again."""
        while (connection := self._taken()) is not None:
            _give_back(connection)

    def close_idle(self) -> None:
        """Before this process is forked: SQLite's are of no use there, and would do harm."""
        if self._engine.dialect.name == "sqlite":
            self._engine.dispose()

    def leave_behind(self) -> None:
        """This process was forked: all there is belongs to its parent, and is not even closed here."""
        _parents.append((self._engine.pool, self._kept))
        self._kept = []
        self._engine.dispose(close=False)

    def _taken(self) -> Connection | None:
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def _had(self) -> Connection | None:
        connection = self._taken()
        if connection is None or (is_current(connection) and _is_open(connection)):
            return connection
        connection.invalidate()
        connection.close()
        return None

    def _new(self) -> Connection:
        connection = self._connect()
        if connection.dialect.name == "postgresql":
            _driver(connection).autocommit = True
        return connection

    def _lose(self, engine: Engine) -> None:
        """Somebody has closed all that the pool has."""
        while (connection := self._taken()) is not None:
            connection.invalidate()
            connection.close()


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _is_clean(connection: Connection) -> bool:
    """Can it be used again as it is: is it whole, and outside of any transaction?"""
    if connection.invalidated:
        return False
    driver = _driver(connection)
    if connection.dialect.name == "sqlite":
        return not driver.in_transaction
    return bool(driver.pgconn.transaction_status == _IDLE)


def _is_open(connection: Connection) -> bool:
    """Has PostgreSQL not ended it since? Better known before something is sent: who knows what became of that?"""
    if connection.dialect.name == "sqlite":
        return True
    link, heard = _driver(connection).pgconn, select.poll()
    try:
        heard.register(link.socket, select.POLLIN)
        while heard.poll(0):  # first it says why
            link.consume_input()
    except connection.dialect.loaded_dbapi.Error:
        return False
    return True


def _give_back(connection: Connection) -> None:
    """As it was: whoever has it next must not write without a transaction."""
    if not connection.invalidated and connection.dialect.name == "postgresql":
        driver = _driver(connection)
        try:
            driver.rollback()
            driver.autocommit = False
        except connection.dialect.loaded_dbapi.Error:
            connection.invalidate()
    connection.close()
