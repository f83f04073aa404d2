"""A claim in one statement, on PostgreSQL: what an idle worker does when something is rung for.

Its row is held, jobs are taken and the claim is remembered as in `exchange`, but without the round trips in between: a new
job starts a millisecond earlier. Only for one line of each place, without a limit; anything else goes by `exchange`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter

from gristmill.ledger.claim import JOB, NEXT, TAKE, Claimed, Kind, Lane, Taken, Want, sorted_out
from gristmill.ledger.hold import check
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.states import UniqueScope, WorkerState

# In `exchange` that is a statement of its own (FREE_KEYS), for the few jobs that have such a key.
_FREE_KEY = f", unique_key = CASE WHEN unique_scope = {UniqueScope.QUEUED:d} THEN NULL ELSE unique_key END"


_COLUMNS = (
    *("id", "attempt", "key", "args", "run", "stage", "part_of", "task", "alone", "scope", "limited", "waited", "priority"),
    *("queue", "pool"),
)
_QUEUE, _PRIORITY = -2, 12  # where they stand in such a row; the pool is the last
_MOST_LINES = 4  # of one statement, which is another one for each number of them
_OF_A_LINE = re.compile(r":(queue|pool|priority|floor|run|most)\b")


@cache
def _grabbing(lines: tuple[str, ...]) -> Sql:
    """`MATERIALIZED`, or the worker's row might not be locked before the first job is."""
    take = TAKE % _FREE_KEY
    columns = ", ".join(f"taken.{name}" for name in _COLUMNS)
    nexts = [NEXT % ("id", f"{which} AND EXISTS (SELECT 1 FROM me WHERE leased)") for which in lines]
    numbered = [_OF_A_LINE.sub(rf":\g<1>_{n}", line) for n, line in enumerate(nexts)]
    ids = " || ".join(f"ARRAY({line} {{skip}})" for line in numbered)
    return Sql(
        f"WITH me AS MATERIALIZED (SELECT lease_until > {{now}} AS leased FROM gm_worker WHERE id = :worker"
        f" AND state = {WorkerState.ACTIVE:d} {{share}}),"
        f" taken ({', '.join(_COLUMNS)}) AS ({take} = ANY({ids}) RETURNING id, attempt, {JOB}, priority, queue_id, pool),"
        " claim AS (INSERT INTO gm_claim (worker_id, jobs) SELECT :worker, json_agg(id)::text FROM taken"
        " HAVING count(*) > 0 RETURNING id)"
        f" SELECT (SELECT leased FROM me), claim.id, {columns} FROM (SELECT 1) AS one"
        " LEFT JOIN (taken CROSS JOIN claim) ON true"
    )


def lines_of(wants: Sequence[Want], room: Mapping[int, int]) -> dict[Lane, int] | None:
    """The lines that all of this is about, and how many of each; None: that is not for one statement, since there are
    several for one place, or one has a limit."""
    lines: dict[int, Lane] = {}
    most: Counter[int] = Counter()
    for want in wants:
        most[want.place] += want.most
        for lane in want.lanes:
            if lines.setdefault(want.place, lane) != lane or lane.limit_id is not None or lane.jobs:
                return None
    if not 0 < len(lines) <= _MOST_LINES:
        return None
    return {lane: min(room[place], most[place]) for place, lane in lines.items()}


def grab(tx: Tx, worker: int, lines: Mapping[Lane, int]) -> Taken:
    """Takes up to so many jobs of each of these lines."""
    asked = {f"{name}_{n}": value for n, lane in enumerate(lines) for name, value in lane.values.items()}
    asked |= {f"most_{n}": most for n, most in enumerate(lines.values())}
    rows = tx.tuples(_grabbing(tuple([lane.which for lane in lines])), worker=worker, limit=None, **asked)
    check(worker, rows[0][0], leased=True)
    taken: list[Claimed] = []
    kinds: set[Kind] = set()
    empty: list[Lane] = []
    for lane, most in lines.items():
        # UPDATE returns them in no order.
        jobs = sorted([row[2:] for row in rows if row[_QUEUE:] == lane[:2]], key=itemgetter(_PRIORITY, 0))
        taken += sorted_out(jobs, lane, kinds)
        if len(jobs) < most:
            empty.append(lane)
    return Taken(rows[0][1], taken, kinds, empty)
