"""The pipelines and tasks that the measurements run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gristmill import Context, Limit, Pipeline, task


@task(queue="bench")
def nothing(ctx: Context, n: int) -> int:
    return n


@task(queue="bench", limit=Limit("key", per="n", at_once=2))
def keyed(ctx: Context, n: int) -> int:
    return n


@task(queue="bench")
def some_work(ctx: Context, n: int) -> int:
    """Two milliseconds of a processor, whoever else wants it."""
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        n = n * 1103515245 + 12345 & 0xFFFFFFFF
    return n


@task(queue="bench")
def stamp(ctx: Context) -> int:
    """When it started, on this machine's clock."""
    return time.time_ns()


fan = Pipeline("fan")


@fan.stage(queue="bench")
def produce(ctx: Context, items: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for n in range(items):
        yield f"{n:07}", {"n": n}


@fan.stage(after=produce, each=True, queue="bench")
def work(ctx: Context, n: int) -> int:
    return n


@fan.stage(after=work, queue="bench")
def join(ctx: Context) -> int:
    return ctx.counts("work").completed
