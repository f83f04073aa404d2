"""How many jobs wait in each queue, and for how long: without counting a million of them.

Up to `COUNTED` jobs of a queue are counted. Beyond, on PostgreSQL, the line is estimated: places in it are drawn from one
sequence, so samples at even distances say how densely a line is filled. SQLite counts all, which is as fast there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.ledger.read import claimed_ids
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import State

COUNTED = 5000  # jobs of a queue, and of all that wait outside the lines: reading more takes milliseconds
_EVERYTHING = 1 << 60
_SEGMENTS, _OF_SEGMENT = 20, 100  # samples of a line, and how many jobs are looked at for each

_LINE = "FROM gm_job WHERE ready IS NOT NULL AND queue_id = "
_READY = Sql(f"SELECT q.id, (SELECT count(*) FROM (SELECT 1 {_LINE} q.id LIMIT :most) AS line) AS n FROM gm_queue q")
# The first of each line, one step from line to line; PostgreSQL and SQLite walk the index for that.
_HEADS = Sql(
    "WITH RECURSIVE head(id, queue_id, pool, priority, ready, created_at) AS ("
    "SELECT id, queue_id, pool, priority, ready, created_at FROM gm_job WHERE id = (SELECT id FROM gm_job"
    " WHERE ready IS NOT NULL ORDER BY queue_id, pool, priority, ready LIMIT 1)"
    " UNION ALL SELECT j.id, j.queue_id, j.pool, j.priority, j.ready, j.created_at FROM head h JOIN gm_job j ON j.id ="
    " (SELECT n.id FROM gm_job n WHERE n.ready IS NOT NULL AND (n.queue_id, n.pool, n.priority) >"
    " (h.queue_id, h.pool, h.priority) ORDER BY n.queue_id, n.pool, n.priority, n.ready LIMIT 1))"
    " SELECT queue_id, pool, priority, ready, created_at FROM head"
)
_THIS_LINE = f"{_LINE} l.queue AND pool = l.pool AND priority = l.priority"
_ESTIMATE = Sql(
    "SELECT l.queue, sum(CASE WHEN found.n < :most THEN found.n"
    " ELSE found.n::float8 * (part.stop - part.start) / (found.last - part.start + 1) END)::bigint AS n"
    " FROM {rows l: queue bigint, pool bigint, priority bigint, low bigint}"
    f" CROSS JOIN LATERAL (SELECT ready AS high {_THIS_LINE} ORDER BY ready DESC LIMIT 1) h"
    " CROSS JOIN generate_series(0, :parts::bigint - 1) AS i"
    " CROSS JOIN LATERAL (SELECT l.low + (h.high - l.low + 1) * i / :parts AS start,"
    " l.low + (h.high - l.low + 1) * (i + 1) / :parts AS stop) part"
    " CROSS JOIN LATERAL (SELECT count(*) AS n, max(ready) AS last FROM"
    f" (SELECT ready {_THIS_LINE} AND ready >= part.start AND ready < part.stop ORDER BY ready LIMIT :most) AS picked) found"
    " GROUP BY l.queue"
)
_OUTSIDE = (
    "SELECT queue_id, count(*) AS n, min(since) AS oldest FROM"
    " (SELECT queue_id, %s AS since FROM gm_job WHERE %s LIMIT :most) AS sampled GROUP BY queue_id"
)
_BY_STATE = {
    "ready": Sql(_OUTSIDE % ("run_at", "run_at <= {now}")),  # due, and a worker puts it into the line
    "delayed": Sql(_OUTSIDE % ("created_at", "run_at > {now} AND run_at < {waiting}")),
    "limited": Sql(_OUTSIDE % ("created_at", "run_at = {waiting}")),
}
_HELD = Sql(
    "SELECT queue_id, worker_id, count(*) AS n, min(started_at) AS oldest FROM gm_job WHERE id {in ids}"
    f" AND state = {State.IN_PROGRESS:d} GROUP BY queue_id, worker_id"
)


@dataclass
class Depth:
    """Of one queue in one state: how many, and since when the oldest is (microseconds since 1970)."""

    n: int = 0
    oldest: int | None = None

    def add(self, n: int, oldest: int | None) -> None:
        self.n += n
        if oldest is not None:
            self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)


Depths = dict[int, dict[str, Depth]]  # by queue and state


def depths(tx: Tx) -> tuple[Depths, dict[int, int]]:
    """Of each queue those ready, delayed, limited and in progress; and how many jobs each worker has in hand."""
    found: Depths = defaultdict(lambda: {state: Depth() for state in ("ready", "delayed", "limited", "in_progress")})
    most = _EVERYTHING if tx.dialect == "sqlite" else COUNTED
    for row in tx.all(_READY, most=most):
        found[row.id]["ready"].add(row.n, None)
    heads = tx.all(_HEADS) if any(states["ready"].n for states in found.values()) else []
    for row in heads:
        found[row.queue_id]["ready"].add(0, row.created_at)
    for row in _estimated(tx, [h for h in heads if found[h.queue_id]["ready"].n >= most]):
        found[row.queue]["ready"].n = max(most, row.n)
    for state, sql in _BY_STATE.items():
        for row in tx.all(sql, most=most):
            found[row.queue_id][state].add(row.n, row.oldest)
    return found, _held(tx, found)


def _estimated(tx: Tx, heads: Sequence[Any]) -> list[Any]:
    lines = [(head.queue_id, head.pool, head.priority, head.ready) for head in heads]
    return tx.all(_ESTIMATE, l=lines, parts=_SEGMENTS, most=_OF_SEGMENT) if lines else []


def _held(tx: Tx, found: Depths) -> dict[int, int]:
    busy: dict[int, int] = defaultdict(int)
    ids = claimed_ids(tx)
    for row in tx.all(_HELD, ids=ids) if ids else ():
        found[row.queue_id]["in_progress"].add(row.n, row.oldest)
        busy[row.worker_id] += row.n
    return busy
