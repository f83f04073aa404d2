"""The pipelines and tasks that the measurements run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from gristmill import Context, Limit, Pipeline, task


@task(queue="bench")
def nothing(ctx: Context, n: int) -> int:
    return n


KEY = Limit("key", per="n", at_once=2)


@task(queue="bench", limit=KEY)
def keyed(ctx: Context, n: int) -> int:
    return n


def busy(seconds: float = 0.0005) -> None:
    """As long as a quick answer of a cache takes: nothing that people set limits for is faster."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@task(queue="bench")
def quick(ctx: Context, n: int) -> None:
    busy()


@task(queue="bench", limit=KEY)
def quick_keyed(ctx: Context, n: int) -> None:
    busy()


def _give_way() -> None:
    """Under `chrt -f`, for a machine that others use: who wakes up goes first, as it does without."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_FIFO:
        lower = max(1, os.sched_getparam(0).sched_priority // 2)
        if os.sched_getparam(0).sched_priority > 30:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(lower))


@task(queue="bench")
def some_work(ctx: Context, n: int) -> int:
    """Two milliseconds of a processor, whoever else wants it."""
    _give_way()
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        n = n * 1103515245 + 12345 & 0xFFFFFFFF
    return n


@task(queue="bench")
def stamp(ctx: Context) -> int:
    """When it started, on this machine's clock."""
    return time.time_ns()


KEYED = (keyed, quick, quick_keyed)
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
