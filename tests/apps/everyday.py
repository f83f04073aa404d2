"""Tasks as people write them, and a few that wait for the test to say go."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from gristmill import Context, Later, Permanent, Retries, Skip, Unspent, task
from tests.apps.barriers import mark, wait_for, wait_for_async

QUICK = [0.02]  # delays: a test does not want to wait for its retries


@task
def add(ctx: Context, a: int, b: int = 0) -> int:
    return a + b


@task
def nap(ctx: Context, seconds: float) -> None:
    time.sleep(seconds)


@task
def end_itself(ctx: Context) -> None:
    with ctx.transaction() as connection, ctx.finish(connection, "kept"):
        pass


@task
async def add_async(ctx: Context, a: int, b: int = 0) -> int:
    return a + b


@task
def anything(ctx: Context, **given: Any) -> dict[str, Any]:
    return given


@task(timeout=60)
def describe(ctx: Context) -> dict[str, Any]:
    """What its context says to a job on its own."""
    return {
        "job": ctx.job,
        "attempt": ctx.attempt,
        "task": ctx.task,
        "subject": ctx.subject,
        "run": ctx.run,
        "stage": ctx.stage,
        "key": ctx.key,
        "cancelled": ctx.cancelled,
        "seconds_left": ctx.seconds_left,
        "time_to_deadline": None if ctx.deadline is None else ctx.deadline - time.monotonic(),
    }


@task
def process_id(ctx: Context, n: int = 0) -> int:
    return os.getpid()


@task
async def process_id_async(ctx: Context, n: int = 0) -> int:
    return os.getpid()


@task
def end_a_program(ctx: Context, number: int) -> int:
    """A program that a job started can be ended by a signal, as anywhere else."""
    with subprocess.Popen(["sleep", "3600"]) as program:
        program.send_signal(number)
        try:
            return program.wait(5)
        finally:
            program.kill()


@task(name="held")
def hold(ctx: Context, folder: Path, name: str = "job") -> str:
    """Says that it started, with its process, and waits until the test makes `go`."""
    mark(folder / "started", f"{name} {os.getpid()} {ctx.attempt}")
    wait_for(folder / "go")
    mark(folder / "ended", name)
    return name


@task
def look_when_told(ctx: Context, folder: Path) -> None:
    """The same, and then reads from the ledger."""
    mark(folder / "started", str(ctx.attempt))
    wait_for(folder / "go")
    mark(folder / "looking", str(ctx.attempt))
    ctx.skip_stale("book", 1, version=1)


@task(name="held_once", retries=Retries(losses=1))
def hold_once(ctx: Context, folder: Path) -> None:
    """The same, but not to be lost twice."""
    mark(folder / "started", f"once {os.getpid()} {ctx.attempt}")
    wait_for(folder / "go")


@task(name="held_async")
async def hold_async(ctx: Context, folder: Path, name: str = "job") -> str:
    mark(folder / "started", f"{name} {os.getpid()} {ctx.attempt}")
    await wait_for_async(folder / "go")
    mark(folder / "ended", name)
    return name


@task
def tick_until_told(ctx: Context, folder: Path, name: str = "job") -> str:
    """Writes the time down as often as it can: shows when it ran, to the millisecond."""
    mark(folder / "started", f"{name} {os.getpid()} {ctx.attempt}")
    while not (folder / "go").exists():
        mark(folder / "ticks", f"{ctx.attempt} {time.monotonic()}")
        time.sleep(0.005)
    return name


@task
def write_down(ctx: Context, folder: Path, name: str) -> None:
    """Leaves a trace each time it runs."""
    mark(folder / "done", name)


@task(name="yielding")
def stop_when_cancelled(ctx: Context, folder: Path) -> str:
    mark(folder / "started", str(os.getpid()))
    while not ctx.cancelled:
        time.sleep(0.005)
    mark(folder / "saw_cancel")
    return "too late to count"


# ---- outcomes


@task
def permanent(ctx: Context) -> None:
    raise Permanent("no such site")


@task
def skip(ctx: Context) -> None:
    raise Skip("seen before")


@task
def later_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Later(0.05)
    return ctx.attempt


@task(queue="tools")
def unspent_once(ctx: Context, pause: float) -> int:
    if ctx.attempt == 1:
        raise Unspent("the disk is full", pause=pause)
    return ctx.attempt


@task(retries=Retries(3, delays=QUICK))
def flaky(ctx: Context, failures: int) -> int:
    if ctx.attempt <= failures:
        raise ConnectionError(f"refused, attempt {ctx.attempt}")
    return ctx.attempt


@task(retries=Retries(3, delays=QUICK, by_error={OSError: Retries(1, delays=QUICK), ValueError: Retries(0)}))
def fail_as(ctx: Context, kind: str) -> None:
    raise {"os": FileNotFoundError, "value": UnicodeError, "other": KeyError}[kind]("as asked")


@task(retries=Retries(2, delays=[0.3, 0.6]))
def fail_and_say_when(ctx: Context, folder: Path) -> None:
    mark(folder / "tries", str(time.monotonic()))
    raise RuntimeError("again")


@task
def talkative(ctx: Context) -> None:
    """Says something in every way there is, then fails two frames deep."""
    import logging
    import sys

    print("printed")
    print("to stderr", file=sys.stderr)
    logging.getLogger("library").warning("a library's warning")
    ctx.logger.info("the job's own logger")
    subprocess.run(["echo", "a program's output"], check=True)
    _deep()


def _deep() -> None:
    raise LookupError("deep down")


@task
def long_winded(ctx: Context) -> None:
    for number in range(100_000):
        print("line", number)
    raise ValueError("x" * 200_000)


# ---- progress


@task
def progressing(ctx: Context, folder: Path) -> str:
    ctx.progress(1, 4, "first")
    pages = ctx.phase("pages", total=3)
    pages.start("a")
    pages.complete("b")
    pages.skip("c", "blank")
    mark(folder / "started")
    wait_for(folder / "go")
    pages.complete("a")
    ctx.progress(4, message="last")
    return "done"


@task
def partly(ctx: Context) -> str:
    pages = ctx.phase("pages")
    pages.complete("one")
    pages.fail("two", ValueError("unreadable"))
    pages.fail("three", "torn")
    pages.complete("three")  # what is said last of an item counts
    return "two of three"
