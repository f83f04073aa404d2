"""`worker list`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Group, Place, as_json, pass_place
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
