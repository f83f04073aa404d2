"""One transaction: what the verbs are written against.

Statements go straight to the driver. SQLAlchemy describes the tables, migrates them and keeps the connections; but each
statement that goes through it costs more than the database takes for it.
"""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import Connection, exc, text

from gristmill.errors import Invalid, quoted
from gristmill.ledger.notes import Notes
from gristmill.ledger.sql import Sql
from gristmill.rollup import Done

_TOGETHER = 50  # rows of one INSERT
DELAYED = -1  # rung instead of a queue's number: the time of the next delayed job may have changed


class Tx:
    """A transaction on a connection, and what it will ring for."""

    def __init__(self, connection: Connection, now: int | None) -> None:
        self.connection = connection
        self.dialect = connection.dialect.name
        self.now = now
        self.rung: set[int] = set()
        self.notes = Notes()  # what those who follow will be told
        self.done = Done()  # what is counted in this minute
        self._no_limits()
        self._driver: Any = connection.connection.driver_connection
        self._at_commit = ""

    def _no_limits(self) -> None:
        self.freed: dict[int, bool | None] = {}  # jobs that are over, perhaps of a limit; and if that tells: well or not
        self.poked: set[int] = set()  # limits of which something may go on
        self.buckets: dict[int, Any] = {}  # what is left of the rates of queues that were looked at
        self.due: int | None = None  # microseconds until a limit lets something go on by itself

    def free(self, jobs: Iterable[int], well: bool | None = None) -> None:
        """Says that jobs are over for now. If they have limits, others go on at the end of this transaction."""
        self.freed.update(dict.fromkeys(jobs, well))

    def poke(self, limit: int | None) -> None:
        """Says that a job waits for this limit (None: it has none), or may now."""
        if limit is not None:
            self.poked.add(limit)

    def due_in(self, microseconds: int) -> None:
        self.due = microseconds if self.due is None else min(self.due, microseconds)

    def execute(self, sql: Sql, **given: Any) -> Any:
        """The driver's cursor."""
        compiled = sql.compiled(self.dialect)
        if compiled.needs_now:
            given["now"] = self.now
        return self._drive(self._driver.execute, compiled.sql, compiled.parameters(given))

    def all(self, sql: Sql, **given: Any) -> list[Any]:
        """Rows, whose columns are attributes too."""
        cursor = self.execute(sql, **given)
        make = _row_type(_columns(cursor))._make
        return list(map(make, self._drive(cursor.fetchall)))

    def tuples(self, sql: Sql, **given: Any) -> list[tuple[Any, ...]]:
        """The rows as the driver gives them: for statements that read thousands."""
        rows: list[tuple[Any, ...]] = self._drive(self.execute(sql, **given).fetchall)
        return rows

    def one(self, sql: Sql, **given: Any) -> Any:
        """The first row; None if there is none."""
        return next(iter(self.all(sql, **given)), None)

    def value(self, sql: Sql, **given: Any) -> Any:
        """The first value of the first row; None if there is none."""
        rows = self.tuples(sql, **given)
        return rows[0][0] if rows else None

    def run(self, sql: Sql, **given: Any) -> int:
        """Executes, and says how many rows changed."""
        count: int = self.execute(sql, **given).rowcount
        return count

    def script(self, statements: str) -> None:
        """Statements without parameters, as they stand."""
        self._drive(self._driver.execute, statements)

    def by_key(self) -> None:
        """For a reading transaction that walks a key in pages: PostgreSQL would rather read the whole table for each."""
        if self.dialect == "postgresql":
            self.script("SET LOCAL enable_seqscan = off")

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """For statements of a transaction that walk along an index: PostgreSQL, where it does not know how many there are,
        would read all and sort them."""
        if self.dialect == "postgresql":
            self.script("SET LOCAL enable_sort = off")
        yield
        if self.dialect == "postgresql":
            self.script("SET LOCAL enable_sort = on")

    def run_many(self, sql: str, rows: Sequence[Any]) -> int:
        """The same statement for each row, in the driver's own loop; says how many rows changed in all."""
        cursor = self._driver.cursor()
        self._drive(cursor.executemany, sql, rows)
        count: int = cursor.rowcount
        return count

    def add_alike(
        self, table: str, alike: Mapping[str, int], columns: Sequence[str], rows: Sequence[Sequence[str | int | None]]
    ) -> None:
        """Adds rows that differ in a few columns only, the fastest way that there is."""
        names = ", ".join([*alike, *columns])
        values = [str(int(value)) for value in alike.values()]
        if self.dialect == "sqlite":
            self._insert(f"INSERT INTO {table} ({names})", ", ".join(values), len(columns), rows)
        else:
            lines = ["\t".join((*values, *map(_copied, row))) for row in rows]
            self.copy(table, names, ["\n".join(lines)])

    def _insert(self, into: str, alike: str, columns: int, rows: Sequence[Sequence[str | int | None]]) -> None:
        """SQLite: to begin and end a statement costs as much as its row, so most share one with others."""
        row = f"({', '.join('?' * columns)})"
        named = ", ".join(f"column{n}" for n in range(1, columns + 1))
        many = f"{into} SELECT {alike}, {named} FROM (VALUES {', '.join([row] * _TOGETHER)})"
        whole = len(rows) - len(rows) % _TOGETHER
        self.run_many(many, [list(chain.from_iterable(rows[n : n + _TOGETHER])) for n in range(0, whole, _TOGETHER)])
        self.run_many(f"{into} SELECT {alike}, {named} FROM (VALUES {row})", rows[whole:])

    def add_stream(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        """PostgreSQL: adds rows as they come, in constant memory."""

        def copy(sql: str) -> None:
            with self._driver.cursor() as cursor, cursor.copy(sql) as into:
                for row in rows:
                    into.write_row(row)

        self._drive(copy, f"COPY {table} ({columns}) FROM STDIN")

    def pages(self, sql: str, most: int = 2000) -> Iterator[list[tuple[Any, ...]]]:
        """PostgreSQL: the rows of a statement without parameters, so many at a time, in constant memory."""
        with self._driver.cursor("gm_pages") as cursor:
            self._drive(cursor.execute, sql)
            while rows := self._drive(cursor.fetchmany, most):
                yield rows

    def copy(self, table: str, columns: str, texts: Iterable[str]) -> None:
        """PostgreSQL: adds rows from texts as COPY reads them, which it does while the next text is made."""
        theirs: list[Exception] = []

        def made() -> Iterator[str]:
            try:
                yield from texts
            except Exception as error:  # of who makes them, even if it looks like one of the driver's
                theirs.append(error)

        def write(sql: str) -> None:
            with self._driver.cursor() as cursor, cursor.copy(sql) as copy:
                for written in made():
                    copy.write(written)

        self._drive(write, f"COPY {table} ({columns}) FROM STDIN")
        if theirs:
            raise theirs[0]

    def ring(self, queue: int, delayed: bool = False) -> None:
        """Says that this queue has ready jobs once this transaction commits, or that there is a delayed one to wait for."""
        self.rung.add(DELAYED if delayed else queue)

    def begin(self) -> None:
        """From here to `commit`. (On SQLite nobody else writes meanwhile.)"""
        self.script("BEGIN IMMEDIATE" if self.dialect == "sqlite" else "BEGIN")

    def at_commit(self, statement: str) -> None:
        """A statement without parameters that goes along with the commit: a round trip less."""
        self._at_commit += f"{statement}; "

    def commit(self) -> None:
        if self._at_commit:
            self.script(f"{self._at_commit}COMMIT")
        else:
            self._drive(self._driver.commit)

    def rollback(self) -> None:
        with contextlib.suppress(exc.DBAPIError):
            self._drive(self._driver.rollback)

    def _drive(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls the driver; what it raises becomes what SQLAlchemy would have raised."""
        dialect = self.connection.dialect
        try:
            return call(*args)
        except UnicodeEncodeError as error:  # half a character: what the caller gave is no text
            raise Invalid(f"{quoted(error.object)} holds a character that no database can") from None
        except dialect.loaded_dbapi.Error as error:
            gone = dialect.is_disconnect(error, self._driver, None)
            if gone and not self.connection.invalidated:
                self.connection.invalidate(error)
            base = dialect.loaded_dbapi.Error
            statement = args[0] if args and isinstance(args[0], str) else None
            raise exc.DBAPIError.instance(
                statement, None, error, base, connection_invalidated=gone, dialect=dialect
            ) from error


class GuestTx(Tx):
    """A caller's own transaction, on whatever driver it has: statements go through SQLAlchemy. The caller commits it."""

    def __init__(self, connection: Connection, now: int | None) -> None:
        self.connection = connection
        self.dialect = connection.dialect.name
        self.now = now
        self.rung = set()
        self.notes = Notes()
        self.done = Done()
        self._no_limits()

    def execute(self, sql: Sql, **given: Any) -> Any:
        compiled = sql.compiled(self.dialect)
        if compiled.needs_now:
            given["now"] = self.now
        return self.connection.execute(text(compiled.named), compiled.parameters(given))

    def script(self, statements: str) -> None:
        self.connection.exec_driver_sql(statements, execution_options={"no_parameters": True})

    def all(self, sql: Sql, **given: Any) -> list[Any]:
        rows: list[Any] = self.execute(sql, **given).all()
        return rows

    def tuples(self, sql: Sql, **given: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.all(sql, **given)]

    def at_commit(self, statement: str) -> None:
        self.connection.exec_driver_sql(statement)


def _columns(cursor: Any) -> tuple[str | bytes, ...]:
    """Their names. (psycopg's `description` makes an object of each: a tenth of the time of a short answer.)"""
    result = getattr(cursor, "pgresult", None)
    if result is None:
        return tuple(column[0] for column in cursor.description)
    return tuple([result.fname(n) for n in range(result.nfields)])


@lru_cache(maxsize=500)
def _row_type(names: tuple[str | bytes, ...]) -> Any:
    return namedtuple("Row", [name.decode() if isinstance(name, bytes) else name for name in names], rename=True)


_COPY_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def _copied(value: str | int | None) -> str:
    """A value as COPY reads it."""
    return r"\N" if value is None else str(value).translate(_COPY_ESCAPES)
