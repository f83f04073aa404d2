"""Two hosts that bear one request at a time, however many workers there are; one of them is down for a while.

It prints:

    at most 1 of quick.example at once
    shaky.example is open after 2 failures, and 8 pages of it wait
    all 20 pages are here
"""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill import Context, Limit, Mill, Retries, task


def running(folder: str, host: str) -> int:
    return len(list(Path(folder).glob(f"{host}.*")))


@task(limit=Limit("host", per="host", at_once=1, breaker=2, cooldown=600), retries=Retries(5, delays=[30]))
def fetch(ctx: Context, host: str, folder: str) -> int:
    """How many were at it at the same time."""
    mine = Path(folder) / f"{host}.{ctx.job}.{os.getpid()}"
    mine.touch()
    time.sleep(0.01)
    together = running(folder, host)
    mine.unlink()
    if (Path(folder) / f"{host} is down").exists():
        raise ConnectionError("no answer")
    return together


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/pages.db", fetch) as mill:
        down = Path(folder) / "shaky.example is down"
        down.touch()
        pages = [{"host": host, "folder": folder} for host in ("quick.example", "shaky.example") for _ in range(10)]
        jobs = mill.enqueue_many(fetch, pages)
        mill.work(until="idle", slots=2)
        print("at most", max(mill.job(job).result for job in jobs[:10]), "of quick.example at once")
        (shaky,) = mill.limits("host", "shaky.example")
        print(f"shaky.example is {shaky.circuit} after {shaky.failures} failures, and {shaky.waiting} pages of it wait")
        down.unlink()
        mill.close_circuit("host", "shaky.example")
        mill.run_jobs_now(state="queued")
        mill.work(until="drained", slots=2)
        print("all", sum(mill.job(job).state == "completed" for job in jobs), "pages are here")
