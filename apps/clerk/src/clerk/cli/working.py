"""`worker`: in this process, until it is told to stop."""

from __future__ import annotations

import click

from clerk.cli.app import Command, Place, pass_place
from clerk.cli.exits import OK
from clerk.names import STAGES

GRACE = 30.0  # seconds that an item may go on after SIGTERM; then it goes back, unspent


@click.command(cls=Command, short_help="Run a worker.")
@click.argument("kind", metavar="TYPE", type=click.Choice([*STAGES, "all"]))
@click.option("-n", "--num-workers", type=click.IntRange(1, 1024), default=1, metavar="N", help="Jobs at once (default: 1).")
@click.option("--burst", is_flag=True, help="End when nothing can be claimed.")
@pass_place
def worker(place: Place, kind: str, num_workers: int, burst: bool) -> int:
    """Run a worker of TYPE: fetch, ocr, compilation, extraction, deploy or all.

    SIGTERM or Ctrl-C ends it: the items at hand may take 30 seconds more, then they go back to the queue. A database that
    is out of reach is waited for, unless --burst.
    """
    from clerk import app, logs, sentry

    if kind in ("ocr", "all"):
        from clerk.reading import backends

        backends.find(place.config.ocr_backend, place.plugins.ocr_backend)
    with place.open(worker=logs.worker_name(kind), patient=not burst) as mill:
        sentry.configure(place.config)
        app.work(mill, kind, num_workers, until="idle" if burst else None, grace=GRACE)
    return OK
