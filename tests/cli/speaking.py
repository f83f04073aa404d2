"""An application whose functions log: plain, async, in a thread, and before they die."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator

from gristmill import Context, Permanent, Pipeline, Retries, task

log = logging.getLogger("speaking")
site = Pipeline("site")


@site.stage()
def find(ctx: Context) -> Iterator[str]:
    log.info("looking")
    yield from ("a", "b")


@site.stage(after=find, each=True)
def page(ctx: Context) -> None:
    log.warning("reading %s", ctx.key, extra={"pages": 7})


@site.stage(after=page, each=True)
async def send(ctx: Context) -> None:
    ctx.logger.info("sending %s", ctx.key)


@task
def in_thread(ctx: Context) -> None:
    thread = threading.Thread(target=log.info, args=("from a thread",))
    thread.start()
    thread.join()


@task(retries=0)
def breaks(ctx: Context) -> None:
    try:
        raise ValueError("x" * 9000)
    except ValueError:
        log.exception("it broke")
    raise Permanent("for good")


@task(retries=Retries(0, delays=[0.1]))
def dies(ctx: Context) -> None:
    log.info("my last words")
    os.kill(os.getpid(), signal.SIGKILL)
