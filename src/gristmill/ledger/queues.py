"""Queues: pause, weight; and delayed jobs that become ready when they are due."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gristmill.errors import NotFound, did_you_mean, quoted
from gristmill.ledger import limits
from gristmill.ledger.names import queues
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx
from gristmill.states import WorkerState


class QueueRow(NamedTuple):
    id: int
    name: str
    weight: float
    paused: bool
    limit_id: int | None = None


_ALL = Sql("SELECT id, name, weight, paused, limit_id FROM gm_queue ORDER BY id")
_PAUSE = Sql("UPDATE gm_queue SET paused = :paused WHERE name = :name")
_WEIGHT = Sql("UPDATE gm_queue SET weight = :weight WHERE name = :name")
_PROMOTE = Sql(
    "UPDATE gm_job SET ready = {ready}, run_at = {waits} WHERE id {one_of SELECT id FROM gm_job"
    " WHERE run_at <= {now} ORDER BY run_at LIMIT :most {skip}} RETURNING queue_id, limit_id"
)
_HEAD = Sql(
    "SELECT id FROM (SELECT id, task_id FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool"
    " ORDER BY priority, ready LIMIT :most) AS head WHERE task_id {in tasks}"
)
_PUT_OFF = Sql(
    "UPDATE gm_job SET ready = NULL, run_at = {now} + :delay, error = :reason WHERE id {in ids} AND ready IS NOT NULL"
)
_OTHER_WORKER = Sql(f"SELECT 1 FROM gm_worker WHERE state = {WorkerState.ACTIVE:d} AND id <> :worker LIMIT 1")
NEXT_DUE = Sql("SELECT run_at - {now} FROM gm_job WHERE run_at < {waiting} ORDER BY run_at LIMIT 1")
_NEXT_DUE_OF = Sql(
    "SELECT run_at - {now} FROM gm_job WHERE run_at < {waiting} AND queue_id {in ids} ORDER BY run_at LIMIT 1"
)


def all_queues(tx: Tx) -> list[QueueRow]:
    return [QueueRow(row.id, row.name, row.weight, bool(row.paused), row.limit_id) for row in tx.all(_ALL)]


def set_paused(tx: Tx, name: str, paused: bool, *, by: str) -> None:
    if not tx.run(_PAUSE, name=name, paused=paused):
        raise NotFound(f"there is no queue {quoted(name)}{did_you_mean(name, queues(tx))}")
    audit(tx, by, "queue.pause" if paused else "queue.resume", f"queue {name}")
    tx.ring(queues(tx)[name])
    for limit in limits.waiting_keys(tx) if not paused else ():  # more are found by whoever keeps house
        tx.poke(limit)


def set_weight(tx: Tx, name: str, weight: float, *, by: str) -> None:
    if not tx.run(_WEIGHT, name=name, weight=weight):
        raise NotFound(f"there is no queue {quoted(name)}{did_you_mean(name, queues(tx))}")
    audit(tx, by, "queue.set", f"queue {name}", weight=weight)


def promote(tx: Tx, most: int = 1000) -> int:
    """Puts delayed jobs that are due into the line; says how many."""
    rows = tx.all(_PROMOTE, most=most)
    for queue, limit in set(rows):
        tx.poke(limit)
        if limit is None:
            tx.ring(queue)
    return len(rows)


def put_off(tx: Tx, worker: int, queue: int, pool: int, tasks: Collection[int], delay: int, reason: str) -> None:
    """Delays jobs of tasks that this worker does not know, so that they do not stand before those that it can run.

    Only from the head of the line, as far as is read at once, and only if no other worker is there that may know them.
    """
    if tx.one(_OTHER_WORKER, worker=worker) is not None:
        return
    ids = [row.id for row in tx.all(_HEAD, queue=queue, pool=pool, tasks=sorted(tasks), most=1000)]
    if ids:
        tx.run(_PUT_OFF, ids=ids, delay=delay, reason=reason)


def next_due(tx: Tx, only: Collection[int] | None = None) -> int | None:
    """Microseconds until the next delayed job (of `only` these queues) is due; None: there is none."""
    due: int | None = tx.value(NEXT_DUE) if only is None else tx.value(_NEXT_DUE_OF, ids=sorted(only))
    return due
