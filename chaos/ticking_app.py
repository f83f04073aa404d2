"""Jobs that write down when they are at work, so that it can be seen when an attempt really stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

from chaos.apps import AGAIN, begin, end
from chaos.record import note
from gristmill import Context, task

EVERY = 0.05  # seconds between two ticks


@task(retries=AGAIN)
def tick(ctx: Context, folder: str, seconds: float) -> dict[str, Any]:
    begin(ctx, folder)
    _tick(ctx, folder, seconds)
    return end(ctx, folder)


@task(retries=AGAIN)
def deaf(ctx: Context, folder: str, seconds: float, helper: bool = False) -> dict[str, Any]:
    """It ignores SIGTERM, and so does the program that it starts."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begin(ctx, folder)
    started = subprocess.Popen(["sleep", str(seconds)]) if helper else None  # what is ignored here is ignored there too
    if started is not None:
        note(folder, "helpers", started.pid, os.getppid())
    try:
        _tick(ctx, folder, seconds)
    finally:
        signal.signal(signal.SIGTERM, before)
    if started is not None:
        started.wait()
    return end(ctx, folder)


def _tick(ctx: Context, folder: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        note(folder, "ticked", ctx.job, ctx.attempt, os.getpid(), os.getppid(), now)
        time.sleep(EVERY)
