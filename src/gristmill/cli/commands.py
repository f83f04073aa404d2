"""The command line as a whole: `gristmill` and everything under it."""

from __future__ import annotations

import click

from gristmill import __version__
from gristmill.cli import (
    audit,
    backups,
    db,
    doctor,
    jobs,
    limits,
    locks,
    mending,
    metrics,
    queues,
    runs,
    schedules,
    serving,
    signatures,
    starting,
    status,
    subjects,
    tokens,
    why,
    workers,
    working,
)
from gristmill.cli.app import Group

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Group, name="gristmill", context_settings=CONTEXT)
@click.version_option(__version__, message="gristmill %(version)s", hidden=True)
def gristmill() -> None:
    """Moves large sets of documents through pipelines, and says where each one is."""


# The first page of help: a row for what belongs together, each command in one.
ROWS: dict[str, tuple[click.Command, ...]] = {
    "Start a run of a pipeline; add a job on its own.": (starting.start, starting.enqueue),
    "Run all of this machine; one worker; the dashboard.": (working.up, working.work, serving.serve),
    "Show the overall picture; runs as they go on, live.": (status.status, status.watch),
    "Say why something is not moving; mend what is wrong.": (why.why, mending.reconcile),
    "List, show, stop, retry and remove what there is.": (subjects.subject, runs.run, jobs.job),
    "List failures by cause; retry or ignore a cause.": (signatures.error,),
    "List, add, pause and run what starts at set times.": (schedules.schedule,),
    "List, pause, set and purge queues; list and set limits.": (queues.queue, limits.limit),
    "List workers; list who holds locks and waits for them.": (workers.worker, locks.lock),
    "Check the database and machine; print metrics.": (doctor.doctor, metrics.metrics),
    "List what people did; remove what is not kept.": (audit.audit, audit.prune),
    "Make, list and revoke tokens for the HTTP API.": (tokens.token,),
    "Write the ledger into a file; put it back.": (backups.backup, backups.restore),
    "Bring the database to the schema that this version needs.": (db.db,),
}
for commands in ROWS.values():
    for command in commands:
        gristmill.add_command(command)
gristmill.rows = {text: [str(command.name) for command in commands] for text, commands in ROWS.items()}
