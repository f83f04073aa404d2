"""What is purged while it is at work: stages that emit while they run, and jobs that fail, so that a late end of an
attempt would add rows of its own (an attempt that failed, new items) and not only change some that are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gristmill import Context, Pipeline, Retries

AGAIN = Retries(1, delays=[0])

heap = Pipeline("heap")


@heap.stage(need=0)
def find(ctx: Context, items: int) -> Iterator[str]:
    for n in range(items):
        yield f"{n:06}"


@heap.stage(after=find, each=True, need=0, retries=AGAIN)
def page(ctx: Context) -> dict[str, int]:
    if str(ctx.key).endswith("1"):
        raise ValueError("as one of them does")
    return {"attempt": ctx.attempt}


def _emit(ctx: Context, seconds: float, fails: bool) -> Iterator[str]:
    yield f"{ctx.stage} first"
    time.sleep(seconds)
    if fails:
        raise ValueError("after it has emitted")
    yield f"{ctx.stage} second"


# Several fan-ins, in which a run is most of the time: a retry of their pages takes them from whoever is at work on them.


@heap.stage(after=page, need=0, retries=AGAIN)
def one_sum(ctx: Context, seconds: float) -> Iterator[str]:
    yield from _emit(ctx, seconds, fails=True)


@heap.stage(after=page, need=0, retries=AGAIN)
def other_sum(ctx: Context, seconds: float) -> Iterator[str]:
    yield from _emit(ctx, seconds, fails=False)


@heap.stage(after=[one_sum, other_sum], each=True, need=0, retries=AGAIN)
def word(ctx: Context) -> dict[str, int]:
    return {"attempt": ctx.attempt}
