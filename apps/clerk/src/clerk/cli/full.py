"""`build-full-db`."""

from __future__ import annotations

from typing import Any

import click

from clerk.cli.app import Command, Place, pass_place, plural


@click.command(cls=Command, short_help="Build one database of all sites.")
@pass_place
def build_full_db(place: Place) -> None:
    """Build STORAGE_DIR/meetings.db of all sites' databases, and the list of sites, sites.db."""
    from clerk import sites
    from clerk.compiling import build_full

    with place.open() as mill:

        def listed() -> list[dict[str, Any]]:
            with mill.transaction() as connection:
                return sites.listed(connection)

        path = build_full(place.config.storage, listed)
        place.say(f"Built {path} of {plural(len(listed()), 'site')}")
