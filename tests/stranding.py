"""Runs that are stuck, as only a fault can leave them."""

from __future__ import annotations

from sqlalchemy import text

from gristmill import Mill


def strand(mill: Mill, run: int) -> int:
    """The only job of a new run has ended, and nothing followed from it."""
    with mill.transaction() as connection:
        for change in (
            "UPDATE gm_run SET state = 1, started_at = created_at WHERE id = :run",
            "UPDATE gm_job SET state = 2, ready = NULL, run_at = NULL, finished_at = 1 WHERE run_id = :run",
            "UPDATE gm_stage SET completed = total WHERE run_id = :run",
        ):
            connection.execute(text(change), {"run": run})
    return run
