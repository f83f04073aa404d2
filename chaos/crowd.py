"""Large stages, each on a queue of its own that is paused until everyone is there. One item of a hundred fails at first."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill import Context, Permanent, Pipeline


def find(ctx: Context, items: int) -> Iterator[str]:
    for n in range(items):
        yield f"{n:06}"


def item(ctx: Context) -> dict[str, int]:
    if ctx.attempt == 1 and str(ctx.key).endswith("99"):
        raise Permanent("at first")
    return {"attempt": ctx.attempt}


def total(ctx: Context) -> int:
    counts = ctx.counts("item")
    return counts.completed + counts.failed + counts.skipped + counts.cancelled


def _on_its_queue(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    found = pipeline.stage(need=0)(find)
    each = pipeline.stage(after=found, each=True, need=0, queue=name)(item)
    pipeline.stage(after=each, need=0)(total)
    return pipeline


few, many = _on_its_queue("few"), _on_its_queue("many")
