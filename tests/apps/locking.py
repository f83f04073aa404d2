"""Jobs that hold locks, and jobs that wait for them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from gristmill import Context, Pipeline, task

builds = Pipeline("builds")


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def say(folder: str, word: str) -> None:
    with Path(folder, "said").open("a") as file:
        file.write(f"{word}\n")


@task
def hold(ctx: Context, folder: str) -> None:
    """Holds the lock until told."""
    with ctx.lock("edition", 42):
        say(folder, f"holds {os.getpid()}")
        wait_for(Path(folder, "go"))


@task(timeout=5, retries=0)
def brief(ctx: Context, folder: str) -> bool:
    """Waits for longer than it may run."""
    with ctx.lock("edition", 42):
        left = ctx.seconds_left
        assert left is not None
        return left > 0.2


@task(timeout=5, retries=0)
async def async_brief(ctx: Context, folder: str) -> bool:
    async with ctx.lock("edition", 42):
        left = ctx.seconds_left
        assert left is not None
        return left > 0.2


@task(timeout=0.5, retries=0)
def holds_too_long(ctx: Context) -> None:
    with ctx.lock("edition", 42):
        time.sleep(60)


@task
async def many(ctx: Context, folder: str) -> int:
    """Ten locks at once, in one job."""
    inside = asyncio.Barrier(10)

    async def one(number: int) -> None:
        async with ctx.lock(1, number):
            await inside.wait()

    await asyncio.gather(*(one(number) for number in range(10)))
    return 10


@task(retries=1)
def effect(ctx: Context, folder: str) -> str:
    """What only a holder may do; the first attempt is told that it is none any more, if it is."""
    with ctx.lock("edition", 42):
        say(folder, f"holds {ctx.attempt}")
        if ctx.attempt == 1:
            wait_for(Path(folder, "go"))
        say(folder, f"effect {ctx.attempt}")
    return f"attempt {ctx.attempt}"


@task(retries=1)
def commits(ctx: Context) -> None:
    """The first attempt's lock is taken from it before it commits."""
    with ctx.lock("edition", 42):
        if ctx.attempt == 1:
            steal(ctx)
        with ctx.transaction() as connection:
            connection.execute(text("INSERT INTO note (attempt) VALUES (:attempt)"), {"attempt": ctx.attempt})


@task(retries=1)
def finishes(ctx: Context) -> None:
    with ctx.lock("edition", 42):
        if ctx.attempt == 1:
            steal(ctx)
        with ctx.transaction() as connection, ctx.finish(connection, "done"):
            connection.execute(text("INSERT INTO note (attempt) VALUES (:attempt)"), {"attempt": ctx.attempt})


def steal(ctx: Context) -> None:
    """The row of the lock, or its session, is gone; this process does not know."""
    ledger = ctx._open()
    if ledger.is_sqlite:
        with ledger.transaction() as connection:
            connection.execute(text("DELETE FROM gm_lock"))
        return
    (lock,) = ctx._held_here()
    session: Any = lock._session
    with session._mutex:
        session._connection.pgconn.exec_(b"SELECT pg_advisory_unlock_all()")


@task
def forgets(ctx: Context) -> None:
    ctx.lock("edition", 42).__enter__()


@task
def after(ctx: Context) -> None:
    with ctx.lock("edition", 42):
        pass


@task(retries=0)
def two(ctx: Context) -> None:
    with ctx.lock("edition", 42), ctx.lock("project", 1):
        pass


@builds.stage
def publish(ctx: Context, number: int, folder: str = "") -> int:
    ctx.skip_stale("edition", 42, version=number, label=f"build {number}")
    if folder:
        say(folder, f"publish {number}")
        wait_for(Path(folder, f"go {number}"))
    return number
