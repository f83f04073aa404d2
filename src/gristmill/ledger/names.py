"""Queues, tasks and classes by name: rows that many jobs share, made on first use and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gristmill.demand import MOST_CLASSES, NOTHING, Demand, pool_of
from gristmill.errors import Invalid
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx, repeatable

_ADD_QUEUES = Sql("INSERT INTO gm_queue (name) SELECT f.name FROM {rows f: name text} WHERE true ON CONFLICT DO NOTHING")
_QUEUES = Sql("SELECT name, id FROM gm_queue")
_ADD_TASKS = Sql(
    "INSERT INTO gm_task (name, spec) SELECT f.name, f.spec FROM {rows f: name text, spec text} WHERE true"
    " ON CONFLICT DO NOTHING"
)
_TASKS = Sql(
    "SELECT t.name, t.spec, t.id FROM gm_task t JOIN {rows f: name text, spec text} ON f.name = t.name AND f.spec = t.spec"
)
CLASSES = Sql("SELECT id, demand FROM gm_class WHERE id > :known ORDER BY id")
_ADD_CLASS = Sql(  # counted, not drawn from a sequence: what is tried in vain must not use up small numbers
    "INSERT INTO gm_class (id, demand) SELECT coalesce(max(id), 0) + 1, :demand FROM gm_class WHERE true"
    " ON CONFLICT DO NOTHING"
)
_RING = Sql(
    "INSERT INTO gm_ringer (queue_id, delivery, at) VALUES (:queue, :delivery, {now})"
    " ON CONFLICT (queue_id, delivery) DO UPDATE SET at = excluded.at"
)
_TASK_NAMES = Sql("SELECT id, name FROM gm_task ORDER BY id")


def queues(tx: Tx) -> dict[str, int]:
    return {row.name: row.id for row in tx.all(_QUEUES)}


def add_queues(tx: Tx, names: Iterable[str]) -> dict[str, int]:
    """The numbers of all queues, with those named made if they were not there."""
    tx.run(_ADD_QUEUES, f=[(name,) for name in sorted(set(names))])
    return queues(tx)


@repeatable
def note_delivery(tx: Tx, queue: int, delivery: str) -> None:
    """Remembers by which delivery workers are told of jobs in this queue."""
    tx.run(_RING, queue=queue, delivery=delivery)


def tasks(tx: Tx) -> list[tuple[int, str]]:
    """(number, name) of every task that was ever asked for."""
    return [(row.id, row.name) for row in tx.all(_TASK_NAMES)]


def add_tasks(tx: Tx, specs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The numbers of these (name, spec) pairs, made if they were not there."""
    wanted = sorted(set(specs))
    tx.run(_ADD_TASKS, f=wanted)
    return {(row.name, row.spec): row.id for row in tx.all(_TASKS, f=wanted)}


def classes(tx: Tx, known: int = 0) -> dict[int, Demand]:
    """What jobs of each class ask for; only classes above a number."""
    return {row.id: Demand.from_json(row.demand) for row in tx.all(CLASSES, known=known)}


def add_classes(tx: Tx, demands: Iterable[Demand]) -> dict[Demand, int]:
    """The numbers of all classes, with these made if they were not there."""
    while True:
        found = {NOTHING: 0} | {demand: number for number, demand in classes(tx).items()}
        missing = [demand for demand in demands if demand not in found]
        if not missing:
            return found
        if len(found) > MOST_CLASSES:
            raise Invalid(f"there are {len(found):,} different demands for labels, cpu and memory; let tasks share some")
        for demand in missing:
            tx.run(_ADD_CLASS, demand=demand.to_json())  # in vain, if someone else just took the number


def add_pool(tx: Tx, demands: Sequence[Demand]) -> int:
    """The pool of (plain) jobs that ask for the first of these; the others are for when that was not enough."""
    return pool_of(add_classes(tx, demands)[demands[0]])
