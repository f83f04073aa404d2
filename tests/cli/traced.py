"""An application that makes spans of its own, fails, and is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gristmill import Context, Pipeline, Retries, Schedule, task

site = Pipeline("site")


def span(name: str) -> None:
    from opentelemetry import trace

    with trace.get_tracer("app").start_as_current_span(name):
        pass


@site.stage()
def find(ctx: Context) -> Iterator[str]:
    yield from ("a", "b")


@site.stage(after=find, each=True)
async def page(ctx: Context) -> None:
    span(f"read {ctx.key}")


@task
def hello(ctx: Context) -> None:
    span("inner")


@task(retries=Retries(1, delays=[0]))
def breaks_once(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise ValueError("broken")


@task
def hangs_once(ctx: Context) -> None:
    if ctx.attempt == 1:
        span("before the end")
        Path("began").touch()
        while True:
            time.sleep(0.1)


@task(retries=Retries(0, losses=0))
def hangs(ctx: Context) -> None:
    Path("began").touch()
    while True:
        time.sleep(0.1)


@task(retries=Retries(0, delays=[0.1]))
def dies(ctx: Context) -> None:
    os._exit(3)


@task(retries=0)
def breaks(ctx: Context) -> None:
    raise ValueError(f"broken: {ctx.job}")


each_year = Schedule("yearly", cron="@yearly", task=hello)
by_hand = Schedule("by-hand", cron="off", pipeline=site, subject="example.org")
