"""Reconciliation: the engine mends its ledger; here is what clerk adds to that."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from clerk import sites
from clerk.pipeline.extracting import LATEST

if TYPE_CHECKING:
    from gristmill import Mill
    from gristmill.model import Repair

log = logging.getLogger(__name__)

PATIENCE: Final = 60.0  # of a command that comes again after 15 minutes
_LONGEST_REST: Final = 1.0  # or looking at many runs would use up all of it
_WAITING = text("SELECT subdomain, run_id FROM clerk_site WHERE current_stage = 'extraction' AND outcome IS NULL")


def reconcile(
    mill: Mill, *, dry_run: bool = False, threshold_hours: float = 0, subdomain: str | None = None
) -> list[Repair] | None:
    """What was found, and mended unless `dry_run`; None: another one is at work, and this one stepped aside."""
    found = mill.reconciler(dry_run=dry_run, subject=subdomain, threshold=threshold_hours * 3600).run()
    if found is not None and not dry_run:
        for _, run in late_extractions(mill, subdomain):
            skip_extraction(mill, run)
        sites.catch_up(mill)
        if subdomain is None:
            prune(mill)
    return found


def prune(mill: Mill, patience: float = PATIENCE) -> None:
    """Removes runs that are not kept any longer; what takes longer than `patience` (seconds) is left to the next time.

    Only whose role may delete: that of a worker may not, and then the owner of the tables has to reconcile now and then.
    """
    if not _may_delete(mill):
        return
    pruner = mill.pruner()
    end = time.monotonic() + patience
    rest = pruner.tick(time.monotonic())
    while not pruner.idle and time.monotonic() < end:
        time.sleep(min(rest, _LONGEST_REST))
        rest = pruner.tick(time.monotonic())
    if pruner.record.runs:
        log.info("removed %d runs that are not kept any longer, with %d jobs", pruner.record.runs, pruner.record.jobs)


def _may_delete(mill: Mill) -> bool:
    with mill.transaction() as connection:
        if connection.dialect.name == "sqlite":
            return True
        return bool(connection.execute(text("SELECT has_table_privilege('gm_run', 'DELETE')")).scalar_one())


def late_extractions(mill: Mill, subdomain: str | None = None) -> list[tuple[str, int]]:
    """Sites that were compiled two hours ago, and whose extraction nobody has begun: perhaps there is no worker for it."""
    with mill.transaction() as connection:
        waiting = [(row.subdomain, row.run_id) for row in connection.execute(_WAITING)]
    return [(name, run) for name, run in waiting if subdomain in (None, name) and _is_late(mill, run)]


def _is_late(mill: Mill, run: int) -> bool:
    compiled = mill.run(run).stage("compilation").closed_at
    late = compiled is not None and datetime.now(UTC) - compiled > LATEST
    return late and any(not job.attempt for job in mill.jobs(run=run, stage="extraction", state="queued"))


def skip_extraction(mill: Mill, run: int) -> None:
    """Takes the job as a worker of extraction would, for this run alone: begun so late, it skips itself."""
    mill.work(run=run, queues=["extraction"], slots=1)
