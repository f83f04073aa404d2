"""A play per test, on both databases, whose end is checked against every invariant.

Hundreds of short tests: on PostgreSQL they share one database per process, emptied in between, since a fresh one costs
0.4 s and emptying 5 ms; SQLite files are in memory where that is a folder. No server and no machine crashes here, only
processes do, so that nothing is tested less by not waiting for the disk.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, StaticPool, create_engine

from gristmill.clock import FrozenClock
from gristmill.ledger.schema import metadata
from gristmill.ledger.store import Ledger
from tests import servers
from tests.conftest import TestRun
from tests.ledger import invariants
from tests.ledger.crash import Crasher
from tests.ledger.play import Play

Open = Callable[..., Play]

EMPTY = ";".join(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables) if table.name != "gm_ledger")


# Emptying the ledger is no verb: under a worker's role it is done as the owner.
_AS_OWNER = (
    "CREATE FUNCTION as_owner(statements text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER"
    " AS $$ BEGIN EXECUTE statements; END $$"
)


def empty(ledger: Ledger, statements: str = EMPTY) -> None:
    with ledger.engine.begin() as connection:
        if not ledger.is_sqlite:
            connection.exec_driver_sql("SELECT as_owner(%s)", (statements,))
            return
        for statement in statements.split(";"):
            connection.exec_driver_sql(statement)


_IN_MEMORY = "/dev/shm"


@pytest.fixture
def sqlite_url(sqlite_template: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if Path(_IN_MEMORY).is_dir() else None) as folder:
        for file in sqlite_template.parent.glob(f"{sqlite_template.name}*"):  # with -wal, if it was left
            shutil.copy(file, f"{folder}/{file.name.replace('template.db', 'test.db', 1)}")
        yield f"sqlite:///{folder}/test.db"


@pytest.fixture(scope="session")
def shared_pg_url(pg_server_url: str, pg_template: str, test_run: TestRun) -> Iterator[str]:
    url = servers.create_database(pg_server_url, template=pg_template, prefix=test_run.database_prefix)
    servers.execute(url, f"ALTER DATABASE {servers.database_name(url)} SET synchronous_commit = off")
    servers.execute(url, _AS_OWNER)
    yield url
    servers.drop_database(url)


@pytest.fixture(scope="session")
def pg_broom(shared_pg_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(servers.libpq_url(shared_pg_url), autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def pg_inspector(pg_broom: psycopg.Connection) -> Iterator[Connection]:
    """Looks at the invariants after each test: by a connection that stays, and so plans their queries once."""
    engine = create_engine("postgresql+psycopg://", creator=lambda: pg_broom, poolclass=StaticPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


@pytest.fixture
def owner_pg_url(shared_pg_url: str, pg_broom: psycopg.Connection) -> str:
    """For tests that change the schema."""
    pg_broom.execute(servers.END_OTHERS)
    if pg_broom.execute("SELECT 1 FROM gm_subject OFFSET 1000 LIMIT 1").fetchone():
        pg_broom.execute("TRUNCATE gm_subject CASCADE")  # row by row, each with its checks, would take minutes
    pg_broom.execute(EMPTY)
    return shared_pg_url


@pytest.fixture(scope="session")
def pg_worker(shared_pg_url: str) -> Iterator[str]:
    """A role with what `db grants` gives a worker, and nothing else: the ledger's tests pass under it."""
    with servers.role(shared_pg_url, "worker") as name:
        yield name


@pytest.fixture
def pg_url(owner_pg_url: str, pg_worker: str) -> str:
    return servers.with_user(owner_pg_url, pg_worker)


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    with Crasher() as crasher:
        yield crasher


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def opened(request: pytest.FixtureRequest, database_url: str, clock: FrozenClock) -> Iterator[Open]:
    """Opens a play with some pipelines; whatever the test did, the ledger is consistent in the end."""
    plays: list[Play] = []
    inspector = None if database_url.startswith("sqlite") else request.getfixturevalue("pg_inspector")

    def open_play(*parts: Any) -> Play:
        plays.append(Play(database_url, parts, clock))
        return plays[-1]

    yield open_play
    for play in plays:
        try:
            if play.consistent:
                assert (invariants.broken_as_seen(inspector) if inspector else invariants.broken(play.ledger)) == {}
        finally:
            play.close()


@pytest.fixture
def play(opened: Open) -> Play:
    """A play without pipelines: jobs on their own."""
    return opened()
