"""Jobs and runs asked for in the caller's own transaction: with its rows, or not at all."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from gristmill import Context, Mill, Pipeline, task
from gristmill.errors import DatabaseError, GristmillError, Invalid
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx

site = Pipeline("site")


@site.stage(queue="fetch")
def fetch(ctx: Context) -> int:
    return 1


@task(queue="mail")
def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


class Boom(Exception):
    pass


@pytest.fixture
def mill(database_url: str) -> Iterator[Mill]:
    with Mill.open(database_url, site, greet) as mill:
        with mill.transaction() as connection:
            connection.execute(text("CREATE TABLE visit (name text NOT NULL)"))
        yield mill


def visits(mill: Mill) -> list[str]:
    with mill.transaction() as connection:
        return list(connection.execute(text("SELECT name FROM visit")).scalars())


def visit(connection: Connection, name: str = "ann") -> None:
    connection.execute(text("INSERT INTO visit (name) VALUES (:name)"), {"name": name})


def test_a_job_and_a_run_are_committed_with_the_callers_rows(mill: Mill) -> None:
    with mill.transaction() as connection:
        visit(connection)
        job = mill.enqueue(greet, args={"name": "ann"}, connection=connection)
        run = mill.start(site, "example.org", connection=connection)
        assert (job.state, job.args, job.created, run.state, run.created) == (
            "queued",
            {"name": "ann"},
            True,
            "queued",
            True,
        )
    assert (visits(mill), mill.job(job.id).queue, mill.run(run.id).subject) == (["ann"], "mail", "example.org")


def test_what_the_caller_rolls_back_was_never_there_and_can_be_asked_for_again(mill: Mill) -> None:
    def ask() -> None:
        with mill.transaction() as connection:
            visit(connection)
            mill.enqueue(greet, args={"name": "ann"}, unique="ann", connection=connection)
            mill.start(site, "example.org", connection=connection)
            raise Boom

    with pytest.raises(Boom):
        ask()
    assert (visits(mill), mill.jobs(), mill.runs()) == ([], [], [])
    assert mill.enqueue(greet, args={"name": "ann"}, unique="ann").created
    assert mill.start(site, "example.org").created


def test_a_twin_and_an_active_run_are_seen_within_the_same_transaction(mill: Mill) -> None:
    with mill.transaction() as connection:
        first, second = (mill.enqueue(greet, args={"name": "ann"}, unique="ann", connection=connection).id for _ in range(2))
        one, other = (mill.start(site, "s", priority=p, connection=connection) for p in ("low", "high"))
    assert (first, one.id, other.created) == (second, other.id, False)
    assert {job.priority for job in mill.jobs(run=one.id)} == {"high"}


def test_workers_are_rung_for_when_it_is_committed_and_not_before(mill: Mill) -> None:
    bell = mill.delivery.bell()
    with mill.transaction() as connection:
        mill.enqueue(greet, args={"name": "ann"}, connection=connection)
        assert select.select([bell], [], [], 0.2)[0] == []
    assert select.select([bell], [], [], 10)[0] == [bell]
    assert bell.heard().queues == {mill._queue_id("mail")}
    bell.close()


def test_bad_input_leaves_the_callers_transaction_usable(mill: Mill) -> None:
    with mill.transaction() as connection:
        visit(connection)
        with pytest.raises(Invalid):
            mill.enqueue(greet, args={"nobody": 1}, connection=connection)
        with pytest.raises(Invalid):
            mill.start("sight", "s", connection=connection)
    assert visits(mill) == ["ann"]


def test_on_sqlite_a_forgotten_connection_is_told_instead_of_waiting_for_ever(sqlite_url: str) -> None:
    with Mill.open(sqlite_url, greet) as mill:
        with mill.transaction() as connection:
            job = mill.enqueue(greet, args={"name": "ann"}, connection=connection)
            for ask in (partial(mill.enqueue, greet, args={"name": "bob"}), partial(mill.pause, "mail"), enter(mill)):
                with pytest.raises(Invalid, match="in a transaction on this SQLite file already: give it along"):
                    ask()
        assert [found.id for found in mill.jobs()] == [job.id]
        mill.pause("mail")


def enter(mill: Mill) -> Callable[[], object]:
    return lambda: mill.transaction().__enter__()


def test_a_look_that_fails_leaves_no_connection_without_transactions(mill: Mill) -> None:
    """Reading one job is a statement for itself; whoever gets the connection next has transactions again."""

    def nowhere(tx: Tx) -> object:
        return tx.one(Sql("SELECT 1 FROM nowhere"))

    with pytest.raises(GristmillError):
        mill.job(10**6)
    with pytest.raises(GristmillError):
        mill.ledger.glance(nowhere)

    def half(tx: Tx) -> None:
        tx.run(Sql("INSERT INTO visit (name) VALUES ('half')"))
        raise Boom

    for _ in range(3):
        with pytest.raises(Boom):
            mill.ledger.do(half)
    assert visits(mill) == []


def test_the_callers_own_engine_may_have_another_connection(pg_url: str) -> None:
    engine = create_engine(make_url(pg_url).set(drivername="postgresql+psycopg"))
    with Mill.open(pg_url, greet) as mill:
        with engine.connect() as connection:
            job = mill.enqueue(greet, args={"name": "ann"}, connection=connection)
            assert mill.jobs() == []
            connection.commit()
            mill.enqueue(greet, args={"name": "bob"}, connection=connection)
            connection.rollback()
        assert [found.id for found in mill.jobs()] == [job.id]
    engine.dispose()


def test_sqlalchemys_async_side_joins_through_run_sync(pg_url: str) -> None:
    async def ask(mill: Mill) -> int:
        engine = create_async_engine(make_url(pg_url).set(drivername="postgresql+psycopg"))
        try:
            async with engine.begin() as connection:
                job = await connection.run_sync(lambda sync: mill.enqueue(greet, args={"name": "ann"}, connection=sync))
                await connection.run_sync(lambda sync: mill.start(site, "s", connection=sync))
            return job.id
        finally:
            await engine.dispose()

    with Mill.open(pg_url, site, greet) as mill:
        number = asyncio.run(ask(mill))
        assert mill.job(number).args == {"name": "ann"}
        assert [run.subject for run in mill.runs()] == ["s"]


def test_on_sqlite_only_the_mills_own_connections_will_do(sqlite_url: str) -> None:
    engine = create_engine(sqlite_url)
    refused = pytest.raises(Invalid, match=r"mill\.transaction\(\)")
    with Mill.open(sqlite_url, greet) as mill, engine.connect() as connection, refused:
        mill.enqueue(greet, args={"name": "ann"}, connection=connection)
    engine.dispose()


def test_a_connection_to_another_kind_of_database_is_refused(sqlite_url: str, pg_url: str) -> None:
    with (
        Mill.open(sqlite_url, greet) as here,
        Mill.open(pg_url, greet) as there,
        there.transaction() as connection,
        pytest.raises(Invalid, match="the connection is to postgresql"),
    ):
        here.enqueue(greet, args={"name": "ann"}, connection=connection)


def test_an_error_of_the_database_is_ours_and_nothing_stays(mill: Mill) -> None:
    def ask() -> None:
        with mill.transaction() as connection:
            visit(connection)
            connection.execute(text("INSERT INTO nowhere VALUES (1)"))

    with pytest.raises(DatabaseError):
        ask()
    assert visits(mill) == []
