"""`metrics`: what Prometheus reads, for node_exporter's textfile collector, cron, and people."""

from __future__ import annotations

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Place, as_json, pass_place


@click.command(cls=Command, short_help="Print the metrics that Prometheus reads.")
@as_json
@pass_place
def metrics(place: Place, json_wanted: bool) -> None:
    """Print all metrics in Prometheus's text format.

    They are read from the database, so any process may answer. For node_exporter's textfile collector,
    write them to a file beside and rename it.
    """
    from gristmill.metrics import exposition, to_json

    with place.open() as mill:
        if json_wanted:
            return show.document(to_json(mill.metrics()))
        return click.echo(exposition(mill), nl=False)
