"""Fan-outs whose items fail in the three ways in which they can. One needs no success at all, the other the default."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from chaos.apps import begin, end
from chaos.record import note
from gristmill import Context, Pipeline, Retries

LIMIT = 2.0  # seconds that an item may take: much more than any needs, also on a busy machine
STEP = 7919  # a prime: so many numbers apart, each item's turn comes once
ONCE = Retries(0, crashes=0, delays=[0])  # one failure is the end of an item: each costs a process

tolerant, usual = Pipeline("tolerant"), Pipeline("usual")


def find(ctx: Context, items: int) -> Iterator[str]:
    for n in range(items):
        yield f"{n:06}"


def item(ctx: Context, folder: str, items: int, how: str, bad: int, first: int) -> dict[str, Any]:
    begin(ctx, folder)
    if (first + int(str(ctx.key)) * STEP) % items < bad:
        fail(how)
    return end(ctx, folder)


def fail(how: str) -> None:
    match how:
        case "exception":
            raise ValueError("on purpose")
        case "timeout":
            time.sleep(100 * LIMIT)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(10)


def total(ctx: Context, folder: str) -> dict[str, int]:
    counts = ctx.counts("item")
    note(folder, "totalled", ctx.run, counts.completed, counts.failed)
    return {"completed": counts.completed, "failed": counts.failed}


for pipeline, need in ((tolerant, 0), (usual, None)):
    found = pipeline.stage(find)
    done = pipeline.stage(after=found, each=True, timeout=LIMIT, retries=ONCE, need=need)(item)
    pipeline.stage(after=done)(total)
