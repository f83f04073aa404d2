"""Async jobs that are over in a moment, and say what they saw of the others in their process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from gristmill import Context, task
from tests.apps.barriers import wait_for

_running = 0
whose: ContextVar[str] = ContextVar("whose", default="nobody's")


@task
async def at_once(ctx: Context) -> int:
    """How many of them ran at the same time."""
    global _running
    _running += 1
    try:
        await asyncio.sleep(0.001)
        return _running
    finally:
        _running -= 1


@task
async def leave_things_behind(ctx: Context, wait: bool = False) -> dict[str, Any]:
    """What it finds of an earlier one, before it leaves the same for the next."""
    this = asyncio.current_task()
    assert this is not None
    found: dict[str, Any] = {"variable": whose.get(), "task": this.get_name().removesuffix(" of a job")}
    whose.set(f"job {ctx.job}'s")
    this.set_name("the task of a job")
    asyncio.get_running_loop().call_later(0.01, this.cancel)  # a time limit of its own, which nobody takes back
    if wait:
        await asyncio.sleep(0)
    found["same"] = asyncio.current_task() is this
    return found


@task
async def use_timeouts_at_once(ctx: Context) -> str:
    """Cancels itself before it has ever waited, and in a group of tasks."""
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)
    except TimeoutError:
        pass
    async with asyncio.TaskGroup() as group:
        told = group.create_task(asyncio.sleep(0, "done"))
    return told.result()


@task(timeout=5, retries=0)
async def end_as_another_comes(ctx: Context, came: str) -> str:
    """Keeps the loop until a file is there, so that who was given meanwhile begins as this one ends."""
    await asyncio.sleep(0)
    wait_for(Path(came))
    return "done"


@task
async def begin_and_end(ctx: Context) -> str:
    return "done"


@task
async def rest(ctx: Context, until: str) -> None:
    while not Path(until).exists():
        await asyncio.sleep(0.01)


@task(retries=0)
async def kill_process(ctx: Context) -> None:
    os._exit(1)


@task
async def in_which_process(ctx: Context) -> int:
    await asyncio.sleep(0.001)
    return os.getpid()


@task(retries=0)
async def leave(ctx: Context, wait: bool = False) -> None:
    """Wants to end its process."""
    if wait:
        await asyncio.sleep(0)
    raise SystemExit("over")


@task
async def give_up_on_a_thread(ctx: Context) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(threading.Event().wait), 0.05)
