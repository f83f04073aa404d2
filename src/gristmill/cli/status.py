"""`status` and `watch`: the overall picture, once or live."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gristmill.cli import queues as queue_commands
from gristmill.cli import runs as run_commands
from gristmill.cli import show
from gristmill.cli import workers as worker_commands
from gristmill.cli.app import Command, Place, as_json, pass_place
from gristmill.cli.values import number

if TYPE_CHECKING:
    from gristmill.mill import Mill
    from gristmill.model import Run

_ACTIVE = ("in_progress", "queued", "waiting")
_MOST = 200  # runs in a live view
_LINGER = 10.0  # seconds that an ended run stays in it


@click.command(cls=Command)
@as_json
@pass_place
def status(place: Place, json_wanted: bool) -> None:
    """Show the overall picture: runs, queues, workers."""
    with place.open() as mill:
        found, stuck = mill.status(), [] if json_wanted else mill.stuck()
    if json_wanted:
        return show.document(found)
    counts = [f"{show.count(found.runs[word])} {word}" for word in show.STYLES if found.runs.get(word)]
    counts += [f"{show.count(found.runs['queued'])} queued"] if found.runs.get("queued") else []
    show.heading("runs", rest=", ".join(counts) or "none yet")
    if found.active:
        run_commands.print_runs(found.active, indent="  ")
    if stuck:
        names = ", ".join(f"{run.id} ({run.subject})" for run in stuck)
        show.note(f"stuck, with no job left that could move them on: {names}; `gristmill reconcile` mends them")
    show.line()
    show.heading("queues", rest="" if found.queues else "none yet")
    if found.queues:
        queue_commands.print_queues(found.queues, indent="  ")
    show.line()
    show.heading("workers", rest="" if found.workers else "none is running")
    if found.workers:
        worker_commands.print_workers(found.workers, indent="  ")
    return None


@click.command(cls=Command, short_help="Watch a run, or all active ones, live.")
@click.argument("run", type=number(), required=False)
@click.option("--json", "json_wanted", is_flag=True, help="One JSON document per line: a run, whenever it has changed.")
@pass_place
def watch(place: Place, run: int | None, json_wanted: bool) -> None:
    """Watch a RUN, or all active ones, live: bars per stage, rate, ETA.

    Ends when the run has; watching all on a terminal goes on until Ctrl-C. Without a terminal it prints plain lines.
    """
    from gristmill.cli.live import documents, follow

    with place.open() as mill:
        look = Active(mill) if run is None else lambda: [mill.run(run)]
        if json_wanted:
            documents(look, sys.stdout)
        elif run is not None:
            follow(look, sys.stdout)
        elif not follow(look, sys.stdout, stay=True):
            show.line("nothing is running")


class Active:
    """The active runs at each look, and those that ended a moment ago, so that their end is seen."""

    def __init__(self, mill: Mill) -> None:
        self._mill = mill
        self._before: set[int] = set()
        self._ended: dict[int, tuple[float, Run]] = {}

    def __call__(self) -> Sequence[Run]:
        now = time.monotonic()
        found = {run.id: run for state in _ACTIVE for run in self._mill.runs(state=state, limit=_MOST)}
        self._ended |= {number: (now, self._mill.run(number)) for number in self._before - found.keys()}
        self._ended = {number: (at, run) for number, (at, run) in self._ended.items() if now - at < _LINGER}
        self._before = set(found)
        found |= {number: run for number, (_, run) in self._ended.items()}
        return [found[number] for number in sorted(found)]
