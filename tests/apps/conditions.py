"""Stages and tasks that are only done under a condition, or in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill import Context, Pipeline, task
from tests.apps.barriers import mark, wait_for

reading = Pipeline("reading")


@reading.stage
def pages(ctx: Context, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((f"{n}", {"n": n}) for n in range(count))


@reading.stage(after=pages, each=True, when=lambda ctx, n: n % 2 == 0)
def even(ctx: Context, n: int) -> int:
    return n


@reading.stage(after=even, when=lambda ctx, ocr=False: ocr)
def summary(ctx: Context) -> int:
    return ctx.counts("even").completed


@reading.stage(after=summary)
def last(ctx: Context) -> str:
    return "done"


@task(within=0.5)
def in_time(ctx: Context) -> str:
    return "in time"


@task(within=60)
async def in_good_time(ctx: Context) -> str:
    return "in time"


@task(when=lambda ctx: 1 / 0)
def never_sure(ctx: Context) -> None: ...


@task(within=5)
def held_in_time(ctx: Context, folder: Path) -> int:
    mark(folder / "started", str(ctx.attempt))
    wait_for(folder / "go")
    return ctx.attempt


@task(within=5)
async def held_in_time_async(ctx: Context, folder: Path) -> int:
    mark(folder / "started", str(ctx.attempt))
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return ctx.attempt
