"""Queues and tasks by name: rows that many jobs share, made on first use and never changed."""

from __future__ import annotations

from collections.abc import Iterable

from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx

_ADD_QUEUES = Sql("INSERT INTO gm_queue (name) SELECT f.name FROM {rows f: name text} WHERE true ON CONFLICT DO NOTHING")
_QUEUES = Sql("SELECT name, id FROM gm_queue")
_ADD_TASKS = Sql(
    "INSERT INTO gm_task (name, spec) SELECT f.name, f.spec FROM {rows f: name text, spec text} WHERE true"
    " ON CONFLICT DO NOTHING"
)
_TASKS = Sql(
    "SELECT t.name, t.spec, t.id FROM gm_task t JOIN {rows f: name text, spec text} ON f.name = t.name AND f.spec = t.spec"
)
_TASK_NAMES = Sql("SELECT id, name FROM gm_task ORDER BY id")


def queues(tx: Tx) -> dict[str, int]:
    return {row.name: row.id for row in tx.all(_QUEUES)}


def add_queues(tx: Tx, names: Iterable[str]) -> dict[str, int]:
    """The numbers of all queues, with those named made if they were not there."""
    tx.run(_ADD_QUEUES, f=[(name,) for name in sorted(set(names))])
    return queues(tx)


def tasks(tx: Tx) -> list[tuple[int, str]]:
    """(number, name) of every task that was ever asked for."""
    return [(row.id, row.name) for row in tx.all(_TASK_NAMES)]


def add_tasks(tx: Tx, specs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The numbers of these (name, spec) pairs, made if they were not there."""
    wanted = sorted(set(specs))
    tx.run(_ADD_TASKS, f=wanted)
    return {(row.name, row.spec): row.id for row in tx.all(_TASKS, f=wanted)}
