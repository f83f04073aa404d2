"""`build-full-db`."""

from __future__ import annotations

from dataclasses import asdict

import click

from clerk.cli.app import Command, Place, pass_place, plural

_LISTED = (
    *("subdomain", "name", "state", "country", "kind", "scraper", "pages", "start_year", "lat", "lng"),
    *("last_updated", "last_deployed"),
)


@click.command(cls=Command, short_help="Build one database of all sites.")
@pass_place
def build_full_db(place: Place) -> None:
    """Build STORAGE_DIR/meetings.db of all sites' databases, and the list of sites, sites.db."""
    from clerk import sites
    from clerk.compiling import build_full

    with place.open() as mill:
        known = [{name: asdict(site)[name] for name in _LISTED} for site in sites.known(mill)]
    path = build_full(place.config.storage, known)
    place.say(f"Built {path} of {plural(len(known), 'site')}")
