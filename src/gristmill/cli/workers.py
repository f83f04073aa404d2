"""`worker list` and `reconcile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Group, Place, as_json, dry_run_option, pass_place
from gristmill.cli.show import Column

if TYPE_CHECKING:
    from gristmill.model import Worker


@click.group(cls=Group)
def worker() -> None:
    """List workers."""


@worker.command("list")
@click.option("--all", "every", is_flag=True, help="Also those that stopped or were lost.")
@as_json
@pass_place
def list_(place: Place, every: bool, json_wanted: bool) -> None:
    """List the workers that are running, newest first."""
    with place.open() as mill:
        found = mill.workers(every=every)
    if json_wanted:
        return show.document(found)
    if not found:
        start = place.command("up")
        return show.note("there were no workers yet" if every else f"no worker is running; start one with: {start}")
    print_workers(found)
    return None


@click.command(cls=Command)
@dry_run_option
@click.option("--subject", metavar="NAME", help="Only this subject's runs.")
@as_json
@pass_place
def reconcile(place: Place, dry_run: bool, subject: str | None, json_wanted: bool) -> None:
    """Look for what should not be, and mend it."""
    with place.open() as mill:
        found = mill.reconcile(dry_run=dry_run, subject=subject)
    if json_wanted:
        return show.document(found)
    if not found:
        return show.line("nothing to mend")
    show.table(
        [Column("what"), Column("target", free=True), Column("detail", free=True)],
        [[repair.what, repair.target, repair.detail] for repair in found],
    )
    return show.line(f"{show.plural(len(found), 'thing')} {'to mend' if dry_run else 'mended'}")


def print_workers(workers: Sequence[Worker], indent: str = "") -> None:
    columns = [
        Column("worker", right=True),
        Column("state"),
        Column("host", free=True),
        Column("pid", right=True),
        Column("queues", free=True),
        Column("slots", right=True),
        Column("jobs", right=True),
        Column("since"),
        Column("last seen"),
        Column("version"),
    ]
    show.table(columns, [_row(worker) for worker in workers], indent)


def _row(worker: Worker) -> list[str]:
    return [
        str(worker.id),
        worker.state,
        worker.host,
        str(worker.pid),
        ", ".join(worker.queues) or "all",
        str(worker.slots),
        show.count(worker.holding),
        show.age(worker.registered_at),
        show.age(worker.heartbeat_at),
        worker.version,
    ]
