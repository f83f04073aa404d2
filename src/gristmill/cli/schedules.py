"""`schedule list|add|remove|pause|resume|run-now|history`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Group, Place, as_json, pass_place
from gristmill.cli.runs import LIMIT
from gristmill.cli.show import Column
from gristmill.cli.starting import say_if_nobody_works
from gristmill.cli.values import PRIORITY, duration, job_arguments, number, one_of, run_arguments

if TYPE_CHECKING:
    from gristmill.model import Firing, ScheduleEntry


@click.group(cls=Group)
def schedule() -> None:
    """List, add, pause and run what starts at set times."""


@schedule.command("list", short_help="List schedules, with next and last times.")
@as_json
@pass_place
def list_(place: Place, json_wanted: bool) -> None:
    """List schedules: when they fire, what they start, next and last times."""
    with place.open() as mill:
        found = mill.schedules()
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note("there are no schedules; a worker whose code declares some writes them down, or: schedule add")
    columns = [Column("schedule"), Column("state"), Column("starts", free=True), Column("when", free=True)]
    columns += [Column("next"), Column("last"), Column("note", free=True)]
    show.table(columns, [_row(entry) for entry in found])
    return None


def _row(entry: ScheduleEntry) -> list[str]:
    last = f"{show.age(entry.last_started_at)} ({_started(entry.last_job, entry.last_run)})" if entry.last_at else "never"
    return [
        entry.name,
        "late" if entry.late else entry.state,
        _starts(entry.spec),
        entry.when,
        _next(entry.next_at),
        last.replace(" ()", ""),
        _note(entry),
    ]


def _starts(spec: dict[str, Any]) -> str:
    if spec.get("task"):
        return f"task {spec['task']}"
    return f"{spec['pipeline']} {spec['subject']}" if spec.get("subject") else f"stalest of {spec['pipeline']}"


def _started(job: int | None, run: int | None) -> str:
    return f"job {job}" if job is not None else f"run {run}" if run is not None else ""


def _next(at: datetime | None) -> str:
    return "" if at is None else show.age(at).replace("ago", "overdue")


def _note(entry: ScheduleEntry) -> str:
    if entry.problem:
        return entry.problem
    if entry.paused_at:
        return f"paused {show.age(entry.paused_at)} by {entry.paused_by}"
    if entry.undeclared_at:
        return f"not declared any more since {show.age(entry.undeclared_at)}; schedule remove {entry.name} ends it"
    return "" if entry.declared else "added by hand"


@schedule.command(cls=Command, needs_app=True, short_help="Add a schedule that the code does not declare.")
@click.argument("name")
@click.argument("cron")
@click.option("--tz", default="UTC", metavar="ZONE", help="Like Europe/Berlin (default: UTC).")
@click.option("--task", metavar="TASK", help="Add a job of this task,")
@click.option("--pipeline", metavar="PIPELINE", help="or start a run of this pipeline.")
@click.option("--subject", metavar="SUBJECT", help="Without one, its stalest subjects.")
@click.option("--arg", "args", multiple=True, metavar="NAME=VALUE", help="An argument. Repeat it.")
@click.option("--priority", type=PRIORITY, metavar="high|normal|low", default="normal")
@click.option("--catch-up", type=one_of("--catch-up", ["none", "one", "all"]), metavar="none|one|all", default="one")
@click.option("--jitter", type=duration, default="0", metavar="AGE", help="Up to so much later.")
@click.option("--window", "windows", multiple=True, metavar="WINDOW", help="Never in 'Sun 02:00-04:00'.")
@click.option("--overlap", is_flag=True, help="Also while the last one goes on.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Stalest: only these.")
@click.option("--not-within", type=duration, metavar="AGE", help="Stalest: of the last end (23h).")
@click.option("--batch", type=number(1, 200), metavar="N", help="Stalest: so many at a time (1).")
@click.option("--spread", type=duration, default="0", metavar="AGE", help="Stalest: all within so long.")
@click.option("--replace", is_flag=True, help="Instead of the one of this name.")
@pass_place
def add(place: Place, /, name: str, task: str | None, pipeline: str | None, args: tuple[str, ...], **options: Any) -> None:
    """Add a schedule that fires by CRON: '0 3 * * *', @daily, or off."""
    from gristmill.schedule import Schedule

    replace = options.pop("replace")
    app = place.registry()
    values: dict[str, Any] = {}
    if task is not None and pipeline is None:
        values = job_arguments(args, app.task_alone(task))
    elif pipeline is not None and task is None:
        values = run_arguments(args, app.pipeline(pipeline))
    with place.open(app) as mill:
        made = Schedule(name, task=task, pipeline=pipeline, args=values, **options)
        entry = mill.add_schedule(made, replace=replace)
    show.line(f"{name}: {made.target}; {entry.when}; next {show.moment(entry.next_at) or 'never'}")


@schedule.command(short_help="Remove a schedule and its history.")
@click.argument("name")
@pass_place
def remove(place: Place, name: str) -> None:
    """Remove the schedule NAME and its history; what it started stays."""
    with place.open() as mill:
        declared = mill.remove_schedule(name)
    show.line(f"schedule {name} is gone")
    if declared:
        command = place.command("schedule", "pause", name)
        show.note("it is declared in code: a worker that starts puts it back, and it fires again; take it out there, or")
        show.note(f"pause it once it is back: {command}")


@schedule.command(short_help="Pause a schedule: nothing fires until it is resumed.")
@click.argument("name")
@pass_place
def pause(place: Place, name: str) -> None:
    """Pause the schedule NAME: nothing fires until it is resumed, also after restarts and deployments."""
    with place.open() as mill:
        mill.pause_schedule(name)
    show.line(f"schedule {name} is paused; to go on: {place.command('schedule', 'resume', name)}")


@schedule.command()
@click.argument("name")
@pass_place
def resume(place: Place, name: str) -> None:
    """Resume the schedule NAME, with its next time."""
    with place.open() as mill:
        mill.resume_schedule(name)
        entry = mill.schedule(name)
    show.line(f"schedule {name} fires again: {show.moment(entry.next_at) or entry.state}")


@schedule.command("run-now", cls=Command, needs_app=True, short_help="Start now what a schedule starts; print its id.")
@click.argument("name")
@as_json
@pass_place
def run_now(place: Place, name: str, json_wanted: bool) -> None:
    """Start now what the schedule NAME starts; print its id. Its times stay as they are."""
    with place.open(place.registry()) as mill:
        fired = mill.run_schedule(name)
        if json_wanted:
            show.document(fired)
        else:
            for started in [fired.job] if fired.job is not None else fired.runs:
                show.line(str(started))
        say_if_nobody_works(mill, place)


@schedule.command(short_help="Show what became of past times.")
@click.argument("name", required=False)
@LIMIT
@as_json
@pass_place
def history(place: Place, name: str | None, limit: int, json_wanted: bool) -> None:
    """Show what became of the times of the schedule NAME, or of all; newest first."""
    with place.open() as mill:
        found = mill.schedule_history(name, limit=limit)
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note("nothing was due yet")
    columns = [Column("schedule"), Column("time"), Column("outcome"), Column("started"), Column("detail", free=True)]
    show.table(columns, [_firing(one) for one in found])
    return None


def _firing(firing: Firing) -> list[str]:
    runs = ", ".join(map(str, firing.runs[:5])) + (" …" if len(firing.runs) > 5 else "")
    started = f"job {firing.job}" if firing.job is not None else f"run {runs}" if runs else ""
    who = f"asked for by {firing.by}" if firing.by else ""
    return [firing.schedule, show.moment(firing.fire_at), firing.outcome, started, firing.detail or who]
