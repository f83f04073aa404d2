"""An application for the tests of the dashboard, and for its screenshots: councils whose minutes are read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from gristmill import Context, Limit, Permanent, Pipeline, Retries, Schedule, Skip, task

minutes = Pipeline("minutes")


@minutes.stage(queue="find")
def find(ctx: Context, pages: int, hold: str = "") -> Iterator[tuple[str, dict[str, int | str]]]:
    for n in range(pages):
        yield f"2024-{n % 12 + 1:02}/page-{n:05}", {"n": n, "hold": hold}


@minutes.stage(after=find, each=True, queue="ocr", retries=Retries(0))
def read(ctx: Context, n: int, hold: str = "") -> int:
    ctx.progress(n % 40, 40, f"reading page {n % 40}")
    if hold and n % 5 == 4:
        while os.path.exists(hold):  # noqa: PTH110  # as small as it can be
            time.sleep(0.05)
    if n % 11 == 3:
        print(f"opening page {n}")
        raise ValueError(f"cannot decode image of page {n}: unexpected end of file")
    if n % 29 == 5:
        raise Permanent("the page is encrypted")
    if n % 17 == 7:
        raise Skip("a blank page")
    return n


@minutes.stage(after=read, each=True, queue="default")
def extract(ctx: Context, page: int) -> str:
    return f"{ctx.key}: {page}"


@minutes.stage(after=read)
def thumbnails(ctx: Context) -> int:
    return 1


@minutes.stage(after=[extract, thumbnails])
def publish(ctx: Context) -> str:
    return "published"


@task(queue="mail")
def notify(ctx: Context, to: str = "") -> str:
    return f"sent to {to}"


@task(queue="mail", retries=Retries(0))
def fail(ctx: Context, text: str) -> None:
    raise ValueError(text)


@task(queue="web", retries=Retries(0), limit=Limit("host", per="host", at_once=2, breaker=3))
def fetch(ctx: Context, host: str) -> None:
    raise ConnectionError(f"{host} does not answer")


@task(queue="slow")
def hold(ctx: Context, path: str) -> None:
    with ctx.lock("edition", 7):
        while os.path.exists(path):  # noqa: PTH110
            time.sleep(0.05)


nightly = Schedule("nightly", task=notify, args={"to": "the council"}, cron="0 3 * * *")
stalest = Schedule("stalest", pipeline=minutes, args={"pages": 3}, cron="*/10 * * * *", batch=2)
