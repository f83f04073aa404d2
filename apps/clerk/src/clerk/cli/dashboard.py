"""`dashboard`: the engine's pages, over clerk's database."""

from __future__ import annotations

import click

from clerk.cli.app import Command, Place, pass_place


@click.command(cls=Command, short_help="Serve the dashboard.")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Where to listen (default: 127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), default=9181, metavar="PORT", help="(default: 9181)")
@pass_place
def dashboard(place: Place, host: str, port: int) -> None:
    """Serve queues, workers, failed jobs with their errors, history and timings; and /metrics, for Prometheus.

    With DASHBOARD_TOKEN only those get in who have it; without, it is for this machine only.
    """
    from clerk.metrics import measure
    from gristmill.api.serving import is_loopback, run

    token = place.config.dashboard_token
    if not token and not is_loopback(host):
        raise click.UsageError(
            f"anybody who reaches {host!r} could do everything; set DASHBOARD_TOKEN, which they must have"
        )
    with place.open() as mill:
        run(mill, host, port, token=token, metrics=[lambda: measure(mill)], where="clerk", tell=place.say)
