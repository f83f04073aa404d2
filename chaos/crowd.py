"""One large stage, on a queue of its own that is paused until everyone is there. One item of a hundred fails at first."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill import Context, Permanent, Pipeline

QUEUE = "crowd"

crowd = Pipeline("crowd")


@crowd.stage(need=0)
def find(ctx: Context, items: int) -> Iterator[str]:
    for n in range(items):
        yield f"{n:06}"


@crowd.stage(after=find, each=True, need=0, queue=QUEUE)
def item(ctx: Context) -> dict[str, int]:
    if ctx.attempt == 1 and str(ctx.key).endswith("99"):
        raise Permanent("at first")
    return {"attempt": ctx.attempt}


@crowd.stage(after=item, need=0)
def total(ctx: Context) -> int:
    counts = ctx.counts("item")
    return counts.completed + counts.failed + counts.skipped + counts.cancelled
