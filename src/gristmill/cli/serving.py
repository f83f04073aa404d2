"""`serve`: the HTTP API, and the pages."""

from __future__ import annotations

import logging

import click

from gristmill.cli.app import Command, Place, pass_place
from gristmill.cli.values import number
from gristmill.cli.working import log_to_stderr

log = logging.getLogger("gristmill.cli")


@click.command(cls=Command, needs_app=True, works=True, short_help="Serve the dashboard and the HTTP API.")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Where to listen (default: 127.0.0.1).")
@click.option("--port", type=number(0, 65535), default=8080, metavar="PORT", help="(default: 8080; 0: any that is free)")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Answer to this name too. Repeat it.")
@click.option("--read-only", is_flag=True, help="Nobody can change anything.")
@pass_place
def serve(place: Place, host: str, port: int, hosts: tuple[str, ...], read_only: bool) -> None:
    """Serve the dashboard and the HTTP API. Without a token, on this machine only."""
    from gristmill.api.serving import run

    app = place.registry_if_any()
    log_to_stderr()
    with place.open(*([app] if app.tasks else [])) as mill:
        run(mill, host, port, hosts=hosts, read_only=read_only, where=place.shown())
