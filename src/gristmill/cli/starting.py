"""`start` and `enqueue`: asking for work."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Place, as_json, pass_place
from gristmill.cli.exits import AFTER_WAIT, FAILED, OK
from gristmill.cli.values import PRIORITY, duration, job_arguments, moment, number, one_of, run_arguments

if TYPE_CHECKING:
    from gristmill.mill import Mill
    from gristmill.model import Run

ARGS = click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="An argument: JSON, else text. Repeat it.")
_once = click.option("--once", metavar="KEY", help="Once for this key within a week.")
PRIORITY_OPTION = click.option("--priority", type=PRIORITY, metavar="high|normal|low", default="normal")
_needs = click.option("--needs", multiple=True, metavar="LABEL", help="Only workers with this label, beside its own needs.")


@click.command(cls=Command, needs_app=True)
@click.argument("pipeline")
@click.argument("subject")
@ARGS
@PRIORITY_OPTION
@_needs
@click.option(
    "--if-active",
    type=one_of("--if-active", ["join", "wait", "refuse"]),
    metavar="join|wait|refuse",
    default="join",
    help="When the subject has an active run (default: join).",
)
@click.option("--from-stage", metavar="STAGE", help="Only this stage and what depends on it.")
@click.option(
    "--only", multiple=True, metavar="STAGE[:GLOB]", help="Only this stage; of the first, only items with such keys."
)
@_once
@click.option("--wait", is_flag=True, help="Show progress until it ends: exit 0 completed, 2 with errors, 1 otherwise.")
@as_json
@pass_place
def start(
    place: Place,
    pipeline: str,
    subject: str,
    args: tuple[str, ...],
    priority: str,
    needs: tuple[str, ...],
    if_active: str,
    from_stage: str | None,
    only: tuple[str, ...],
    once: str | None,
    wait: bool,
    json_wanted: bool,
) -> int:
    """Start a run of PIPELINE for SUBJECT; print its id.

    Stages that are left out stand for the subject's last good run.
    """
    app = place.registry()
    values = run_arguments(args, app.pipeline(pipeline))
    with place.open(app) as mill:
        run = mill.start(
            pipeline,
            subject,
            args=values,
            priority=priority,
            if_active=if_active,
            from_stage=from_stage,
            only=_stages(only),
            once=once,
            needs=needs,
        )
        if not json_wanted:
            show.line(str(run.id))
            sys.stdout.flush()
        if not run.created:
            how = "nothing was started" if run.terminal or once else "this joined it"
            show.note(f"run {run.id} of {subject} is {run.state} already; {how}")
        say_if_nobody_works(mill, place)
        if wait:
            run = _follow(mill, run, place)
        if json_wanted:
            show.document(run)
        return AFTER_WAIT.get(run.state, FAILED) if wait else OK


def _stages(only: tuple[str, ...]) -> dict[str, list[str] | None] | None:
    """`page:2024-*` as a stage and globs for its keys; None: not asked for."""
    chosen: dict[str, list[str] | None] = {}
    for text in only:
        stage, colon, glob = text.partition(":")
        globs = chosen.setdefault(stage, [])
        if not colon:
            chosen[stage] = None  # all of it, whichever was said first
        elif globs is not None:
            globs.append(glob)
    return chosen or None


def _follow(mill: Mill, run: Run, place: Place) -> Run:
    """Progress goes to stderr: stdout holds the id, for the program that reads it."""
    from gristmill.cli.live import follow

    try:
        return follow(lambda: [mill.run(run.id)], sys.stderr)[0]
    except KeyboardInterrupt:
        show.note(f"run {run.id} goes on; to see it again: {place.command('watch', run.id)}")
        raise


def say_if_nobody_works(mill: Mill, place: Place) -> None:
    if not mill.workers():
        show.note(f"no worker is running; start one with: {place.command('up')}")


@click.command(cls=Command, needs_app=True)
@click.argument("task")
@ARGS
@click.option("--queue", metavar="QUEUE", help="Instead of the task's own.")
@PRIORITY_OPTION
@_needs
@click.option("--at", type=moment, metavar="TIME", help="Not before: 2027-01-31T14:30.")
@click.option("--in", "delay", type=duration, metavar="DURATION", help="Not before so long from now: 90, 10m, 2h.")
@click.option("--unique", metavar="KEY", help="Only if no unfinished job of this task has the same key.")
@_once
@click.option("--timeout", type=duration, metavar="DURATION", help="Instead of the task's own.")
@click.option("--retries", type=number(0, 10_000), metavar="N", help="Instead of the task's own.")
@as_json
@pass_place
def enqueue(
    place: Place,
    task: str,
    args: tuple[str, ...],
    queue: str | None,
    priority: str,
    needs: tuple[str, ...],
    at: datetime | None,
    delay: float | None,
    unique: str | None,
    once: str | None,
    timeout: float | None,
    retries: int | None,
    json_wanted: bool,
) -> None:
    """Add a job of TASK, on its own; print its id."""
    if at is not None and delay is not None:
        raise click.UsageError("--at and --in are two ways to say when; give one of them")
    app = place.registry()
    values = job_arguments(args, app.task_alone(task))
    with place.open(app) as mill:
        job = mill.enqueue(
            task,
            args=values,
            queue=queue,
            priority=priority,
            at=at,
            delay=delay,
            unique=unique,
            once=once,
            timeout=timeout,
            retries=retries,
            needs=needs,
        )
        if json_wanted:
            show.document(job)
        else:
            show.line(str(job.id))
        if not job.created:
            key = "--once" if once else "unique"
            show.note(f"job {job.id} has this {key} key and is {job.state}; nothing was added")
        say_if_nobody_works(mill, place)
