"""`error list|show|retry|ignore`: failures by what they have in common."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from gristmill.cli import show, values
from gristmill.cli.app import Group, Place, as_json, dry_run_option, pass_place
from gristmill.cli.jobs import print_attempt
from gristmill.cli.runs import LIMIT
from gristmill.cli.show import Column
from gristmill.cli.starting import say_if_nobody_works

if TYPE_CHECKING:
    from gristmill.model import ErrorDetail, Signature

_NAMED = 20  # stages, subjects and jobs that `error show` names; --json has more


def _fingerprint(text: str) -> str:
    return text.strip().lower()


@click.group(cls=Group)
def error() -> None:
    """List, show, retry and ignore errors: many failures, few causes."""


@error.command("list")
@click.option("--queue", metavar="NAME")
@click.option("--stage", metavar="NAME")
@click.option("--pipeline", metavar="NAME")
@click.option("--since", type=values.since, metavar="AGE", help="Only what failed within 30m, 2h, 1d.")
@click.option("--all", "every", is_flag=True, help="Also errors that are ignored.")
@LIMIT
@as_json
@pass_place
def list_(
    place: Place,
    queue: str | None,
    stage: str | None,
    pipeline: str | None,
    since: datetime | None,
    every: bool,
    limit: int,
    json_wanted: bool,
) -> None:
    """List errors, those that fail the most jobs now first."""
    with place.open() as mill:
        found = mill.errors(queue=queue, stage=stage, pipeline=pipeline, since=since, every=every, limit=limit)
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note("no errors match" if queue or stage or pipeline or since else "there are no errors")
    print_signatures(found)
    if len(found) == limit:
        show.note(f"these are the first {limit}; --limit N shows more")
    return None


@error.command("show", short_help="Show an error: an example, and what it happens to.")
@click.argument("fingerprint", type=_fingerprint)
@as_json
@pass_place
def show_(place: Place, fingerprint: str, json_wanted: bool) -> None:
    """Show the error with this FINGERPRINT: traceback and log of its newest example, stages, subjects, jobs."""
    with place.open() as mill:
        found = mill.error(fingerprint)
    if json_wanted:
        return show.document(found)
    print_detail(found)
    if found.jobs:
        show.line()
        show.line(f"to queue them again: {place.command('error', 'retry', found.signature.fingerprint)}")
    return None


@error.command(short_help="Queue again all jobs that are failed by an error.")
@click.argument("fingerprint", type=_fingerprint)
@dry_run_option
@pass_place
def retry(place: Place, fingerprint: str, dry_run: bool) -> None:
    """Queue again, with a fresh budget, all jobs that are failed now by the error with this FINGERPRINT."""
    with place.open() as mill:
        done = mill.retry_error(fingerprint, dry_run=dry_run)
        verb = "would be queued again" if dry_run else f"{'is' if done.queued == 1 else 'are'} queued again"
        show.line(f"{show.plural(done.queued, 'job')} {verb}")
        if done.refused:
            show.note(f"{show.plural(done.refused, 'job')} cannot be: {done.refusal}")
        if done.queued and not dry_run:
            say_if_nobody_works(mill, place)


@error.command(short_help="Leave an error out of the list.")
@click.argument("fingerprint", type=_fingerprint)
@click.option("--undo", is_flag=True, help="Show it again.")
@pass_place
def ignore(place: Place, fingerprint: str, undo: bool) -> None:
    """Leave the error with this FINGERPRINT out of the list; its jobs stay as they are."""
    with place.open() as mill:
        mill.ignore_error(fingerprint, undo=undo)
    show.line(f"error {fingerprint} is {'listed again' if undo else 'ignored; `error list --all` still shows it'}")


# ---- printing


def print_signatures(signatures: Sequence[Signature]) -> None:
    columns = [
        Column("fingerprint"),
        *(Column(title, right=True) for title in ("failed", "attempts", "subjects")),
        Column("first seen"),
        Column("last seen"),
        Column("class"),
        Column("example", free=True),
    ]
    show.table(columns, [_row(signature) for signature in signatures])


def _row(signature: Signature) -> list[str]:
    return [
        signature.fingerprint,
        show.count(signature.failed),
        show.count(signature.attempts),
        show.count(signature.subjects),
        show.age(signature.first_seen),
        show.age(signature.last_seen),
        signature.error_class or "",
        ("(ignored) " if signature.ignored else "") + show.first_line(signature.error),
    ]


def print_detail(detail: ErrorDetail) -> None:
    signature = detail.signature
    show.heading(f"error {signature.fingerprint}  {signature.error_class or ''}".rstrip(), rest=_ignored(signature))
    show.facts(
        [
            ("failed now", show.plural(signature.failed, "job")),
            ("attempts", show.count(signature.attempts)),
            ("first seen", show.moment(signature.first_seen)),
            ("last seen", show.moment(signature.last_seen)),
        ]
    )
    _print_places(detail)
    if detail.subjects:
        show.line()
        show.heading(f"subjects: {signature.subjects:,}")
        columns = [Column("pipeline"), Column("subject", free=True), *_COUNTS]
        rows = [[s.pipeline, s.subject, show.count(s.failed), show.count(s.attempts)] for s in detail.subjects[:_NAMED]]
        show.table(columns, rows, "  ")
    if detail.jobs:
        more = ", …" if signature.failed > _NAMED else ""
        show.line()
        show.line(f"jobs: {', '.join(map(str, detail.jobs[:_NAMED]))}{more}")
    show.line()
    show.heading(f"example: job {detail.example.job}")
    print_attempt(detail.example)


_COUNTS = (Column("failed", right=True), Column("attempts", right=True))


def _ignored(signature: Signature) -> str:
    return "(ignored)" if signature.ignored else ""


def _print_places(detail: ErrorDetail) -> None:
    show.line()
    show.heading("where")
    columns = [Column("task", free=True), Column("queue"), *_COUNTS]
    rows = [[p.task, p.queue, show.count(p.failed), show.count(p.attempts)] for p in detail.places[:_NAMED]]
    show.table(columns, rows, "  ")
