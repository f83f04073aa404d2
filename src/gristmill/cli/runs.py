"""`run list|show|cancel|delete|retry`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gristmill.cli import bulk, show
from gristmill.cli.app import Group, Place, as_json, dry_run_option, pass_place
from gristmill.cli.show import Column
from gristmill.cli.starting import say_if_nobody_works
from gristmill.cli.values import number
from gristmill.progress import progress, waiting_for, worked_since

if TYPE_CHECKING:
    from gristmill.mill import Mill
    from gristmill.model import Job, Recovery, RetriedRun, Run, Stage

T = TypeVar("T")
NAMED = 20  # failed items that `run show` names
LIMIT = click.option("--limit", type=number(1, 100_000), metavar="N", default=50, help="At most so many (default: 50).")


@click.group(cls=Group)
def run() -> None:
    """List, show, cancel, retry and delete runs."""


@run.command("list")
@bulk.run_options
@bulk.SINCE
@LIMIT
@as_json
@pass_place
def list_(place: Place, /, limit: int, json_wanted: bool, **filters: Any) -> None:
    """List runs, newest first."""
    with place.open() as mill:
        found = mill.runs(limit=limit, **filters)
    print_list("run", found, print_runs, filters, limit, json_wanted)


def print_list(
    what: str,
    found: Sequence[T],
    print_them: Callable[[Sequence[T]], None],
    filters: Mapping[str, Any],
    limit: int,
    json_wanted: bool,
) -> None:
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note(f"no {what}s match" if any(filters.values()) else f"there are no {what}s yet")
    print_them(found)
    return show.note(f"these are the newest {limit}; --limit N shows more") if len(found) == limit else None


@run.command("show", short_help="Show a run, its stages, and the items that failed.")
@click.argument("run", type=number())
@as_json
@pass_place
def show_(place: Place, run: int, json_wanted: bool) -> None:
    """Show a RUN: its stages with their counters, and the items that failed."""
    from gristmill.model import to_json

    with place.open() as mill:
        found = mill.run(run)
        failed = mill.jobs(run=run, state="failed", parts=False, limit=NAMED)
        partly = mill.jobs(run=run, state="completed_with_errors", parts=False, limit=NAMED)
        recoveries = mill.recoveries(run=run)
    if json_wanted:
        document = {**to_json(found), "results": found.results, "recoveries": to_json(recoveries)}
        for name, jobs, fields in (("failed_items", failed, _FAILED), ("items_with_errors", partly, _PARTLY)):
            document[name] = [{field: to_json(getattr(job, field)) for field in fields} for job in jobs]
        return show.document(document)
    print_run(found, failed)
    if partly:
        print_partly(partly)
    print_recoveries(recoveries)
    return None


@run.command(short_help="Stop runs.")
@bulk.run_filters
@bulk.REASON
@pass_place
def cancel(
    place: Place,
    /,
    runs: tuple[int, ...],
    reason: str | None,
    dry_run: bool,
    yes: bool,
    json_wanted: bool,
    **filters: Any,
) -> None:
    """Stop RUNs: what waits is cancelled now, what is running is told to stop."""
    chosen = bulk.which("run", runs, filters)
    with place.open() as mill:
        if len(runs) == 1 and list(chosen) == ["ids"] and not json_wanted:
            return _cancel_one(mill, runs[0], reason, dry_run)
        act = partial(mill.cancel_runs, reason=reason)
        bulk.perform(act, chosen, dry_run=dry_run, yes=yes, json_wanted=json_wanted)
        return None


def _cancel_one(mill: Mill, run: int, reason: str | None, dry_run: bool) -> None:
    found = mill.cancel_run(run, reason=reason, dry_run=dry_run)
    if dry_run:
        left = show.plural(sum(stage.total - stage.done + stage.parts_left for stage in found.stages), "unfinished job")
        show.line(f"run {run} is {found.state}; it would be stopped, and {left} of it cancelled")
    elif found.terminal:
        show.line(f"run {run} is {found.state}")
    else:
        show.line(f"run {run} is stopping; it ends when the jobs in progress have stopped")


@run.command(short_help="Delete ended runs with all their jobs.")
@bulk.run_filters
@pass_place
def delete(place: Place, /, runs: tuple[int, ...], dry_run: bool, yes: bool, json_wanted: bool, **filters: Any) -> None:
    """Delete ended RUNs with all their jobs; what was done stays known."""
    chosen = bulk.which("run", runs, filters)
    with place.open() as mill:
        bulk.perform(mill.delete_runs, chosen, dry_run=dry_run, yes=yes, json_wanted=json_wanted, ask=True)


@run.command(short_help="Run part of a run again: what failed, or what is chosen.")
@click.option("--failed", is_flag=True, help="Only what failed: the default, without other options.")
@click.option("--stage", metavar="STAGE", help="Only items of this stage.")
@click.option("--error", metavar="FINGERPRINT", help="Only what failed with this error.")
@click.option("--key", metavar="GLOB", help="Only items with a key like this: '2024-*'.")
@click.option("--version", metavar="V", help="Only what was done with this version of its function.")
@bulk.runs_at_all
@dry_run_option
@bulk.YES
@as_json
@pass_place
def retry(
    place: Place,
    /,
    runs: tuple[int, ...],
    failed: bool,
    stage: str | None,
    error: str | None,
    key: str | None,
    version: str | None,
    dry_run: bool,
    yes: bool,
    json_wanted: bool,
    **filters: Any,
) -> None:
    """Queue items of a RUN again, ended or not; what depends on them follows.

    Without options: those that failed. --stage, --key, --version: all that match. Of
    several RUNs, or by --state and the like: what failed in each that has ended.
    """
    items: dict[str, Any] = {"failed": failed, "stage": stage, "error": error, "key": key, "version": version}
    if len(runs) != 1 or any(filters.values()):
        return _retry_many(place, bulk.which("run", runs, filters), items, dry_run=dry_run, yes=yes, json_wanted=json_wanted)
    with place.open() as mill:
        done = mill.retry_run(runs[0], **items, dry_run=dry_run)
        _say_retried(runs[0], done, dry_run, json_wanted)
        return None if dry_run else say_if_nobody_works(mill, place)


def _retry_many(place: Place, chosen: Mapping[str, Any], items: Mapping[str, Any], **how: bool) -> None:
    for name, value in items.items():
        if value and name != "failed":
            raise click.UsageError(f"--{name} is about the items of one RUN; of many, what failed is run again")
    with place.open() as mill:
        if bulk.perform(mill.retry_runs, chosen, **how):
            say_if_nobody_works(mill, place)


def _say_retried(run: int, done: RetriedRun, dry_run: bool, json_wanted: bool) -> None:
    if json_wanted:
        return show.document(
            {"run": run, "epoch": done.epoch, "queued": done.queued, "items": done.items, "after": done.after}
        )
    what = "; ".join(f"{name}: {_by_state(counts)}" for name, counts in done.items.items())
    would = "would be" if dry_run else "is" if done.queued == 1 else "are"
    show.line(f"run {run}: {show.plural(done.queued, 'item')} {would} queued again ({what})")
    if done.after:
        show.line(f"after that: {', '.join(done.after)}")
    return None


def _by_state(counts: dict[str, int]) -> str:
    return ", ".join(f"{show.count(number)} {state}" for state, number in counts.items())


# ---- printing

_FAILED = ("id", "stage", "key", "attempt", "error_class", "error", "finished_at")
_PARTLY = ("id", "stage", "key", "parts", "parts_failed", "finished_at")


def print_runs(runs: Sequence[Run], indent: str = "") -> None:
    columns = [
        Column("run", right=True),
        Column("pipeline"),
        Column("subject", free=True),
        Column("state"),
        Column("at", free=True),
        Column("failed", right=True),
        Column("created"),
        Column("took", right=True),
    ]
    show.table(columns, [_run_row(run) for run in runs], indent)


def _run_row(run: Run) -> list[str]:
    return [
        str(run.id),
        run.pipeline,
        run.subject,
        run.state,
        _where(run),
        show.count(sum(stage.failed for stage in run.stages)),
        show.age(run.created_at),
        show.between(run.began_at, run.finished_at),
    ]


def _where(run: Run) -> str:
    """Which stages it is at, or why it ended."""
    if run.terminal:
        return show.first_line(run.error or run.reason)
    if run.stopping:
        return "stopping"
    return ", ".join(f"{s.name} {progress(s)}" for s in run.stages if s.state in {"open", "sealed"})


def print_run(run: Run, failed: Sequence[Job]) -> None:
    show.heading(f"run {run.id}  {run.pipeline}  {run.subject}", run.state, "(stopping)" if run.stopping else "")
    show.facts(
        [
            ("error", run.error),
            ("reason", run.reason),
            ("priority", run.priority),
            ("epoch", str(run.epoch) if run.epoch > 1 else None),
            ("arguments", show.assignments(run.args)),
            ("created", show.moment(run.created_at)),
            ("retried", show.moment(run.retried_at)),
            (
                "took",
                show.between(run.began_at, run.finished_at)
                + (" since the retry" if run.retried_at and run.terminal else ""),
            ),
            *((f"result of {name}", show.short(value)) for name, value in run.results.items() if value is not None),
        ]
    )
    show.line()
    print_stages(run)
    if failed:
        print_failed(failed, sum(stage.failed for stage in run.stages))


def print_recoveries(recoveries: Sequence[Recovery]) -> None:
    """What reconcile did: the newest first."""
    if recoveries:
        show.line()
        show.heading(f"recovered: {show.plural(len(recoveries), 'time')}")
        columns = [Column("when"), Column("what"), Column("things", right=True), Column("the first of them", free=True)]
        show.table(columns, [_recovery_row(recovery) for recovery in recoveries])


def _recovery_row(recovery: Recovery) -> list[str]:
    first = recovery.found[0]
    said = f"{first.what} {first.target}: {first.detail}"
    return [show.age(recovery.at), recovery.what, show.count(recovery.items), said]


def print_stages(run: Run) -> None:
    titles = ("total", "completed", "failed", "skipped", "cancelled")
    columns = [
        Column("stage"),
        Column("state"),
        *(Column(title, right=True) for title in titles),
        Column("took", right=True),
    ]
    show.table(columns, [_stage_row(run, stage) for stage in run.stages])
    for stage in run.stages:
        if stage.parts_left:
            show.line(f"{show.plural(stage.items_with_parts, 'item')} of {stage.name} {waiting_for(stage)}")


def _stage_row(run: Run, stage: Stage) -> list[str]:
    more = "+" if stage.state == "open" else ""
    counts = [show.count(n) for n in (stage.completed, stage.failed, stage.skipped, stage.cancelled)]
    took = show.between(worked_since(run, stage), stage.closed_at)
    name = f"{stage.name} (gate)" if stage.gate else stage.name
    state = f"from run {stage.taken_from}" if stage.taken_from is not None else stage.outcome or stage.state
    return [name, state, f"{show.count(stage.total)}{more}", *counts, took]


def print_failed(failed: Sequence[Job], total: int) -> None:
    show.line()
    show.heading(f"failed items: {total}", rest=f"the newest {len(failed)} of them" if total > len(failed) else "")
    columns = [Column("job", right=True), Column("stage"), Column("key", free=True), Column("error", free=True)]
    show.table(columns, [[str(j.id), j.stage or "", j.key or "", show.first_line(j.error)] for j in failed])


def print_partly(partly: Sequence[Job]) -> None:
    """Items that completed, though parts of them failed."""
    show.line()
    show.heading("items completed with errors", rest=f"the newest {NAMED} of them" if len(partly) == NAMED else "")
    columns = [Column("job", right=True), Column("stage"), Column("key", free=True), Column("failed parts", right=True)]
    show.table(columns, [[str(j.id), j.stage or "", j.key or "", _failed_parts(j)] for j in partly])


def _failed_parts(job: Job) -> str:
    return f"{show.count(job.parts_failed or 0)} of {show.count(job.parts)}" if job.parts else ""
