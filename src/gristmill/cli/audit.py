"""`audit` and `prune`: what people did, and what goes by itself."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from gristmill.cli import show, values
from gristmill.cli.app import Command, Place, as_json, dry_run_option, pass_place
from gristmill.cli.runs import LIMIT
from gristmill.cli.show import Column
from gristmill.wording import audited

if TYPE_CHECKING:
    from gristmill.model import AuditEntry


@click.command(cls=Command)
@click.option("--who", metavar="GLOB", help="Only what these did: 'anna@*'.")
@click.option("--verb", metavar="GLOB", help="Only this: job.cancel, 'queue.*'.")
@click.option("--target", metavar="GLOB", help="Only to this: 'run 17', 'queue *'.")
@click.option("--since", type=values.since, metavar="AGE", help="Only within 30m, 2h, 1d.")
@LIMIT
@as_json
@pass_place
def audit(
    place: Place,
    who: str | None,
    verb: str | None,
    target: str | None,
    since: datetime | None,
    limit: int,
    json_wanted: bool,
) -> None:
    """List what people did, the newest first: who, when, what, to what."""
    with place.open() as mill:
        found = mill.audit(who=who, verb=verb, target=target, since=since, limit=limit)
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note("no entries match" if who or verb or target or since else "nobody has done anything yet")
    columns = [
        Column("entry", right=True),
        Column("when"),
        Column("who", free=True),
        Column("what"),
        Column("to", free=True),
        Column("detail", free=True),
    ]
    show.table(columns, [_row(entry) for entry in found])
    if len(found) == limit:
        show.note(f"these are the newest {limit}; --limit N shows more")
    return None


def _row(entry: AuditEntry) -> list[str]:
    detail = ("(not done yet) " if entry.open else "") + audited(entry)
    return [str(entry.id), show.moment(entry.at) or "", entry.who, entry.verb, entry.target, detail]


@click.command(cls=Command, needs_app=True)
@dry_run_option
@as_json
@pass_place
def prune(place: Place, dry_run: bool, json_wanted: bool) -> None:
    """Remove ended runs and jobs that no retention keeps.

    Retentions are declared in code (keep=); keep_days is for all else. `up` does the same once an hour.
    """
    with place.open(place.registry()) as mill:
        done = mill.prune(dry_run=dry_run)
        if not mill.pruner().any_rule:
            show.note(
                "no retention is set, so all runs and jobs are kept; give pipelines and tasks keep=Retention(…),"
                " or set keep_days: GRISTMILL_KEEP_DAYS=30"
            )
    if json_wanted:
        return show.document(done)
    would = " would be" if dry_run else " are"
    show.line(f"{show.plural(done.runs, 'run')} and {show.plural(done.jobs, 'job')}{would} removed")
    if done.workers or done.audit:
        old = f"{show.plural(done.workers, 'worker')} that ended long ago, {done.audit:,} of the audit's entries"
        show.line(f"{old}{would} forgotten")
    return None
