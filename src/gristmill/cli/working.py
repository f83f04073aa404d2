"""`up` and `work`: a worker in this process."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Place, pass_place
from gristmill.cli.exits import AFTER_WAIT, FAILED, OK
from gristmill.cli.values import duration, number

if TYPE_CHECKING:
    from gristmill.model import Run
    from gristmill.worker import Until, Worker

log = logging.getLogger("gristmill.cli")

_slots = click.option(
    "-n", "slots", multiple=True, metavar="[QUEUE=]N", help="Jobs at once (default: one per core); of a QUEUE, for itself."
)
_labels = click.option("--label", "labels", multiple=True, metavar="LABEL", help="It has what jobs need: gpu, region=eu.")
_memory = click.option("--memory", metavar="SIZE", help="For jobs that declare theirs: 8GB (default: all).")
_grace = click.option(
    "--grace", type=duration, metavar="DURATION", help="How long jobs may go on after SIGTERM (default: 30)."
)
_log_json = click.option("--log-json", is_flag=True, help="Log as lines of JSON, also what jobs log.")


@click.command(cls=Command, needs_app=True, works=True, short_help="Run a worker, schedules, retention, the dashboard.")
@_slots
@_labels
@_memory
@_grace
@_log_json
@click.option("--no-dashboard", is_flag=True, help="Leave out the dashboard.")
@click.option("--port", type=number(0, 65535), metavar="PORT", help="Of the dashboard (default: 8080; 0: any).")
@pass_place
def up(
    place: Place,
    slots: tuple[str, ...],
    labels: tuple[str, ...],
    memory: str | None,
    grace: float | None,
    log_json: bool,
    no_dashboard: bool,
    port: int | None,
) -> None:
    """Run everything for this machine: a worker for all queues, the reconciler, schedules, retention, the dashboard."""
    from gristmill.cli import dashboard
    from gristmill.housekeeping import beside

    if no_dashboard and port is not None:
        raise click.UsageError("--port is the dashboard's, and --no-dashboard leaves that out; give one of them")
    app = place.registry()
    log_to_stderr(log_json)
    with place.open(app) as mill, ExitStack() as around:
        how: dict[str, Any] = {**_machine(slots, labels, memory), "grace": grace, "log_json": log_json or None}
        shown = None if no_dashboard else around.enter_context(dashboard.beside(place, port, log_json))
        tickers = [mill.pruner().tick, *([shown.tick] if shown else [])]
        worker = mill.worker(tickers=tickers, schedules=True, **how)
        if shown:
            log.info("dashboard: %s", shown.address)
        around.enter_context(beside(mill.reconciler().loop))
        _run(worker, place, "worker for all queues, reconciler, schedules and retention")


@click.command(cls=Command, needs_app=True, works=True)
@click.option("-q", "--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; repeat it for more.")
@click.option("--run", type=number(), metavar="RUN", help="Only jobs of this run, until it ends; exits as start --wait.")
@_slots
@_labels
@_memory
@click.option("--burst", is_flag=True, help="End when nothing is ready.")
@click.option("--drain", is_flag=True, help="End when nothing is queued either, not even delayed.")
@click.option("--strict", is_flag=True, help="Serve the queues in the order given, not by weight.")
@click.option("--one-line", is_flag=True, help="Serve them as one line, by priority, then age.")
@_grace
@_log_json
@pass_place
def work(
    place: Place,
    queues: tuple[str, ...],
    run: int | None,
    slots: tuple[str, ...],
    labels: tuple[str, ...],
    memory: str | None,
    burst: bool,
    drain: bool,
    strict: bool,
    one_line: bool,
    grace: float | None,
    log_json: bool,
) -> int:
    """Run a worker; it fires schedules too. SIGTERM or Ctrl-C ends it gracefully; a second one at once."""
    if burst and drain:
        raise click.UsageError("--burst and --drain are two ways to end; give one of them")
    if strict and one_line:
        raise click.UsageError("--strict and --one-line are two ways to serve queues; give one of them")
    if run is not None and (burst or drain):
        raise click.UsageError("--run ends when the run does; --burst and --drain do not go with it")
    app = place.registry()
    log_to_stderr(log_json)
    with place.open(app) as mill:
        if run is not None and (ended := mill.run(run)).terminal:
            show.note(f"run {run} is {ended.state} already: there is nothing to do; run retry {run} runs items of it again")
            return OK
        has = _machine(slots, labels, memory)
        fires = run is None and not burst and not drain
        how: dict[str, Any] = {"strict": strict or None, "one_line": one_line or None, "grace": grace}
        how["log_json"] = log_json or None
        worker = mill.worker(run=run, queues=queues, schedules=fires, **has, **how)
        what = f"worker for {', '.join(queues)}" if queues else "worker for all queues"
        what = f"{what} of run {run}" if run is not None else what
        _run(worker, place, what, "idle" if burst else "drained" if drain else None)
        return OK if run is None else _end_of(mill.run(run))


def _machine(slots: tuple[str, ...], labels: tuple[str, ...], memory: str | None) -> dict[str, Any]:
    """What a worker has, as settings; what was not said is left out."""
    from gristmill.demand import size

    whole = [text for text in slots if "=" not in text]
    if len(whole) > 1:
        raise click.UsageError(f"-n {' -n '.join(whole)}: give one number for all queues, and -n QUEUE=N for one of them")
    own = [text for text in slots if "=" in text]
    for text in own:
        number(1, 1024)(text.partition("=")[2])
    return {
        "slots": number(1, 1024)(whole[0]) if whole else None,
        "own_slots": own or None,
        "labels": labels or None,
        "jobs_mib": None if memory is None else size(memory, "--memory"),
    }


def _end_of(run: Run) -> int:
    """Says what became of a run, and the exit code for it. A worker that was told to stop leaves it as it is."""
    log.info("run %d is %s", run.id, run.state)
    return AFTER_WAIT.get(run.state, FAILED)


_ENDS: dict[Until, str] = {
    "idle": "ends when nothing is ready; what waits for its time, such as a retry, is left (--drain waits for it)",
    "drained": "ends when there is nothing left to do",
}


def _run(worker: Worker, place: Place, what: str, until: Until = None) -> None:
    """One line says what runs and how to stop it."""
    stop = _ENDS.get(until, "ends with the run" if worker.only_run else "Ctrl-C stops it")
    slots = ", ".join([show.plural(worker.settings.slots, "slot"), *worker.settings.own_slots])
    has = f" with {', '.join(worker.settings.labels)}" if worker.settings.labels else ""
    log.info("%s%s, %s, on %s; %s", what, has, slots, place.shown(), stop)
    worker.run(until)
    log.info("stopped")


# ---- the log of a worker


class OneLine(logging.Formatter):
    """`14:03:07 warning  what happened`: one line per event, whatever is in it."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{show.clean(text)}"


def log_to_stderr(as_json: bool = False) -> None:
    from gristmill.settings import worker_settings

    handler: logging.Handler
    if as_json or worker_settings().log_json:
        from gristmill.logs import json_lines_to

        handler = json_lines_to(2)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(OneLine())
    logger = logging.getLogger("gristmill")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
