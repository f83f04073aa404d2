"""`worker list|plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Group, Place, as_json, pass_place
from gristmill.cli.show import Column

if TYPE_CHECKING:
    from gristmill.model import Worker
    from gristmill.planning import PlannedClass


@click.group(cls=Group)
def worker() -> None:
    """List workers; plan one for this machine."""


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


@worker.command(needs_app=True, short_help="Say what this machine has room for, and the command.")
@as_json
@pass_place
def plan(place: Place, json_wanted: bool) -> None:
    """Say how many jobs this machine can run at once, and the command for it."""
    from gristmill.demand import shown
    from gristmill.planning import plan as plan_for

    found = plan_for(place.registry())
    if json_wanted:
        return show.document(found)
    limited = f" ({found.limited})" if found.limited else ""
    memory = f"{shown(found.memory_mib)} of memory{limited}, {shown(found.reserve_mib)} of it for others"
    show.line(f"{show.plural(found.cores, 'core')}, {memory}")
    columns = [
        Column("queue", free=True),
        Column("tasks", free=True),
        Column("needs", free=True),
        Column("cpu", right=True),
        Column("memory", right=True),
        Column("at once", right=True),
    ]
    show.table(columns, [_planned(planned) for planned in found.classes])
    show.line(f"to run it: {place.command(*found.command)}")
    for label in found.labels:
        show.line(f"if this machine has what {label} stands for, add: --label {label}")
    return None


def _planned(planned: PlannedClass) -> list[str]:
    from gristmill.demand import shown

    return [
        planned.queue,
        ", ".join(planned.tasks),
        ", ".join(planned.needs) or "-",
        str(planned.cpu),
        shown(planned.memory_mib) if planned.memory_mib else "-",
        str(planned.at_once) if planned.at_once else "does not fit",
    ]


def print_workers(workers: Sequence[Worker], indent: str = "") -> None:
    columns = [
        Column("worker", right=True),
        Column("state"),
        Column("host", free=True),
        Column("pid", right=True),
        Column("queues", free=True),
        Column("labels", free=True),
        Column("slots", right=True),
        Column("jobs", right=True),
        Column("doing", free=True),
        Column("since"),
        Column("last seen"),
        Column("delivery"),
        Column("version"),
    ]
    show.table(columns, [_row(worker) for worker in workers], indent)


def _row(worker: Worker) -> list[str]:
    return [
        str(worker.id),
        "late" if worker.late else worker.state,
        worker.host,
        str(worker.pid),
        ", ".join(worker.queues) or "all",
        ", ".join(worker.labels) or "-",
        " + ".join([str(worker.slots), *(f"{queue}={slots}" for queue, slots in worker.own_slots.items())]),
        show.count(worker.holding),
        ", ".join(worker.doing) or "-",
        show.age(worker.registered_at),
        show.age(worker.heartbeat_at),
        worker.delivery,
        worker.version,
    ]
