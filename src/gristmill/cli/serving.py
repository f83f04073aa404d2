"""`serve`: the HTTP API, and the pages."""

from __future__ import annotations

import logging
import socket

import click

from gristmill.cli import dashboard
from gristmill.cli.app import Command, Place, pass_place
from gristmill.cli.values import number
from gristmill.cli.working import log_to_stderr

log = logging.getLogger("gristmill.cli")


@click.command(cls=Command, needs_app=True, works=True, short_help="Serve the dashboard and the HTTP API.")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Where to listen (default: 127.0.0.1).")
@click.option("--port", type=number(0, 65535), default=8080, metavar="PORT", help="(default: 8080; 0: any that is free)")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Answer to this name too. Repeat it.")
@click.option("--read-only", is_flag=True, help="Nobody can change anything.")
@click.option("--beside", type=int, hidden=True, help="What `up` listens on: an open file.")
@pass_place
def serve(place: Place, host: str, port: int, hosts: tuple[str, ...], read_only: bool, beside: int | None) -> None:
    """Serve the dashboard and the HTTP API. Without a token, on this machine only."""
    from gristmill.api.serving import run

    log_to_stderr()
    if beside is not None:
        dashboard.end_with_parent()
    app = place.registry_if_any()
    if read_only:
        place.refuse_new_file()
    with place.open(*([app] if app.tasks else [])) as mill:
        listening = None if beside is None else socket.socket(fileno=beside)
        run(mill, host, port, hosts=hosts, read_only=read_only, where=place.shown(), listening=listening)
