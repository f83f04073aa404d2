"""Jobs with limits, that write down when they ran."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gristmill import Limit, Pipeline, task

HOST = Limit("host", per="host", at_once=2)


def write_down(folder: str, line: str) -> None:
    """One write, which nobody's comes into."""
    file = os.open(Path(folder) / "times", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@task(limit=HOST, retries=3)
def fetch(ctx: Any, host: str, folder: str, seconds: float = 0.0, fails: bool = False, meets: int = 0) -> None:
    began = time.monotonic_ns()
    time.sleep(seconds)
    if meets:  # so many of its host must be at work at once
        (Path(folder) / f"{host} {ctx.job}").touch()
        until = time.monotonic() + 20
        while len(list(Path(folder).glob(f"{host} *"))) < meets and time.monotonic() < until:
            time.sleep(0.01)
    write_down(folder, f"{host} {began} {time.monotonic_ns()} {ctx.attempt}")
    if fails and ctx.attempt == 1:
        raise ConnectionError("no answer")


@task(limit=HOST)
async def fetch_async(ctx: Any, host: str, folder: str) -> None:
    began = time.monotonic_ns()
    write_down(folder, f"{host} {began} {time.monotonic_ns()} {ctx.attempt}")


@task(limit=Limit("pace", at_once=50, per_second=20))
def paced(ctx: Any, folder: str) -> None:
    write_down(folder, f"- {time.monotonic_ns()} 0 1")


@task
def free(ctx: Any, folder: str) -> None:
    began = time.monotonic_ns()
    time.sleep(0.005)
    write_down(folder, f"queue {began} {time.monotonic_ns()} 1")


crawl = Pipeline("crawl")


@crawl.stage
def find(ctx: Any, folder: str) -> Any:
    for n in range(60):
        yield f"{n}", {"url": f"https://h{n % 3}/{n}"}


@crawl.stage(after=find, each=True, limit=Limit("site", per=lambda url: url.split("/")[2], at_once=1))
def page(ctx: Any, url: str, folder: str) -> None:
    began = time.monotonic_ns()
    write_down(folder, f"{url.split('/')[2]} {began} {time.monotonic_ns()} 1")
