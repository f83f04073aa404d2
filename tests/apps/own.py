"""Jobs that end themselves, together with rows of their application's own."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Connection, text

from gristmill import Context, Pipeline, task
from gristmill.ledger import workers
from gristmill.ledger.sql import Sql

_HOLDER = Sql("SELECT worker_id FROM gm_job WHERE id = :job")

page = Pipeline("page")
pieces = Pipeline("pieces")


def note(connection: Connection, ctx: Context) -> None:
    connection.execute(text("INSERT INTO note (job) VALUES (:job)"), {"job": ctx.job})


@page.stage
def keep(ctx: Context, text: str) -> None:
    with ctx.transaction() as connection, ctx.finish(connection, {"length": len(text)}) as mine:
        assert mine
        note(connection, ctx)


@page.stage(after=keep)
def after(ctx: Context) -> object:
    return [result for _, result in ctx.results("keep")]


@pieces.stage
def gives_items(ctx: Context) -> None:
    with ctx.transaction() as connection, ctx.finish(connection):
        note(connection, ctx)


@pieces.stage(after=gives_items, each=True)
def piece(ctx: Context) -> None: ...


@task
def raises_inside(ctx: Context) -> None:
    with ctx.transaction() as connection, ctx.finish(connection):
        note(connection, ctx)
        raise LookupError("no")


@task
def forgets_to_commit(ctx: Context) -> None:
    with ctx.transaction() as connection:
        with ctx.finish(connection):
            note(connection, ctx)
        connection.rollback()


@task(retries=2)
def dies_before_the_commit(ctx: Context) -> None:
    with ctx.transaction() as connection, ctx.finish(connection, "kept"):
        note(connection, ctx)
        if ctx.attempt == 1:
            os._exit(9)


@task(retries=2)
def dies_after_the_commit(ctx: Context) -> None:
    with ctx.transaction() as connection, ctx.finish(connection, "kept"):
        note(connection, ctx)
    os._exit(9)


@task
def too_late(ctx: Context, said: Path) -> None:
    """What another worker does to one that was silent for too long happens while this runs."""
    ledger = ctx._open()
    with ledger.reading() as tx:
        worker = tx.value(_HOLDER, job=ctx.job)
    ledger.do(workers.rescue, worker, gone=True)
    with ctx.transaction() as connection, ctx.finish(connection) as mine:
        said.open("a").write(f"{mine}\n")


watched = Pipeline("watched", on_terminal="INSERT INTO note (job) SELECT id FROM jobs WHERE state <> 'cancelled'")


@watched.stage
def many(ctx: Context):
    for n in range(60):
        yield f"{n:02}", {"n": n}


@watched.stage(after=many, each=True)
def each_of_them(ctx: Context, n: int) -> int:
    if n == 7:
        raise ValueError("seven")
    return n


@watched.stage(after=each_of_them)
def itself(ctx: Context) -> None:
    with ctx.transaction() as connection, ctx.finish(connection, "done") as mine:
        assert mine
