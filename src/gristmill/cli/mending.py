"""`reconcile`: once, or again and again."""

from __future__ import annotations

import signal
import threading

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Place, as_json, dry_run_option, pass_place
from gristmill.cli.exits import FAILED, OK
from gristmill.cli.show import Column
from gristmill.cli.values import duration
from gristmill.cli.working import log_to_stderr


@click.command(cls=Command, needs_app=True)
@dry_run_option
@click.option("--subject", metavar="NAME", help="Only this subject's runs.")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline.")
@click.option("--threshold", type=duration, default="0", metavar="DURATION", help="Only what has not changed for so long.")
@click.option("--every", type=duration, metavar="DURATION", help="Go on, with so long between two looks.")
@as_json
@pass_place
def reconcile(
    place: Place,
    dry_run: bool,
    subject: str | None,
    pipeline: str | None,
    threshold: float,
    every: float | None,
    json_wanted: bool,
) -> int:
    """Look for what should not be, and mend it; exit 1 if something is left to a person.

    With an application, its probes and checks are asked too. While another reconciler is at work, this one steps aside.
    """
    from gristmill.reconciler import tally

    if every is not None and (dry_run or json_wanted):
        raise click.UsageError("--every goes on and mends: it has no --dry-run and no --json")
    place.refuse_new_file()
    app = place.registry_if_any()
    with place.open(app) as mill:
        if pipeline is not None and subject is not None:
            mill.subject(pipeline, subject)  # or an error that says what there is
        reconciler = mill.reconciler(dry_run=dry_run, subject=subject, pipeline=pipeline, threshold=threshold)
        if every is not None:
            log_to_stderr()
            reconciler.loop(_until_stopped(), every)
            return OK
        found = reconciler.run()
    if found is None:
        show.note("another reconciler is at work; this one stepped aside")
    elif not app.tasks and not app.checks:
        show.note("no application was given (-A): its probes and checks were not asked")
    mended, left = tally(found or [])
    if json_wanted:
        show.document(found or [])
    elif found:
        show.table(
            [Column("what"), Column("target", free=True), Column("detail", free=True)],
            [[repair.what, repair.target, repair.detail] for repair in found],
        )
        said = [f"{show.plural(mended, 'thing')} {'to mend' if dry_run else 'mended'}"] if mended else []
        show.line(", ".join([*said, f"{left:,} left to a person"] if left else said))
    elif found is not None:
        show.line("nothing to mend")
    return FAILED if left else OK


def _until_stopped() -> threading.Event:
    """SIGTERM and Ctrl-C end the loop after the pass that is under way."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
