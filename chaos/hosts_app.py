"""What runs while things break: jobs that write down when they were at work."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from gristmill import Context, Pipeline

LONG = "0006"  # pages before this one take longer than a lease
site = Pipeline("site")


def _tick(ctx: Context, folder: str) -> None:
    """One write to a file that all hosts share: whole, whoever else writes."""
    line = f"{ctx.key} {ctx.attempt} {socket.gethostname()} {time.monotonic()}\n"
    file = os.open(Path(folder) / "ticks", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@site.stage
def crawl(ctx: Context, pages: int) -> Iterator[str]:
    for n in range(pages):
        yield f"{n:04}"


@site.stage(after=crawl, each=True)
def page(ctx: Context, folder: str, seconds: float) -> str:
    """The first ones take longer than a lease, so that a host is cut off in the middle of some."""
    until = time.monotonic() + (20 * seconds if str(ctx.key) < LONG else seconds)
    while time.monotonic() < until:
        _tick(ctx, folder)
        time.sleep(0.01)
    return socket.gethostname()


@site.stage(after=page)
def index(ctx: Context) -> int:
    return ctx.counts("page").completed
