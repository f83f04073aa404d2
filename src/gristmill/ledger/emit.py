"""Streaming fan-out: a running job gives items to the `each` stages after its own, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from gristmill.ledger import flow
from gristmill.ledger.hold import hold
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import State


class Item(NamedTuple):
    """One item: its key (empty: its producer's), its arguments as JSON, and the stage it is for (None: all of them)."""

    key: str
    args: str | None
    stage: str | None = None


class Refusal(NamedTuple):
    """Why a producer must stop."""

    reason: str
    stopped: bool = False  # its run is being stopped: it did nothing wrong


class Emission(NamedTuple):
    """A batch of items from one attempt of one job; batches of an attempt are numbered, from 1."""

    job: int
    attempt: int
    run: int
    number: int
    items: Sequence[Item]


_PRODUCERS = Sql(
    "SELECT j.id, j.attempt, j.stage_id, j.key, j.emitted, s.name AS stage"
    " FROM gm_job j JOIN gm_stage s ON s.id = j.stage_id"
    f" WHERE j.id {{in ids}} AND j.state = {State.IN_PROGRESS:d} AND j.worker_id = :worker"
)
_TARGETS = Sql(
    "SELECT e.upstream_id, s.id, s.name, s.task_id, s.queue_id, s.pool FROM gm_edge e"
    " JOIN gm_stage s ON s.id = e.downstream_id WHERE e.upstream_id {in ids} AND s.each ORDER BY s.id"
)
_ADD = Sql(
    "INSERT INTO gm_job (run_id, stage_id, parent_id, parent_attempt, task_id, queue_id, pool, priority, key, args, state,"
    f" ready, created_at) SELECT f.run, f.stage, f.parent, f.number, f.task, f.queue, f.pool, f.urgency, f.path, f.args,"
    f" {State.QUEUED:d}, {{next}}, {{now}} FROM {{rows f: run bigint, stage bigint, parent bigint, number int, task int,"
    " queue int, pool smallint, urgency smallint, path text, args text} WHERE true"
    " ON CONFLICT (stage_id, key) WHERE stage_id IS NOT NULL DO NOTHING RETURNING stage_id, key"
)
_THERE = Sql(
    "SELECT j.stage_id, j.key, j.parent_id, j.parent_attempt FROM gm_job j"
    " JOIN {rows f: stage bigint, path text} ON j.stage_id = f.stage AND j.key = f.path"
)
_EMITTED = Sql("UPDATE gm_job SET emitted = f.position FROM {rows f: job bigint, position bigint} WHERE gm_job.id = f.job")
_AGAIN = Sql(
    "UPDATE gm_job SET parent_attempt = f.number FROM {rows f: stage bigint, path text, number int}"
    " WHERE gm_job.stage_id = f.stage AND gm_job.key = f.path"
)
_GROW = Sql(
    "UPDATE gm_stage SET total = total + f.more FROM {rows f: stage bigint, more bigint} WHERE gm_stage.id = f.stage"
)


def emit(tx: Tx, worker: int, emissions: Sequence[Emission]) -> dict[int, Refusal]:
    """Adds items and counts them, in one transaction. Says which producers must stop, and why.

    The same path twice from one attempt is an error; from a retry of the producer it is a no-op.
    """
    hold(tx, worker)
    return add_items(tx, worker, emissions, flow.lock_runs(tx, [e.run for e in emissions]))


def add_items(tx: Tx, worker: int, emissions: Sequence[Emission], runs: flow.LockedRuns) -> dict[int, Refusal]:
    """The same for a caller that has locked the worker's row and the runs."""
    producers = {row.id: row for row in tx.all(_PRODUCERS, worker=worker, ids=[e.job for e in emissions])}
    targets: dict[int, list[Any]] = {}
    for row in tx.all(_TARGETS, ids=sorted({p.stage_id for p in producers.values()})) if producers else ():
        targets.setdefault(row.upstream_id, []).append(row)
    refused: dict[int, Refusal] = {}
    rows: list[tuple[Any, ...]] = []
    last: dict[int, int] = {}
    for emission in emissions:
        producer = producers.get(emission.job)
        if producer is None or producer.attempt != emission.attempt:
            refused[emission.job] = Refusal("not yours any more")
        elif runs[emission.run].stop is not None:
            refused[emission.job] = Refusal("the run is being stopped", stopped=True)
        elif _position(emission) > producer.emitted:  # else it is here already: its commit got no answer
            last[emission.job] = max(last.get(emission.job, 0), _position(emission))
            rows += _rows(emission, producer, targets.get(producer.stage_id, []), runs[emission.run].priority)
    if rows:
        refused.update(_add(tx, rows))
        tx.run(_EMITTED, f=sorted(last.items()))
    return refused


def _position(emission: Emission) -> int:
    """Grows with every batch, and with every attempt."""
    return emission.attempt << 32 | emission.number


def _rows(emission: Emission, producer: Any, targets: Sequence[Any], priority: int) -> list[tuple[Any, ...]]:
    rows = []
    for item in emission.items:
        path = _path(producer, item.key)
        for to in targets:
            if item.stage is None or item.stage == to.name:
                origin = (emission.run, to.id, producer.id, producer.attempt)
                rows.append((*origin, to.task_id, to.queue_id, to.pool, priority, path, item.args))
    return rows


def _path(producer: Any, key: str) -> str:
    """An item's identity: its producer's path and its own key. Without a key it goes on under its producer's."""
    if not key:
        return producer.key or str(producer.stage)
    return f"{producer.key}/{key}" if producer.key else key


def _add(tx: Tx, rows: list[tuple[Any, ...]]) -> dict[int, Refusal]:
    wanted = {(row[1], row[8]): row for row in rows}
    twice = {row[2]: Refusal(_TWICE.format(row[8])) for row in rows if wanted[row[1], row[8]] is not row}
    added = [tuple(row) for row in tx.all(_ADD, f=list(wanted.values()))]
    if len(added) < len(wanted):
        again: list[tuple[int, str, int]] = []
        for stage, path, parent, attempt in tx.all(_THERE, f=sorted(set(wanted) - set(added))):
            emitter = wanted[stage, path]
            if parent != emitter[2] or attempt == emitter[3]:
                twice[emitter[2]] = Refusal(_TWICE.format(path))
            else:
                again.append((stage, path, emitter[3]))
        if again:
            tx.run(_AGAIN, f=again)
    if added:
        tx.run(_GROW, f=sorted(Counter(stage for stage, _ in added).items()))
    for row in rows:
        tx.ring(row[5])
    return twice


_TWICE = "the key {!r} was emitted twice; keys must be unique within a stage"
