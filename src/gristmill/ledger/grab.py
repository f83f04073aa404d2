"""A claim in one statement, on PostgreSQL: what an idle worker does when something is rung for.

Its row is held, jobs are taken and the claim is remembered as in `exchange`, but without the round trips in between: a new
job starts a millisecond earlier. Only for jobs of one line that has no limit; anything else goes by `exchange`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gristmill.ledger.claim import IN_LINE, JOB, NEXT, TAKE, Kind, Lane, Taken, Want, sorted_out
from gristmill.ledger.hold import check
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.states import UniqueScope, WorkerState

# In `exchange` that is a statement of its own (FREE_KEYS), for the few jobs that have such a key.
_FREE_KEY = f", unique_key = CASE WHEN unique_scope = {UniqueScope.QUEUED:d} THEN NULL ELSE unique_key END"


_COLUMNS = (
    *("id", "attempt", "key", "args", "run", "stage", "part_of", "task", "alone", "scope", "limited", "waited", "priority"),
)


def _grabbing(which: str) -> Sql:
    """`MATERIALIZED`, or the worker's row might not be locked before the first job is."""
    take = TAKE % _FREE_KEY
    columns = ", ".join(f"taken.{name}" for name in _COLUMNS)
    line = NEXT % ("id", f"{which} AND EXISTS (SELECT 1 FROM me WHERE leased)")
    return Sql(
        f"WITH me AS MATERIALIZED (SELECT lease_until > {{now}} AS leased FROM gm_worker WHERE id = :worker"
        f" AND state = {WorkerState.ACTIVE:d} {{share}}),"
        f" taken ({', '.join(_COLUMNS)}) AS ({take} {{one_of {line} {{skip}}}} RETURNING id, attempt, {JOB}, priority),"
        " claim AS (INSERT INTO gm_claim (worker_id, jobs) SELECT :worker, json_agg(id)::text FROM taken"
        " HAVING count(*) > 0 RETURNING id)"
        f" SELECT (SELECT leased FROM me), claim.id, {columns} FROM (SELECT 1) AS one"
        " LEFT JOIN (taken CROSS JOIN claim) ON true ORDER BY taken.priority, taken.id"
    )


_GRAB = {which: _grabbing(which) for which in IN_LINE}


def only_lane(wants: Sequence[Want], room: Mapping[int, int]) -> tuple[Lane, int] | None:
    """The one line that all of this is about, and how many of it; None: there are several, or it has a limit."""
    lanes = {lane for want in wants for lane in want.lanes}
    if len(lanes) != 1:
        return None
    (lane,) = lanes
    most = min(room[wants[0].place], sum(want.most for want in wants))
    return (lane, most) if lane.limit_id is None and not lane.jobs else None


def grab(tx: Tx, worker: int, lane: Lane, most: int) -> Taken:
    """Takes up to so many jobs of a line."""
    rows = tx.tuples(_GRAB[lane.which], worker=worker, most=most, limit=None, **lane.values)
    check(worker, rows[0][0], leased=True)
    jobs = [row[2:] for row in rows if row[2] is not None]
    kinds: set[Kind] = set()
    taken = sorted_out(jobs, lane, kinds)
    return Taken(rows[0][1], taken, kinds, [lane] if len(jobs) < most else [])
