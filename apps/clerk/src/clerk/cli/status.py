"""`status` and `pipeline-status`."""

from __future__ import annotations

from dataclasses import asdict

import click

from clerk.cli.app import Command, Place, as_json, document, line, pass_place, site_option


@click.command(cls=Command, short_help="Show queues and active sites, or one site.")
@site_option()
@as_json
@pass_place
def status(place: Place, subdomain: str | None, json_wanted: bool) -> None:
    """Show how long the queues are and where active sites are; with -s how far one site is."""
    from clerk import status

    with place.open() as mill:
        found = status.of_site(mill, subdomain) if subdomain else status.overview(mill)
    if json_wanted:
        return document(found.as_json())
    for text in found.text().split("\n"):
        line(text)
    return None


@click.command(cls=Command, short_help="Show totals by stage.")
@as_json
@pass_place
def pipeline_status(place: Place, json_wanted: bool) -> None:
    """Show how many sites are in each stage, and what became of the documents and jobs of their latest runs."""
    from clerk import status

    with place.open() as mill:
        found = status.totals(mill)
    if json_wanted:
        return document(asdict(found))
    for text in found.text().split("\n"):
        line(text)
    return None
