"""A job that ends itself in its application's transaction: its result and the application's rows in one commit."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.errors import NotYours, Skip
from gristmill.ledger import flow, parents
from gristmill.ledger.applied import Guard, late
from gristmill.ledger.claim import PART_OF
from gristmill.ledger.finish import Outcome, settle
from gristmill.ledger.hold import hold
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.states import TERMINAL, State

_HOLDER = Sql(
    f"SELECT worker_id, run_id, {PART_OF} AS part_of FROM gm_job"
    f" WHERE id = :job AND attempt = :attempt AND state = {State.IN_PROGRESS:d}"
)
_LOCK = Sql(_HOLDER.text + " {lock}")
_STATE = Sql("SELECT coalesce(ends_as, state) FROM gm_job WHERE id = :job")


def lock_own(tx: Tx, worker: int, job: int, attempt: int, guards: Sequence[Guard] = ()) -> bool:
    """Locks a job (its worker and run before it) for its own attempt; False: it is not this attempt's any more.

    Raises `Skip` if a newer version of what it applies (`guards`) was applied.

    The worker counts too: after a restore the same attempt of the same job may be another's.
    """
    row = tx.one(_HOLDER, job=job, attempt=attempt)
    if row is None or row.worker_id != worker:
        return False
    try:
        hold(tx, worker)
    except NotYours:
        return False
    flow.lock_runs(tx, [row.run_id])
    if guards and (why := late(tx, [(job, guards)])):
        raise Skip(why[job])
    parents.lock(tx, [row.part_of])
    locked = tx.one(_LOCK, job=job, attempt=attempt)
    return locked is not None and locked.worker_id == worker


def finish_own(tx: Tx, worker: int, outcome: Outcome) -> None:
    """The end of a job that `lock_own` has locked in this transaction."""
    if settle(tx, worker, [outcome]):
        raise NotYours(f"job {outcome.job} was not this attempt's any more")


def has_ended(tx: Tx, job: int) -> bool:
    return tx.value(_STATE, job=job) in TERMINAL
