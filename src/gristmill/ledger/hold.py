"""The first lock of every verb that a worker calls: its own row, shared. A rescue takes it exclusively."""

from __future__ import annotations

from gristmill.errors import NotYours
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import WorkerState

_HOLD = Sql(f"SELECT lease_until > {{now}} FROM gm_worker WHERE id = :worker AND state = {WorkerState.ACTIVE:d} {{share}}")


def hold(tx: Tx, worker: int, *, leased: bool = False) -> None:
    """Makes sure that this worker is not lost, and cannot be declared so before this transaction ends."""
    check(worker, tx.value(_HOLD, worker=worker), leased=leased)


def check(worker: int, lasts: bool | None, *, leased: bool) -> None:
    """Refuses a lost worker. `lasts`: is its lease not over? None: it is no worker any more."""
    if lasts is None or (leased and not lasts):
        raise NotYours(f"worker {worker} was declared lost" if lasts is None else f"the lease of worker {worker} is over")
