"""Taking jobs: the only way from `queued` to `in_progress`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from gristmill.ledger.hold import hold
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import State


class Lane(NamedTuple):
    """A line of ready jobs: of all priorities in their order, or of one priority from a floor on.

    Entries up to the floor are known to be gone: PostgreSQL's index keeps them a while, and longer under a held snapshot.
    """

    queue_id: int
    pool: int
    priority: int | None = None
    floor: int = 0


class Want(NamedTuple):
    """Up to `most` jobs from these lanes of one pool, in this order."""

    pool: int
    most: int
    lanes: tuple[Lane, ...]


class Taken(NamedTuple):
    """What a claim got, the number to give back when all of it is done, and the lanes that had no more."""

    claim: int | None
    jobs: list[Claimed]
    empty: list[Lane]


class Claimed(NamedTuple):
    """A job in this worker's hands, payload undecoded."""

    id: int
    attempt: int
    run_id: int | None
    stage_id: int | None
    task_id: int
    queue_id: int
    pool: int
    alone: bool
    key: str | None
    args: str | None
    priority: int


_CLAIM = (
    f"UPDATE gm_job SET state = {State.IN_PROGRESS:d}, ready = NULL, attempt = attempt + 1, worker_id = :worker,"
    " started_at = {now}, unique_key = CASE WHEN unique_scope = 1 THEN NULL ELSE unique_key END"
    " WHERE id {one_of SELECT id FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND %s"
    " AND EXISTS (SELECT 1 FROM gm_queue WHERE id = :queue AND NOT paused) ORDER BY priority, ready LIMIT :most {skip}}"
    " RETURNING id, attempt, run_id, stage_id, task_id, queue_id, pool, alone, key, args, priority"
)
_IN_LINE = itemgetter(Claimed._fields.index("priority"), Claimed._fields.index("id"))
_CLAIM_ANY = Sql(_CLAIM % "true")
_CLAIM_FROM_FLOOR = Sql(_CLAIM % "priority = :priority AND ready > :floor")
_REMEMBER = Sql("INSERT INTO gm_claim (worker_id, jobs) VALUES (:worker, :jobs) RETURNING id")
_FLOOR = Sql(
    "SELECT ready FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND priority = :priority"
    " AND ready > :floor ORDER BY ready LIMIT 1"
)


def claim(tx: Tx, worker: int, wants: Sequence[Want], room: Mapping[int, int]) -> Taken:
    """Takes ready jobs, want by want, but no more of a pool than there is room for in all."""
    hold(tx, worker, leased=True)
    return take(tx, worker, wants, room)


def take(tx: Tx, worker: int, wants: Sequence[Want], room: Mapping[int, int]) -> Taken:
    """The same for a caller that has locked the worker's row."""
    left = dict(room)
    jobs: list[Claimed] = []
    empty: list[Lane] = []
    for want in wants:
        most = min(want.most, left[want.pool])
        for lane in want.lanes:
            if most <= 0:
                break
            if lane in empty:
                continue
            sql = _CLAIM_ANY if lane.priority is None else _CLAIM_FROM_FLOOR
            got = tx.tuples(sql, worker=worker, most=most, **_where(lane))
            if len(got) < most:
                empty.append(lane)
            jobs += map(Claimed._make, sorted(got, key=_IN_LINE))  # an UPDATE returns its rows in no order
            most -= len(got)
            left[want.pool] -= len(got)
    if not jobs:
        return Taken(None, jobs, empty)
    number: int = tx.value(_REMEMBER, worker=worker, jobs=orjson.dumps([job.id for job in jobs]).decode())
    return Taken(number, jobs, empty)


def find_floor(tx: Tx, lane: Lane) -> int:
    """Just below the first entry of a lane that is still there, looking from its old floor on."""
    first = tx.value(_FLOOR, **_where(lane))
    return lane.floor if first is None else int(first) - 1


def _where(lane: Lane) -> dict[str, Any]:
    line = {"queue": lane.queue_id, "pool": lane.pool}
    return line if lane.priority is None else {**line, "priority": lane.priority, "floor": lane.floor}
