"""`check-failed` and `purge-queue`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from clerk.cli.app import (
    Command,
    Place,
    as_json,
    confirm,
    document,
    line,
    pass_place,
    plural,
    refuse_silence,
    site_option,
    yes_option,
)

if TYPE_CHECKING:
    from clerk.commands.failures import Missing


@click.command(cls=Command, short_help="List jobs that failed, with their errors.")
@click.option("--queue", default="ocr", show_default=True, metavar="NAME", help="Of this queue.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=5, show_default=True, help="So many, the newest.")
@site_option()
@as_json
@pass_place
def check_failed(place: Place, queue: str, limit: int, subdomain: str | None, json_wanted: bool) -> None:
    """List jobs that failed or were purged: how many there are, then of the newest ones the site, the file, when, and the
    whole error. With `--queue fetch` also documents that could not be downloaded."""
    from clerk import sites
    from clerk.commands.failures import failures

    with place.open() as mill:
        if subdomain:
            sites.find(mill, subdomain)
        found = failures(mill, place.config, queue, limit, subdomain)
    if json_wanted:
        return document(found.as_json())
    line(f"Failed jobs in {found.queue}: {found.total}")
    for one in found.jobs:
        line()
        line(f"Job: {one.job_id}")
        line(f"  Site: {one.site}")
        if one.file:
            line(f"  File: {one.file}")
        line(f"  Created: {_moment(one.created_at)}")
        line(f"  Started: {_moment(one.started_at)}")
        line(f"  Failed: {_moment(one.failed_at)} (attempt {one.attempts})")
        line(f"  Error: {one.error_class or 'error'}")
        for text in one.error.splitlines():
            line(f"    {text}")
    if found.missing:
        line()
        line(f"Documents that could not be downloaded: {found.missing_total}")
    _documents(found.missing)
    if found.elsewhere:
        line()
        others = ", ".join(f"{total} in {stage}" for stage, total in found.elsewhere.items())
        line(f"Elsewhere: {others} (--queue {next(iter(found.elsewhere))})")
    return None


def _documents(found: Sequence[Missing]) -> None:
    for missing in found:
        line()
        line(f"Document: {missing.document}")
        line(f"  Site: {missing.site}")
        line(f"  Address: {missing.url}")
        line(f"  Error: {missing.error}")


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "-"


@click.command(cls=Command, short_help="End all that is queued in a queue.")
@click.argument("name")
@yes_option
@pass_place
def purge_queue(place: Place, name: str, yes: bool) -> None:
    """End what is queued in NAME: fetch, ocr, compilation, extraction, deploy; or high, that of high runs in each of them.

    These jobs count as failed, so that what comes after them goes on; `check-failed` lists them.
    """
    from clerk.commands import failures

    queue = failures.queue_named(name)
    refuse_silence(yes)
    with place.open() as mill:
        if not yes:
            confirm(f"End {plural(failures.queued(mill, queue), 'queued job')} of {queue}?")
        count = failures.purge_queue(mill, queue)
    place.say(f"Purged {plural(count, 'job')} from {queue}")
