"""The command line as a whole: `gristmill` and everything under it."""

from __future__ import annotations

import click

from gristmill import __version__
from gristmill.cli import db, jobs, queues, runs, signatures, starting, status, subjects, why, workers, working
from gristmill.cli.app import Group

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Group, name="gristmill", context_settings=CONTEXT)
@click.version_option(__version__, message="gristmill %(version)s", hidden=True)
def gristmill() -> None:
    """Moves large sets of documents through pipelines, and says where each one is."""


for command in (
    starting.start,
    starting.enqueue,
    working.up,
    working.work,
    status.status,
    status.watch,
    why.why,
    subjects.subject,
    runs.run,
    jobs.job,
    signatures.error,
    queues.queue,
    workers.worker,
    workers.reconcile,
    db.db,
):
    gristmill.add_command(command)
