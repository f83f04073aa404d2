"""The database behind the ledger: connections, and how a verb becomes exactly one transaction.

`Ledger.do(verb, …)` is the one place that begins, commits, retries after a deadlock, and finds out what became of a
commit whose answer was lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection, exc
from sqlalchemy.engine import URL

from gristmill.clock import Clock
from gristmill.errors import DatabaseError, Invalid, SchemaMismatch, Unavailable
from gristmill.ledger import commits, forks, last
from gristmill.ledger.columns import REVISION, VERSION_TABLE
from gristmill.ledger.engines import is_current, parse_url, postgres_engine, shown, sqlite_engine
from gristmill.ledger.kept import Kept
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import DELAYED, GuestTx, Tx

__all__ = ["DELAYED", "Ledger", "Tx", "repeatable"]  # and what is defined here
P = ParamSpec("P")
T = TypeVar("T")

_DEADLOCK = ("40P01", "40001")
_REFUSES = ("25006", "42501")  # takes no writes (a standby, after a failover), or no longer from this role: it may again
_RESOLVE_FOR = 10.0  # seconds to wait for a database that went away during a commit, before saying "unclear"


class Announcer(Protocol):
    """Told about queues that got ready jobs, so that it can wake workers."""

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None: ...
    def after_commit(self, queues: Iterable[int]) -> None: ...
    def notice(self, queue: int) -> tuple[str, str] | None:
        """Instead of both, channel and payload that a statement may notify by itself; None: that would not do."""

    def ahead(self, queue: int) -> bool:
        """Instead of both, rings for what is about to be written, where who hears it waits for that; False: it cannot."""


_V = TypeVar("_V", bound=Callable[..., Any])


def repeatable(verb: _V) -> _V:
    """Marks a verb that may run twice without harm: nobody has to find out what became of a lost commit."""
    verb.repeatable = True  # type: ignore[attr-defined]
    return verb


class Ledger:
    """A database that holds a ledger."""

    def __init__(self, url: str | URL, clock: Clock | None = None) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.clock = clock
        self.announcer: Announcer | None = None
        self._writing = threading.local()  # `here`: this thread has SQLite's turn to write
        self.engine = sqlite_engine(self.url) if self.is_sqlite else postgres_engine(self.url)
        self._kept = Kept(self.engine, self._connect)

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return Path(str(self.url.database)).absolute()

    @property
    def absolute_url(self) -> str:
        """The URL, password and all, good in any folder."""
        url = self.url.set(database=str(self.path)) if self.is_sqlite else self.url
        return url.render_as_string(hide_password=False)

    def close(self) -> None:
        self._kept.let_go()
        self.engine.dispose()

    def now(self) -> int | None:
        """The test's time, or SQLite's (this host's); None lets PostgreSQL's own clock decide."""
        if self.clock is not None:
            return self.clock()
        return time.time_ns() // 1000 if self.is_sqlite else None

    def do(self, verb: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs one verb in one transaction, and returns once it is known to be committed."""
        for attempt in range(20):
            try:
                return self._once(None, verb, *args, **kwargs)
            except exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _DEADLOCK:
                    raise _explained(error, self.url) from error
                time.sleep(0.002 * attempt)
        raise Unavailable(f"{shown(self.url)}: the database chose this transaction as a deadlock victim 20 times")

    def foretold(self, queue: int, verb: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same on SQLite, for a verb that makes jobs of one queue ready: workers wake up while it is at it. They do not
        look before it has committed: what they look at, they look at in their turn."""
        try:
            return self._once(queue, verb, *args, **kwargs)
        except exc.DBAPIError as error:
            raise _explained(error, self.url) from error

    def _once(self, queue: int | None, verb: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`queue`: that will have ready jobs, if nothing goes wrong."""
        with self._kept.lent() as connection, self._turn(connection):
            told = queue is not None and self.announcer is not None and self.announcer.ahead(queue)
            tx = Tx(connection, self.now())
            try:
                tx.begin()
                result = verb(tx, *args, **kwargs)
                last.settle(tx)
                if tx.rung and self.announcer:
                    self.announcer.before_commit(tx, tx.rung)
                repeatable = self.is_sqlite or getattr(verb, "repeatable", False)
                mark = None if repeatable else commits.mark(tx)
                self._check_current(connection)
            except BaseException:
                tx.rollback()
                raise
            try:
                tx.commit()
            except exc.DBAPIError as error:
                if mark is None or not (error.connection_invalidated and self.insist(commits.is_committed, mark)):
                    tx.rollback()
                    raise
            self._check_current(connection)
        if tx.rung and self.announcer and not told:
            self.announcer.after_commit(tx.rung)
        return result

    def at_once(
        self, verb: Callable[Concatenate[Tx, commits.Mark, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[commits.Mark, T | None]:
        """Runs a verb of one statement, which leaves its mark and rings by itself: one round trip instead of three. None:
        it is committed, but what it said got lost."""
        with self._kept.lent() as connection:
            tx = Tx(connection, self.now())
            made = commits.next_mark(tx)
            try:
                return made, verb(tx, made, *args, **kwargs)
            except exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise _explained(error, self.url) from error
                lost = error
        if not self.insist(commits.is_committed, made):
            raise _explained(lost, self.url) from lost
        return made, None

    def join(self, connection: Connection, verb: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs one verb in the caller's transaction: it takes effect if and when that commits. One that raises has done
        nothing, also for a caller who goes on and commits."""
        tx = GuestTx(connection, self.now())
        try:
            with connection.begin_nested():
                result = verb(tx, *args, **kwargs)
                last.settle_guest(tx)
                if tx.rung and self.announcer:
                    self.announcer.before_commit(tx, tx.rung)
        except exc.DBAPIError as error:
            raise _explained(error, self.url) from error
        if _RUNG in connection.info:
            connection.info[_RUNG] |= tx.rung
        return result

    def check_guest(self, connection: Connection) -> None:
        """Refuses a connection whose transaction cannot hold this ledger's rows."""
        if connection.dialect.name != self.engine.dialect.name:
            raise Invalid(f"the connection is to {connection.dialect.name}, the ledger is {shown(self.url)}")
        if self.is_sqlite and connection.engine is not self.engine:
            raise Invalid("on SQLite, the connection must come from `with mill.transaction() as connection:`")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction for an application's own tables and for `join`; it commits at the end of the block."""
        with self._connected() as connection:
            connection.info[_RUNG] = set()
            with self._turn(connection):
                try:
                    if self.is_sqlite:
                        connection.exec_driver_sql("BEGIN IMMEDIATE")
                    yield connection
                    self._check_current(connection)
                    connection.commit()
                    self._check_current(connection)
                except exc.DBAPIError as error:
                    raise _explained(error, self.url) from error
                finally:
                    _rollback(connection)
            rung: set[int] = connection.info.pop(_RUNG)
        if rung and self.announcer:
            self.announcer.after_commit(rung)

    def _check_current(self, connection: Connection) -> None:
        """Before a commit and after it: what is written is where others look for it."""
        if not is_current(connection):
            raise Unavailable(
                f"{shown(self.url)}: its files were replaced during a transaction; it is unclear whether that holds"
            )

    @contextlib.contextmanager
    def _turn(self, connection: Connection) -> Iterator[None]:
        """On SQLite: this connection's turn to write. A thread that has it would wait for itself for ever."""
        if not self.is_sqlite:
            yield
            return
        if getattr(self._writing, "here", False):
            raise Invalid(
                "this thread is in a transaction on this SQLite file already: give it along (connection=…), or end it first"
            )
        with connection.info["turnstile"]:
            self._writing.here = True
            try:
                yield
            finally:
                self._writing.here = False

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection of the pool, for whatever SQLAlchemy does with it."""
        self._kept.let_go()
        with self._connect() as connection:
            yield connection

    def _connect(self) -> Connection:
        try:
            return self.engine.connect()
        except exc.DBAPIError as error:
            raise _explained(error, self.url) from error

    def insist(self, look: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Finds out what became of a transaction whose COMMIT got no answer."""
        deadline = time.monotonic() + _RESOLVE_FOR
        while True:
            try:
                return self.glance(look, *args, **kwargs)
            except Unavailable:
                pass  # not back yet
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{shown(self.url)}: the database went away during a commit, and it is unclear whether it holds"
                )
            time.sleep(0.05)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Tx]:
        """A consistent look, which never waits for writers."""
        with self._kept.lent() as connection:
            tx = Tx(connection, self.now())
            try:
                tx.script("BEGIN" if self.is_sqlite else _READ)
                yield tx
                tx.commit()  # a rollback would have psycopg forget all prepared statements of the connection
            except exc.DBAPIError as error:
                raise _explained(error, self.url) from error
            finally:
                tx.rollback()

    @contextlib.contextmanager
    def reading_in_turn(self) -> Iterator[Tx]:
        """The same behind those who write to SQLite now: what they rang for ahead of that is there."""
        with self._kept.lent() as connection, self._turn(connection):
            pass
        with self.reading() as tx:
            yield tx

    def patiently(self, look: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a look for a job, which waits for a database that is away, as its worker does: its lease ends both."""
        deadline = time.monotonic() + _OUTAGE
        while True:
            try:
                with self.reading() as tx:
                    return look(tx, *args, **kwargs)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def glance(self, look: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a look, or a verb, of one statement: that is atomic by itself, and one round trip instead of four."""
        with self._kept.lent() as connection:
            tx = Tx(connection, self.now())
            try:
                return look(tx, *args, **kwargs)
            except exc.DBAPIError as error:
                raise _explained(error, self.url) from error

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[Connection]:
        """One transaction for a change of schema: one at a time, and all or nothing on both databases."""
        with self._connected() as connection, self._turn(connection):
            try:
                lock = "BEGIN IMMEDIATE" if self.is_sqlite else "SELECT pg_advisory_xact_lock(hashtext('gristmill schema'))"
                connection.exec_driver_sql(lock)
                yield connection
                connection.commit()
            except exc.DBAPIError as error:
                raise _explained(error, self.url) from error
            finally:
                _rollback(connection)

    @contextlib.contextmanager
    def alone(self) -> Iterator[Any]:
        """The driver's own connection, outside any transaction; on SQLite none of us writes meanwhile."""
        with self._connected() as connection, self._turn(connection):
            yield connection.connection.driver_connection

    @contextlib.contextmanager
    def sole(self, what: str) -> Iterator[bool]:
        """Whether nobody else does `what` on this database just now. The lock is gone as soon as its holder is."""
        if self.is_sqlite:
            with Path(f"{self.path}-{what}").open("ab") as file:
                forks.stay_here(file, forks.number_of)
                yield _locked(file.fileno())
            return
        with self._connected() as connection:
            lock = f"advisory_lock(hashtext('gristmill {what}'))"
            session = connection.execution_options(isolation_level="AUTOCOMMIT")
            try:
                mine = bool(session.exec_driver_sql(f"SELECT pg_try_{lock}").scalar())
            except exc.DBAPIError as error:
                raise _explained(error, self.url) from error
            try:
                yield mine
            finally:
                if mine:
                    with contextlib.suppress(exc.DBAPIError):  # it is lost with the connection anyway
                        session.exec_driver_sql(f"SELECT pg_{lock.replace('lock', 'unlock', 1)}")

    def check_schema(self) -> None:
        """Refuses a database whose schema this code cannot use, with the command that mends it."""
        found = self.revision()
        if self.accepts(found):
            return
        if found is not None and found > REVISION:
            raise SchemaMismatch(
                f"the database {shown(self.url)} is at schema {found}, and does not take code for {REVISION} any more;"
                " update Gristmill here: pip install --upgrade gristmill"
            )
        state = "has no Gristmill schema" if found is None else f"is at schema {found}, this code needs {REVISION}"
        url = "URL" if self.url.password else shown(self.url)  # a command that can be pasted, but no password
        raise SchemaMismatch(f"the database {shown(self.url)} {state}; run: gristmill --database {url} db upgrade")

    def accepts(self, found: str | None) -> bool:
        """May this code work on the schema that was found? On a newer one if the database says so: only it knows."""
        if found is None or found <= REVISION:
            return found == REVISION
        oldest: str | None = self.glance(lambda tx: tx.value(_OLDEST))
        return oldest is not None and oldest <= REVISION

    def revision(self, table: str = VERSION_TABLE) -> str | None:
        """Where the ledger's history is in this database, or that of an application with this version table."""
        with self._connected() as connection:
            try:
                row = connection.exec_driver_sql(f"SELECT version_num FROM {table}").first()
                return None if row is None else str(row[0])
            except (exc.ProgrammingError, exc.OperationalError) as error:
                if error.connection_invalidated:
                    raise _explained(error, self.url) from error
                if "no such table" in str(error.orig) or getattr(error.orig, "sqlstate", None) == "42P01":
                    return None
                raise _explained(error, self.url) from error
            except exc.DatabaseError as error:
                raise _explained(error, self.url) from error
            finally:
                _rollback(connection)


_OUTAGE = 30.0  # seconds that a job waits for a database that is away; its lease is usually over before
_RUNG = "gristmill_rung"  # where a connection of `transaction` remembers what to ring for once that has committed
_READ = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_seqscan = on;"
    " SET LOCAL plan_cache_mode = force_custom_plan"  # a list is planned for what it asks for, not for what others did
)
_OLDEST = Sql("SELECT oldest FROM gm_ledger")


def _explained(error: exc.DBAPIError, url: URL) -> DatabaseError:
    """The driver's error as ours: unavailable when the connection is gone, with the driver's own first line."""
    said = str(error.orig).strip().splitlines()
    message = f"the database {shown(url)}: {said[0] if said else type(error.orig).__name__}"
    state = str(getattr(error.orig, "sqlstate", None) or "")
    too_much = state.startswith("54")  # a limit of the program: no outage
    gone = error.connection_invalidated or isinstance(error, exc.OperationalError | exc.InterfaceError)
    if (gone and not too_much) or state in _REFUSES:
        return Unavailable(message)
    return DatabaseError(message)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _rollback(connection: Connection) -> None:
    with contextlib.suppress(exc.DBAPIError):
        connection.rollback()
