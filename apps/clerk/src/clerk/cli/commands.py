"""The command line as a whole: `clerk` and where everything under it is."""

from __future__ import annotations

import os
from pathlib import Path

import click

from clerk import __version__
from clerk.cli.app import PLUGINS_DIR, Lazy, Place

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# The first page of help: a row for what belongs together, each command in one.
ROWS: dict[str, dict[str, str]] = {
    "Create a site; say something else of it.": {"new": "sites:new", "change": "sites:change"},
    "Run a site now, or whose turn it is; many; stop one.": {
        "update": "sites:update",
        "enqueue": "sites:enqueue",
        "purge": "sites:purge",
    },
    "Run a site in this process; one stage of it.": {"run-local": "local:run_local", "run-stage": "local:run_stage"},
    "Show queues and sites; totals by stage.": {"status": "status:status", "pipeline-status": "status:pipeline_status"},
    "Say whether all is well; look at what workers need.": {
        "health": "health:health",
        "diagnose-workers": "diagnosing:diagnose_workers",
    },
    "List jobs that failed; empty a queue.": {"check-failed": "queues:check_failed", "purge-queue": "queues:purge_queue"},
    "Mend what is not as it should be; runs without jobs.": {
        "reconcile": "mending:reconcile",
        "cleanup-orphaned": "mending:cleanup_orphaned",
    },
    "Run a worker; say how many this machine can have.": {
        "worker": "working:worker",
        "worker-count": "services:worker_count",
    },
    "Services of all workers.": {
        "install-workers": "services:install_workers",
        "uninstall-workers": "services:uninstall_workers",
        "reload-workers": "services:reload_workers",
    },
    "All sites in one database; the dashboard.": {
        "build-full-db": "full:build_full_db",
        "dashboard": "dashboard:dashboard",
    },
    "Bring the database to this version.": {"db": "db:db"},
    "Move from an older clerk, with its stuck sites.": {
        "import-legacy": "moving:import_legacy",
        "migrate-stuck-sites": "moving:migrate_stuck_sites",
    },
}


def _set_plugins_dir(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    if not value.is_dir():
        raise click.BadParameter(f"{str(value)!r} is not a folder", ctx=ctx, param=parameter)
    os.environ[PLUGINS_DIR] = str(value.absolute())  # children read it there


@click.group(cls=Lazy, name="clerk", rows=ROWS, context_settings=CONTEXT)
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path),
    expose_value=False,
    is_eager=True,
    callback=_set_plugins_dir,
    metavar="DIR",
    help="Where plugins are (default: ./plugins).",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only what was asked for, and errors.")
@click.version_option(__version__, message="clerk %(version)s")
@click.pass_context
def clerk(ctx: click.Context, quiet: bool) -> None:
    """Municipal documents: fetched, read, searchable, published."""
    place = ctx.ensure_object(Place)
    place.quiet = place.quiet or quiet


clerk.other_names = {"reconcile-pipeline": "reconcile"}  # as older crontabs call it
