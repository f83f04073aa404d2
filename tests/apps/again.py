"""A site whose pages fail while a file says so, and whose total takes as long as the test wants."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from gristmill import Context, Pipeline

book = Pipeline("book")


def note(folder: Path, what: str) -> None:
    with (folder / "log").open("a") as log:
        log.write(f"{what}\n")


@book.stage(queue="find")
def find(ctx: Context, folder: Path) -> Iterator[str]:
    yield from "abc"


@book.stage(after=find, each=True)
def page(ctx: Context, folder: Path) -> str:
    note(folder, f"page {ctx.key}")
    if (folder / f"bad-{ctx.key}").exists():
        raise ValueError("bad")
    return f"page {ctx.key}"


@book.stage(after=page)
def total(ctx: Context, folder: Path) -> int:
    """Looks neither left nor right, as code does that knows of no cancelling."""
    note(folder, f"begin {ctx.attempt}")
    while not (folder / "release").exists():
        time.sleep(0.01)
    note(folder, f"end {ctx.attempt}")
    return len(list(ctx.results("page")))
