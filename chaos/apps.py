"""What runs while things break: a fan-out whose items are counted, and jobs on their own. Each writes down what it did."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from chaos.record import note
from gristmill import Context, Pipeline, Retries, task

AGAIN = Retries(3, delays=[0], losses=100)  # workers are lost on purpose, and a job may have bad luck

fan = Pipeline("fan")


def begin(ctx: Context, folder: str) -> None:
    note(folder, "began", ctx.job, ctx.attempt, os.getpid(), os.getppid(), time.monotonic())


def end(ctx: Context, folder: str) -> dict[str, int]:
    """What a job returns names the attempt that did it: a late one would be seen in the ledger."""
    note(folder, "ended", ctx.job, ctx.attempt, os.getpid(), os.getppid(), time.monotonic())
    return {"attempt": ctx.attempt}


@fan.stage
def find(ctx: Context, items: int) -> Iterator[str]:
    for n in range(items):
        yield f"{n:06}"


@fan.stage(after=find, each=True, need=0, retries=AGAIN)
def item(ctx: Context, folder: str, seconds: float = 0.0) -> dict[str, int]:
    begin(ctx, folder)
    if seconds:
        time.sleep(seconds)
    return end(ctx, folder)


@fan.stage(after=item, retries=AGAIN)
def total(ctx: Context, folder: str) -> int:
    """The fan-in. It writes down how many items were over when it began: all of them, or it is early."""
    counts = ctx.counts("item")
    over = counts.completed + counts.failed + counts.skipped + counts.cancelled
    note(folder, "fanned_in", ctx.run, ctx.attempt, over, time.monotonic())
    return over


@task(retries=AGAIN)
def one(ctx: Context, folder: str, seconds: float = 0.0) -> dict[str, Any]:
    begin(ctx, folder)
    if seconds:
        time.sleep(seconds)
    return end(ctx, folder)


@task(retries=AGAIN)
def named(ctx: Context, folder: str, name: str, seconds: float = 0.0) -> dict[str, Any]:
    """A job that can be told from all others, also when nobody was told its number."""
    begin(ctx, folder)
    if seconds:
        time.sleep(seconds)
    return end(ctx, folder)
