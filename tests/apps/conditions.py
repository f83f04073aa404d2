"""Stages and tasks that are only done under a condition, or in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gristmill import Context, Pipeline, task

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
