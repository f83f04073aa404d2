"""`subject list|show|set|purge|start-stalest`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli import bulk, show
from gristmill.cli.app import Command, Group, Place, as_json, dry_run_option, pass_place
from gristmill.cli.runs import LIMIT, print_recoveries, print_runs
from gristmill.cli.show import Column
from gristmill.cli.starting import ARGS, PRIORITY_OPTION, say_if_nobody_works
from gristmill.cli.values import RUN_STATE, duration, number, run_arguments

if TYPE_CHECKING:
    from gristmill.model import Subject

_RUNS = 5  # of a subject that `subject show` names


@click.group(cls=Group)
def subject() -> None:
    """List, show, set, purge and start subjects."""


@subject.command("list")
@click.option("--pipeline", metavar="NAME")
@click.option("--name", metavar="NAME", help="Of this name, or named like 'mill*'.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="With this label; KEY: with any value.")
@click.option("--stale-for", type=duration, metavar="AGE", help="Without a good run for 30m, 2h, 1d, or ever.")
@click.option("--state", type=RUN_STATE, metavar="STATE", help="Of the active run, or of the last that ended.")
@LIMIT
@click.option("--after", type=number(), metavar="ID", help="The next page: after the last one of this.")
@as_json
@pass_place
def list_(
    place: Place,
    pipeline: str | None,
    name: str | None,
    labels: tuple[str, ...],
    stale_for: float | None,
    state: str | None,
    limit: int,
    after: int | None,
    json_wanted: bool,
) -> None:
    """List subjects, in the order in which they came."""
    with place.open() as mill:
        found = mill.subjects(
            pipeline=pipeline, name=name, label=labels, stale_for=stale_for, state=state, limit=limit, after=after
        )
    if json_wanted:
        return show.document([_document(one) for one in found])
    if not found:
        some = pipeline or name or labels or stale_for is not None or state or after
        return show.note("no subjects match" if some else "there are no subjects yet; the first run makes one")
    print_subjects(found)
    if len(found) == limit:
        show.note(f"there may be more: --after {found[-1].id}, or --limit N")
    return None


@subject.command("show", short_help="Show a subject: how fresh it is, its labels, its newest runs.")
@click.argument("pipeline")
@click.argument("subject")
@as_json
@pass_place
def show_(place: Place, pipeline: str, subject: str, json_wanted: bool) -> None:
    """Show a SUBJECT of a PIPELINE: how fresh it is, its labels, its newest runs."""
    from gristmill.model import to_json

    with place.open() as mill:
        found = mill.subject(pipeline, subject)
        runs = mill.runs(pipeline=pipeline, subject=subject, limit=_RUNS)
        recoveries = mill.recoveries(pipeline=pipeline, subject=subject)
    if json_wanted:
        return show.document({**_document(found), "runs": to_json(runs), "recoveries": to_json(recoveries)})
    show.heading(f"subject {found.id}  {found.pipeline}  {found.name}", found.state or "never run")
    show.facts(
        [
            (
                "last good run",
                f"{found.last_good_run}, {show.moment(found.last_good_at)}" if found.last_good_run else "never",
            ),
            (
                "last run",
                f"{found.last_run} {found.last_state}, {show.moment(found.last_run_at)}" if found.last_run else None,
            ),
            ("active run", f"{found.active_run} {found.active_state}" if found.active_run else None),
            ("waiting run", str(found.waiting_run) if found.waiting_run else None),
            ("interval", show.span(found.interval) if found.interval else None),
            ("labels", _labels(found)),
            ("first seen", show.moment(found.created_at)),
        ]
    )
    if runs:
        show.line()
        print_runs(runs)
    print_recoveries(recoveries)
    return None


@subject.command("set", short_help="Set a subject's interval and labels.")
@click.argument("pipeline")
@click.argument("subject")
@click.option("--interval", metavar="AGE", help="Seconds wanted between two runs: 90, 10m, 6h, 1d; off: none of its own.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Set a label. Repeat it.")
@click.option("--unlabel", "away", multiple=True, metavar="KEY", help="Remove a label. Repeat it.")
@pass_place
def set_(
    place: Place, pipeline: str, subject: str, interval: str | None, labels: tuple[str, ...], away: tuple[str, ...]
) -> None:
    """Set the interval and labels of a SUBJECT of a PIPELINE; what is not given stays.

    With an application that has the pipeline it is made if it is not there.
    """
    if interval is None and not labels and not away:
        raise click.UsageError("nothing to set; give --interval AGE, --label KEY=VALUE or --unlabel KEY")
    gap = None if interval is None else 0.0 if interval == "off" else duration(interval)
    given: dict[str, str | None] = dict.fromkeys(away)
    given |= dict(map(_pair, labels))
    app = place.registry_if_any()
    with place.open(*([app] if app.tasks else [])) as mill:
        found = mill.set_subject(pipeline, subject, interval=gap, labels=given)
    every = f"every {show.span(found.interval)}" if found.interval else "no interval of its own"
    show.line(f"{found.pipeline} {found.name}: {every}; {_labels(found) or 'no labels'}")


@subject.command(short_help="Stop a subject's run; with --history, delete all its runs.")
@click.argument("pipeline")
@click.argument("subject")
@click.option("--history", is_flag=True, help="All its runs and their jobs go, once they have ended.")
@bulk.REASON
@dry_run_option
@bulk.YES
@as_json
@pass_place
def purge(
    place: Place,
    pipeline: str,
    subject: str,
    history: bool,
    reason: str | None,
    dry_run: bool,
    yes: bool,
    json_wanted: bool,
) -> None:
    """Stop the active run of a SUBJECT of a PIPELINE, and drop the one that waits.

    The subject stays, with labels and interval, and what is known to be done.
    """
    with place.open() as mill:
        act = partial(mill.purge_subject, pipeline, subject, history=history, reason=reason)
        bulk.perform(act, {}, dry_run=dry_run, yes=yes, json_wanted=json_wanted)


@subject.command("start-stalest", cls=Command, needs_app=True, short_help="Start those that were not run for longest.")
@click.argument("pipeline")
@ARGS
@PRIORITY_OPTION
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only subjects with this label. Repeat it.")
@click.option("--not-within", type=duration, metavar="AGE", default="23h", help="Of the end of the last run (default: 23h).")
@click.option("--batch", type=number(1, 200), metavar="N", default=1, help="How many (default: 1).")
@as_json
@pass_place
def start_stalest(
    place: Place,
    pipeline: str,
    args: tuple[str, ...],
    priority: str,
    labels: tuple[str, ...],
    not_within: float,
    batch: int,
    json_wanted: bool,
) -> None:
    """Start a run of PIPELINE for the subject whose last run ended longest ago; print its id.

    Those that never ran come first; none that is running; a subject's own interval comes before --not-within. For cron:
    it is no error if none is due.
    """
    app = place.registry()
    values = run_arguments(args, app.pipeline(pipeline))
    with place.open(app) as mill:
        runs = mill.start_stalest(
            pipeline, args=values, priority=priority, labels=labels, not_within=not_within, batch=batch
        )
        if json_wanted:
            show.document(runs)
        for run in runs if not json_wanted else ():
            show.line(f"{run.id}  {run.subject}")
        if not runs:
            show.note(f"no subject of {pipeline} is due")
        else:
            say_if_nobody_works(mill, place)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} must be KEY=VALUE", param_hint="--label")
    return key, value


# ---- printing


def _document(subject: Subject) -> dict[str, Any]:
    from gristmill.model import to_json

    return {**to_json(subject), "state": subject.state}


def _ended(run: int | None, state: str | None, at: datetime | None) -> str | None:
    return None if run is None else f"{f'{run} {state}'.rstrip()}, {show.moment(at)}"


def _labels(subject: Subject) -> str:
    return "  ".join(f"{key}={value}" for key, value in subject.labels.items())


def print_subjects(subjects: Sequence[Subject]) -> None:
    columns = [
        Column("id", right=True),
        Column("pipeline"),
        Column("subject", free=True),
        Column("state"),
        Column("active", right=True),
        Column("last run", right=True),
        Column("last good", right=True),
        Column("good since"),
        Column("every", right=True),
        Column("labels", free=True),
    ]
    show.table(columns, [_row(subject) for subject in subjects])


def _row(subject: Subject) -> list[str]:
    return [
        str(subject.id),
        subject.pipeline,
        subject.name,
        subject.state or "never run",
        str(subject.active_run or ""),
        str(subject.last_run or ""),
        str(subject.last_good_run or ""),
        show.age(subject.last_good_at) or "never",
        show.span(subject.interval) if subject.interval else "",
        _labels(subject),
    ]
