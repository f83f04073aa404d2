"""`install-workers`, `uninstall-workers`, `reload-workers`, `worker-count`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from clerk.cli.app import Command, Place, dry_run_option, line, pass_place, plural

F = TypeVar("F", bound=Callable[..., Any])
_TARGETS = ("launchd", "systemd", "compose", "kubernetes")


def _target(function: F) -> F:
    return click.option("--target", type=click.Choice(_TARGETS), help="Default: this system's, launchd or systemd.")(
        function
    )


def _output(text: str) -> Callable[[F], F]:
    return click.option("--output", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help=text)


def _env_file() -> Path | None:
    from clerk.config import dotenv_file

    return dotenv_file(Path.cwd())


@click.command(cls=Command, short_help="Install a service for each worker.")
@_target
@_output("Only write the files, there.")
@dry_run_option
@pass_place
def install_workers(place: Place, target: str | None, output: Path | None, dry_run: bool) -> None:
    """Install a service for each worker that .env asks for, and timers for the scheduler and reconcile.

    Again, after a change: what is the same is left alone, what is too many goes.
    """
    from clerk import config, services

    chosen = target or services.default_target()
    as_services_see_it = config.load(environ={})  # what this shell has exported is not there when they start
    files = services.install(chosen, as_services_see_it, _env_file(), output, dry_run)
    if (env := _env_file()) and (wrong := config.seen_by_others(env)):
        click.echo(f"Warning: {wrong}", err=True)
    for path, text in files:
        if dry_run:
            line(f"==> {path}")
            click.echo(text)
        else:
            place.say(str(path))
    if not dry_run:
        place.say(f"{'Wrote' if output else 'Installed'} {plural(len(files), 'file')} for {chosen}")


@click.command(cls=Command, short_help="Remove the services.")
@_target
@_output("Remove the files that were written there.")
@pass_place
def uninstall_workers(place: Place, target: str | None, output: Path | None) -> None:
    """Stop and remove exactly the services that install-workers installed. What ends containers is said."""
    from clerk import services

    chosen = target or services.default_target()
    gone = services.uninstall(chosen, _env_file(), output)
    for path in gone:
        place.say(str(path))
    place.say(f"Removed {plural(len(gone), 'file')}" if gone else "No services of clerk are installed")
    if gone and (ends := services.TARGETS[chosen].ends):
        line(f"What was started from them runs on; to end it, type: {ends}")


@click.command(cls=Command, short_help="Restart the workers, each after the item at hand.")
@_target
@pass_place
def reload_workers(place: Place, target: str | None) -> None:
    """Restart the workers, after a release; each finishes the item at hand first. None installed: exit 1."""
    from clerk import services

    found = services.reload(target or services.default_target(), _env_file())
    place.say(f"Reloaded {plural(len(found), 'service')}")


@click.command(cls=Command, short_help="Say how many workers a machine can have.")
@click.option("--cores", type=click.IntRange(1, 100_000), help="Default: this machine's.")
@click.option("--ram-gb", type=click.FloatRange(0, 1_000_000, min_open=True), help="Default: this machine's.")
def worker_count(cores: int | None, ram_gb: float | None) -> None:
    """Print the worker counts that suit a machine, to be pasted into .env."""
    from clerk.services import count_text

    click.echo(count_text(cores, ram_gb))
