"""Probes and checks: what reconcile asks an application."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from gristmill import Context, Finding, Pipeline, check, task

scans = Pipeline("scans")


@scans.stage
def find(ctx: Context, folder: str, pages: list[str]):
    for page in pages:
        yield page, {"page": page}


@scans.stage(after=find, each=True)
def ocr(ctx: Context, folder: str, page: str) -> int:
    return len(page)


@ocr.probe
def read_already(ctx: Context, folder: str, page: str) -> Any:
    print("asked about", ctx.key)  # is no answer
    file = Path(folder) / page
    if page == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if page == "hang":
        time.sleep(60)
    if page == "broken":
        raise OSError("the disk is away")
    return int(file.read_text()) if file.exists() else None


@scans.stage(after=ocr, each=True)
def index(ctx: Context, length: int, folder: str) -> int:
    return length * 2


@scans.stage(after=index, need=0.0)
def publish(ctx: Context) -> int:
    return sum(n for _, n in ctx.results("index"))


@publish.probe
def is_public(ctx: Context, folder: str) -> bool:
    return (Path(folder) / f"{ctx.subject}.public").exists()


@task
def draw(ctx: Context, subject: str) -> str:
    return subject


@check
def wishes(ctx: Context):
    """What a table of the application wants."""
    with ctx.transaction() as connection:
        try:
            rows = connection.execute(text("SELECT subject, verb FROM wish ORDER BY subject")).all()
        except Exception:
            return
    for subject, verb in rows:
        if verb == "enqueue":
            yield Finding("not drawn", subject=subject, verb="enqueue", task="draw", args={"subject": subject})
        elif verb == "start":
            arguments = {"folder": "x", "pages": []}
            yield Finding("never scanned", pipeline="scans", subject=subject, verb="start", args=arguments)
        elif verb == "retry":
            yield Finding("no such job", pipeline="scans", subject=subject, verb="retry_job", job=12345)
        elif verb == "fall":
            raise RuntimeError("the check is broken")
        else:
            yield Finding("look at it", pipeline=ctx.pipeline or "scans", subject=subject)
