"""Jobs that have parts: their counters, under their own lock. The last part that ends puts its job back into the line.

A job that waits for its parts is queued but in no line (`ready` and `run_at` are NULL). A job never ends before its parts:
one whose end is decided while some have not ended keeps that in `ends_as`, and the last of them ends it. Locks are taken
before those of parts: a parent is older than its parts, so that is the order of ids too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gristmill.ledger.moment import Ended, moment
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import NOBODY, SUCCESS, TERMINAL, State

_LOCK = Sql("SELECT id, state, ends_as FROM gm_job WHERE id {in ids} ORDER BY id {lock}")


def _counting(rows: str, left: str, failed: str, others: str = "") -> Sql:
    """Sets the counters. Where nothing is left, a job that waits is ready, and one whose end was decided has ended."""
    ends = f"ends_as IS NOT NULL AND {left} = 0"
    goes_on = f"state = {State.QUEUED:d} AND run_at IS NULL AND ends_as IS NULL AND {left} = 0"
    return Sql(
        f"UPDATE gm_job SET parts_left = {left}, parts_failed = {failed}{others},"
        f" ready = CASE WHEN {goes_on} THEN coalesce(ready, {{ready}}) ELSE ready END,"
        f" run_at = CASE WHEN {goes_on} AND ready IS NULL THEN {{waits}} ELSE run_at END,"
        f" state = CASE WHEN {ends} THEN ends_as ELSE state END,"
        f" finished_at = CASE WHEN {ends} THEN {{now}} ELSE finished_at END,"
        f" unique_key = CASE WHEN {ends} THEN NULL ELSE unique_key END,"
        f" fingerprint = CASE WHEN {ends} AND ends_as = {State.FAILED:d} THEN (SELECT a.fingerprint FROM gm_attempt a"
        " WHERE a.job_id = gm_job.id AND a.attempt = gm_job.attempt) ELSE fingerprint END,"
        f" ends_as = CASE WHEN {left} = 0 THEN NULL ELSE ends_as END"
        f" FROM {{rows f: parent bigint, bad int, {rows}}} WHERE gm_job.id = f.parent AND {left} >= 0"
        " RETURNING queue_id, stage_id, state, parts_left, gm_job.id, task_id, limit_id, run_id"
    )


_COUNT = _counting("ended int", "parts_left - f.ended", "parts_failed + f.bad")
_RECOUNT = _counting("open int, total int", "f.open", "f.bad", ", parts = f.total")
_UNCOUNT = Sql("UPDATE gm_job SET parts_left = parts_left + :ended, parts_failed = parts_failed - :bad WHERE id = :job")
_CANCEL = Sql(
    f"UPDATE gm_job SET ends_as = {State.CANCELLED:d}, ready = NULL, run_at = NULL, error = :reason"
    f" WHERE id = :job AND state = {State.QUEUED:d} AND parts_left > 0 AND ends_as IS NULL"
)


def lock(tx: Tx, ids: Iterable[int | None]) -> dict[int, Any]:
    """Locks jobs that have parts, in the order of their ids, before any part is touched."""
    wanted = sorted({job for job in ids if job is not None})
    return {row.id: row for row in tx.all(_LOCK, ids=wanted)} if wanted else {}


def count(tx: Tx, parts: Mapping[tuple[int, int], int]) -> list[tuple[int | None, int]]:
    """Counts parts, (parent, state): number, that became terminal. Says (stage, state) of the jobs that ended with them."""
    ended: Counter[int] = Counter()
    bad: Counter[int] = Counter()
    for (parent, state), number in parts.items():
        ended[parent] += number
        bad[parent] += 0 if state in SUCCESS else number
    return _moved_on(tx, tx.all(_COUNT, f=[(parent, bad[parent], ended[parent]) for parent in sorted(ended)]))


def recount(tx: Tx, counted: Sequence[tuple[int, int, int, int]]) -> list[tuple[int | None, int]]:
    """The same from (job, failed, open, all) as rows say it, whatever the counters were."""
    return _moved_on(tx, tx.all(_RECOUNT, f=counted))


def _moved_on(tx: Tx, rows: Sequence[Any]) -> list[tuple[int | None, int]]:
    for row in rows:
        if row.parts_left == 0 and row.state == State.QUEUED:
            tx.ring(row.queue_id)
            tx.poke(row.limit_id)
    over = [row for row in rows if row.state in TERMINAL]
    tx.done.ended(NOBODY, (row.id for row in over))
    for row in over:
        if row.state == State.FAILED:
            tx.notes.failed(row.run_id, row.id)
    moment(tx, [Ended(row.id, row.task_id) for row in over])
    return [(row.stage_id, row.state) for row in over]


def uncount(tx: Tx, job: int, states: Mapping[int, int]) -> None:
    """Parts that had ended in these states are queued again."""
    ended = sum(number for state, number in states.items() if state in TERMINAL)
    bad = sum(number for state, number in states.items() if state in TERMINAL and state not in SUCCESS)
    if ended:
        tx.run(_UNCOUNT, job=job, ended=ended, bad=bad)


def cancel(tx: Tx, job: int, reason: str) -> bool:
    """A queued job whose parts have not all ended ends `cancelled` after them. False: it is not such a job."""
    return bool(tx.run(_CANCEL, job=job, reason=reason))
