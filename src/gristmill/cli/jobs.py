"""`job list|show|retry|cancel|run-now|archive|delete|edit`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli import bulk, show
from gristmill.cli.app import HOW_TO_NAME_AN_APP, Group, Place, as_json, dry_run_option, pass_place
from gristmill.cli.runs import LIMIT, NAMED, print_list
from gristmill.cli.show import Column
from gristmill.cli.starting import say_if_nobody_works
from gristmill.cli.values import job_arguments, number

if TYPE_CHECKING:
    from gristmill.mill import Mill
    from gristmill.model import Attempt, Job


@click.group(cls=Group)
def job() -> None:
    """List, show, retry, cancel, run now, archive, delete and edit jobs."""


@job.command("list")
@bulk.job_options
@bulk.SINCE
@LIMIT
@as_json
@pass_place
def list_(place: Place, /, limit: int, json_wanted: bool, **filters: Any) -> None:
    """List jobs, newest first."""
    with place.open() as mill:
        found = mill.jobs(limit=limit, **filters)
    print_list("job", found, print_jobs, filters, limit, json_wanted)


@job.command("show", short_help="Show a job and its failed attempts, with traceback and log.")
@click.argument("job", type=number())
@as_json
@pass_place
def show_(place: Place, job: int, json_wanted: bool) -> None:
    """Show a JOB: its arguments, result, and each failed attempt with traceback and log."""
    from gristmill.model import to_json

    with place.open() as mill:
        found = mill.job(job)
        backend = mill.backend_job_id(job)
        attempts = mill.attempts(job)
        failed = mill.jobs(part_of=job, state="failed", limit=NAMED) if found.parts_failed else []
        item = None if found.part_of is None else mill.job(found.part_of)
    if json_wanted:
        named = {"failed_parts": [{"id": part.id, "key": part.key, "error": part.error} for part in failed]}
        told = {"backend_job_id": backend}
        return show.document({**to_json(found), **told, **(named if found.parts else {}), "attempts": to_json(attempts)})
    print_job(found, item, backend)
    if failed:
        print_failed_parts(failed)
    for attempt in attempts:
        print_attempt(attempt)
    return None


@job.command(short_help="Queue an ended job again, or run a delayed one now.")
@click.argument("job", type=number())
@dry_run_option
@pass_place
def retry(place: Place, job: int, dry_run: bool) -> None:
    """Queue an ended JOB again with a fresh budget; one that waits for its retry runs now."""
    with place.open() as mill:
        found = mill.retry_job(job, dry_run=dry_run)
        would = "be queued again" if found.finished_at else "run now"
        show.line(f"job {job} is {found.state}" + (f"; it would {would}" if dry_run else ""))
        if not dry_run:
            say_if_nobody_works(mill, place)


@job.command(short_help="Cancel jobs, queued or running.")
@bulk.job_filters
@bulk.REASON
@pass_place
def cancel(
    place: Place,
    /,
    jobs: tuple[int, ...],
    reason: str | None,
    dry_run: bool,
    yes: bool,
    json_wanted: bool,
    **filters: Any,
) -> None:
    """Cancel JOBs: at once when queued; a running one is stopped by its worker."""
    chosen = bulk.which("job", jobs, filters)
    with place.open() as mill:
        if len(jobs) == 1 and list(chosen) == ["ids"] and not json_wanted:
            return _cancel_one(mill, jobs[0], reason, dry_run)
        act = partial(mill.cancel_jobs, reason=reason)
        bulk.perform(act, chosen, dry_run=dry_run, yes=yes, json_wanted=json_wanted)
        return None


def _cancel_one(mill: Mill, job: int, reason: str | None, dry_run: bool) -> None:
    found = mill.cancel_job(job, reason=reason, dry_run=dry_run)
    if dry_run:
        would = "be cancelled" if found.state == "queued" else "be told to stop"
        return show.line(f"job {job} is {found.state}; it would {would}")
    return show.line(f"job {job} is {found.state}" if found.finished_at else f"job {job} is told to stop")


@job.command("run-now", short_help="Make delayed and retrying jobs ready.")
@bulk.job_filters
@pass_place
def run_now(place: Place, /, jobs: tuple[int, ...], dry_run: bool, yes: bool, json_wanted: bool, **filters: Any) -> None:
    """Make delayed and retrying JOBs ready now."""
    chosen = bulk.which("job", jobs, filters)
    with place.open() as mill:
        if bulk.perform(mill.run_jobs_now, chosen, dry_run=dry_run, yes=yes, json_wanted=json_wanted):
            say_if_nobody_works(mill, place)


@job.command(short_help="Leave ended jobs out of lists.")
@bulk.job_filters
@click.option("--undo", is_flag=True, help="List them again.")
@pass_place
def archive(
    place: Place, /, jobs: tuple[int, ...], undo: bool, dry_run: bool, yes: bool, json_wanted: bool, **filters: Any
) -> None:
    """Leave ended JOBs out of lists, and keep them: `job list --archived`."""
    chosen = bulk.which("job", jobs, filters)
    with place.open() as mill:
        act = partial(mill.archive_jobs, undo=undo)
        bulk.perform(act, chosen, dry_run=dry_run, yes=yes, json_wanted=json_wanted)


@job.command(short_help="Delete ended jobs that are on their own.")
@bulk.job_filters
@pass_place
def delete(place: Place, /, jobs: tuple[int, ...], dry_run: bool, yes: bool, json_wanted: bool, **filters: Any) -> None:
    """Delete ended JOBs that are on their own; those of a run go with it."""
    chosen = bulk.which("job", jobs, filters)
    with place.open() as mill:
        bulk.perform(mill.delete_jobs, chosen, dry_run=dry_run, yes=yes, json_wanted=json_wanted, ask=True)


@job.command(short_help="Change the arguments of a job that waits.")
@click.argument("job", type=number())
@click.option("--arg", "args", multiple=True, required=True, metavar="NAME=VALUE", help="Set an argument. Repeat it.")
@click.option("--only", is_flag=True, help="No others: those that are not named go.")
@dry_run_option
@pass_place
def edit(place: Place, job: int, args: tuple[str, ...], only: bool, dry_run: bool) -> None:
    """Change the arguments of a JOB that waits; what is not named stays.

    They are checked against the task's parameters, if an application is given that has it.
    """
    app = place.registry_if_any()
    with place.open(*([app] if app.tasks else [])) as mill:
        found = mill.job(job)
        known = app.tasks.get(found.task)
        given = job_arguments(args, known)
        changed = given if only else {**(found.args or {}), **given}
        mill.edit_job(job, changed, dry_run=dry_run)
    verb = "would run" if dry_run else "runs"
    show.line(f"job {job} {verb} with {show.assignments(changed)}")
    if known is None:
        why = (
            f"the application has no task {found.task!r}" if app.tasks else f"no application was given; {HOW_TO_NAME_AN_APP}"
        )
        show.note(f"the arguments were not checked: {why}")


# ---- printing


def print_jobs(jobs: Sequence[Job]) -> None:
    columns = [
        Column("job", right=True),
        Column("run", right=True),
        Column("task"),
        Column("key", free=True),
        Column("queue"),
        Column("state"),
        Column("attempt", right=True),
        Column("created"),
        Column("error", free=True),
    ]
    show.table(columns, [_job_row(job) for job in jobs])


def _job_row(job: Job) -> list[str]:
    return [
        str(job.id),
        "" if job.run is None else str(job.run),
        job.task,
        job.key or "",
        job.queue,
        _state(job),
        str(job.attempt),
        show.age(job.created_at),
        show.first_line(job.error),
    ]


def _state(job: Job) -> str:
    """`queued, retrying`: not all that is queued could begin now."""
    return f"{job.state}, {job.waits}" if job.waits else job.state


def print_job(job: Job, item: Job | None = None, backend: str | None = None) -> None:
    """`item`: what it is a part of; `backend`: what RQ or Arq call it."""
    show.heading(f"job {job.id}  {job.task}  {job.key or ''}".rstrip(), _state(job))
    spent = {"error": job.errors, "crash": job.crashes, "timeout": job.timeouts, "loss": job.losses}
    show.facts(
        [
            ("error", job.error),
            ("fingerprint", job.fingerprint),
            ("on_terminal", None if job.missed is None else f"failed: {job.missed}; reconcile tries again"),
            ("run", _run(job)),
            ("part of", None if item is None else f"job {item.id}  ({item.key or item.task})"),
            ("parts", _parts(job)),
            ("queue", f"{job.queue}, priority {job.priority}"),
            ("arguments", show.assignments(job.args)),
            ("result", None if job.result is None else show.short(job.result, 1000)),
            ("progress", _progress(job.progress)),
            ("attempt", f"{job.attempt}" + "".join(f", {show.plural(n, word)}" for word, n in spent.items() if n)),
            ("backend id", backend),
            ("unique key", job.unique),
            ("worker", None if job.worker is None else str(job.worker)),
            ("created", show.moment(job.created_at)),
            ("not before", show.moment(job.run_at)),
            ("started", show.moment(job.started_at)),
            ("took", show.between(job.started_at, job.finished_at)),
            ("archived", show.moment(job.archived_at)),
        ]
    )
    for phase, items in _failed_items(job.progress):
        show.line()
        show.heading(f"failed items of phase {phase}: {len(items)}")
        show.table([Column("item", free=True), Column("error", free=True)], list(items.items()))


def _run(job: Job) -> str | None:
    stage = f", stage {job.stage}" if job.stage else ""
    return None if job.run is None else f"{job.run}  (subject {job.subject}{stage})"


def _parts(job: Job) -> str | None:
    """`waiting for 3 of 400, 2 failed`; what it will be, if that is known."""
    if not job.parts:
        return None
    left = f"{show.count(job.parts_left or 0)} of {show.count(job.parts)}"
    waits = f"{job.ends_as} as soon as {left} have stopped" if job.ends_as else f"waiting for {left}"
    words = waits if job.parts_left else show.count(job.parts)
    return f"{words}, {show.count(job.parts_failed)} failed" if job.parts_failed else words


def print_failed_parts(failed: Sequence[Job]) -> None:
    show.line()
    show.heading("failed parts", rest=f"the newest {NAMED} of them" if len(failed) == NAMED else "")
    columns = [Column("job", right=True), Column("part", free=True), Column("error", free=True)]
    show.table(columns, [[str(part.id), part.key or "", show.first_line(part.error)] for part in failed])


def _progress(progress: Any) -> str | None:
    """`12 of 40, reading page 12`."""
    if not isinstance(progress, dict):
        return None
    done, total, message = (progress.get(name) for name in ("done", "total", "message"))
    amount = f"{done} of {total}" if done is not None and total is not None else "" if done is None else str(done)
    return ", ".join(part for part in (amount, message) if part) or None


def _failed_items(progress: Any) -> list[tuple[str, dict[str, str]]]:
    phases = progress.get("phases", {}) if isinstance(progress, dict) else {}
    return [(name, phase["failed"]) for name, phase in phases.items() if phase.get("failed")]


def print_attempt(attempt: Attempt) -> None:
    took = show.between(attempt.started_at, attempt.ended_at)
    rest = [
        show.age(attempt.ended_at),
        f"after {took}" if took else "",
        f"worker {attempt.worker}" if attempt.worker else "",
    ]
    show.line()
    show.heading(f"attempt {attempt.attempt}", attempt.outcome, ", ".join(part for part in rest if part))
    if attempt.error:
        show.block(attempt.error, "  ")
    for title, text in (("traceback", attempt.traceback), ("log", attempt.log)):
        if text and text.strip():
            show.line(f"  {title}:")
            show.block(text)
