"""`reconcile` and `cleanup-orphaned`."""

from __future__ import annotations

from dataclasses import asdict

import click

from clerk.cli.app import Command, Place, as_json, document, dry_run_option, line, pass_place, plural, site_option


@click.command(cls=Command, short_help="Look for what should not be, and mend it.")
@dry_run_option
@click.option(
    "--threshold-hours",
    type=click.FloatRange(0, 10_000),
    default=2.0,
    show_default=True,
    help="Leave alone what has changed within so many hours.",
)
@site_option()
@as_json
@pass_place
def reconcile(place: Place, dry_run: bool, threshold_hours: float, subdomain: str | None, json_wanted: bool) -> None:
    """Look for what should not be, mend it, and list what is left to a person.

    While another one is at work this one does nothing, and exits 0.
    """
    from clerk import sentry, sites
    from clerk.commands.recovering import Recovered, recover

    with place.open() as mill:
        sentry.configure(place.config)
        if subdomain:
            sites.find(mill, subdomain)
        found = recover(mill, dry_run=dry_run, threshold_hours=threshold_hours, subdomain=subdomain)
    if json_wanted:
        stepped = {"stepped_aside": found is None, "dry_run": dry_run}
        return document(stepped | (found or Recovered([], [], [])).as_json())
    if found is None:
        return place.say("Another reconcile is at work; this one stepped aside")
    for site, reason in found.mended:
        line(f"{'Would recover' if dry_run else 'Recovering'} {site}: {reason}")
    for site, reason in found.left:
        line(f"Left to a person: {site}: {reason}")
    return place.say(f"{'Would recover' if dry_run else 'Recovered'} {found.sites} sites")


@click.command(cls=Command, short_help="List runs that have no job any more.")
@click.option("--reset", is_flag=True, help="Cancel them.")
@click.option("--reenqueue", is_flag=True, help="Cancel them, and start each site again with high priority.")
@click.option(
    "--max-age", type=click.FloatRange(0, 10_000), default=2.0, show_default=True, help="Unchanged for so many hours."
)
@as_json
@pass_place
def cleanup_orphaned(place: Place, reset: bool, reenqueue: bool, max_age: float, json_wanted: bool) -> None:
    """List active runs of which no job is queued or leased; with --reset or --reenqueue, do something about them."""
    from clerk.commands import recovering

    with place.open() as mill:
        found = recovering.orphans(mill, max_age)
        if reset or reenqueue:
            found = [recovering.clean_up(mill, one, reenqueue) for one in found]
    if json_wanted:
        return document({"total": len(found), "runs": [asdict(one) for one in found]})
    line(f"Found {plural(len(found), 'orphaned run')}")
    for one in found:
        did = "" if one.now == "found" else f": {one.now}"
        again = f" (run: {one.new_run})" if one.new_run else ""
        line(f"  {one.subdomain}: {one.stage}, run {one.run}, since {one.updated_at:%Y-%m-%d %H:%M:%S}{did}{again}")
    return None
