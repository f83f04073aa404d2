"""Documents whose pages are parts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gristmill import Context, Pipeline, Retries, task

scans = Pipeline("scans")


def note(folder: str, line: str) -> None:
    with Path(folder, "notes").open("a") as file:
        file.write(f"{line}\n")


@scans.stage
def find(ctx: Context, sizes: dict[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    yield from ((key, {"size": size}) for key, size in sizes.items())


@scans.stage(after=find, each=True, queue="documents", timeout=60)
def read(ctx: Context, size: int) -> int:
    return sum(number for _, number in ctx.parts(page, ((f"{n:03}", {"number": n}) for n in range(size))))


@read.part(queue="pages", timeout=2, retries=Retries(1, delays=[0], timeouts=0))
def page(ctx: Context, number: int, folder: str, slow: float = 0.0) -> int:
    note(folder, ctx.key or "")
    if number == 3:
        time.sleep(60)
    time.sleep(slow)
    if number == 5 and not Path(folder, "crashed").exists():
        Path(folder, "crashed").touch()
        os._exit(3)
    return number


@scans.stage(after=read)
def total(ctx: Context) -> int:
    return sum(number for _, number in ctx.results("read"))


@task
async def gather(ctx: Context, most: int) -> list[int]:
    return [value for _, value in ctx.parts(square, ((f"{n:03}", {"n": n}) for n in range(most)))]


@gather.part
async def square(ctx: Context, n: int) -> int:
    import asyncio  # not above: the child of a plain function is spared it

    await asyncio.sleep(0.001)
    return n * n
