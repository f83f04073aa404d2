"""`queue list|pause|resume|set|purge`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from gristmill.cli import bulk, show
from gristmill.cli.app import Group, Place, as_json, dry_run_option, pass_place
from gristmill.cli.limits import at_once_option, given, per_second_option, words
from gristmill.cli.show import Column
from gristmill.cli.values import positive

if TYPE_CHECKING:
    from gristmill.model import Queue


@click.group(cls=Group)
def queue() -> None:
    """List, pause, resume, set and purge queues."""


@queue.command("list")
@as_json
@pass_place
def list_(place: Place, json_wanted: bool) -> None:
    """List queues and what is in them."""
    with place.open() as mill:
        found = mill.queues()
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note("there are no queues yet; a worker or a first run makes them")
    print_queues(found)
    return None


@queue.command(short_help="Pause a queue: nothing of it starts until it is resumed.")
@click.argument("queue")
@pass_place
def pause(place: Place, queue: str) -> None:
    """Pause a QUEUE: nothing of it starts until it is resumed, also after restarts."""
    with place.open() as mill:
        mill.pause(queue)
    show.line(f"queue {queue} is paused; to go on: {place.command('queue', 'resume', queue)}")


@queue.command()
@click.argument("queue")
@pass_place
def resume(place: Place, queue: str) -> None:
    """Resume a paused QUEUE."""
    with place.open() as mill:
        mill.resume(queue)
    show.line(f"queue {queue} is served again")


@queue.command("set")
@click.argument("queue")
@click.option("--weight", type=positive, metavar="W", help="Its share among the queues of a worker (at first 1).")
@at_once_option
@per_second_option
@click.option("--create", is_flag=True, help="Make the queue if no task names it.")
@as_json
@pass_place
def set_(
    place: Place,
    queue: str,
    weight: float | None,
    at_once: int | str | None,
    per_second: float | str | None,
    create: bool,
    json_wanted: bool,
) -> None:
    """Change a QUEUE's settings. Limits hold over all workers; 'none' takes one away."""
    limits = given(at_once=at_once, per_second=per_second)
    if weight is None and not create and not limits:
        raise click.UsageError("nothing to set; give --weight W, --at-once N, --per-second X or --create")
    with place.open() as mill:
        mill.set_queue(queue, weight=weight, limits=limits, create=create)
        found = next(q for q in mill.queues() if q.name == queue)
    if json_wanted:
        return show.document(found)
    limited = words(at_once=found.at_once, per_second=found.per_second)
    return show.line(f"queue {queue} has weight {found.weight:g}, {limited}")


@queue.command(short_help="Cancel all that waits in a queue.")
@click.argument("queue")
@bulk.REASON
@dry_run_option
@bulk.YES
@as_json
@pass_place
def purge(place: Place, queue: str, reason: str | None, dry_run: bool, yes: bool, json_wanted: bool) -> None:
    """Cancel all that waits in a QUEUE. What is in progress goes on; stages close as they should."""
    with place.open() as mill:
        act = partial(mill.purge_queue, queue, reason=reason)
        bulk.perform(act, {}, dry_run=dry_run, yes=yes, json_wanted=json_wanted)


def print_queues(queues: Sequence[Queue], indent: str = "") -> None:
    columns = [
        Column("queue"),
        Column("state"),
        *(Column(title, right=True) for title in ("weight", "ready", "limited", "delayed", "in progress", "workers")),
        Column("oldest ready"),
    ]
    show.table(columns, [_row(queue) for queue in queues], indent)


def _row(queue: Queue) -> list[str]:
    return [
        queue.name,
        "paused" if queue.paused else "served" if queue.workers else "no worker",
        f"{queue.weight:g}",
        show.count(queue.ready),
        show.count(queue.limited),
        show.count(queue.delayed),
        show.count(queue.in_progress),
        show.count(queue.workers),
        show.age(queue.oldest),
    ]
