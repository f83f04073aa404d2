"""Which ready jobs are published in Redis, for RQ and Arq. Only these have a row in `gm_message`.

A job counts as published while its row names the attempt that comes next, and Redis still is what it was when it took the
message: the same process, with the same data (the era), which has taken as many batches. One that lost everything, or was
started again, has another era. Then the message is published again. Twice is no harm: a claim takes a job once.

Jobs of queues that have a limit are not published: who is offered one could mostly not have it. Workers look for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gristmill.ledger.claim import BY_NAME
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx, repeatable
from gristmill.priority import Priority

WINDOW = 10_000  # jobs of one queue that are published at once: a million ready ones must not fill Redis
_SLACK = 1000  # places in the line that are looked at again: PostgreSQL's numbers do not commit in their order

_PUBLISHED = "m.attempt = j.attempt + 1 AND m.era = :era AND m.number <= :number"
_OPEN = "EXISTS (SELECT 1 FROM gm_queue WHERE id = :queue AND NOT paused AND limit_id IS NULL)"
_COLUMNS = "id, attempt, priority, ready"
_MISSING = (
    f"SELECT j.id, j.attempt + 1 AS attempt, j.priority, j.ready FROM (%s) AS j WHERE NOT EXISTS"
    f" (SELECT 1 FROM gm_message m WHERE m.job_id = j.id AND {_PUBLISHED}) ORDER BY j.priority, j.ready LIMIT :most"
)
# All of a queue's line, from its front, as far as the window goes.
_UNPUBLISHED = Sql(
    _MISSING % f"SELECT {_COLUMNS} FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND {_OPEN}"
    " ORDER BY priority, ready LIMIT :window"
)
# Only its end: what came since the last look.
_NEW = Sql(
    _MISSING
    % " UNION ALL ".join(
        f"SELECT {_COLUMNS} FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = {pool}"
        f" AND priority = {level:d} AND ready > :floor AND {_OPEN}"
        for pool in BY_NAME
        for level in Priority
    )
)
_IN_LINE = Sql(
    "SELECT count(*) FROM (SELECT 1 FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue"
    f" AND pool IN ({', '.join(map(str, BY_NAME))}) LIMIT :window) AS line"
)
_RECORD = Sql(
    "INSERT INTO gm_message (job_id, attempt, backend_job_id, era, number, at)"
    " SELECT f.job, f.attempt, f.name, :era, :number, {now} FROM {rows f: job bigint, attempt bigint, name text} WHERE true"
    " ON CONFLICT (job_id) DO UPDATE SET attempt = excluded.attempt, backend_job_id = excluded.backend_job_id,"
    " era = excluded.era, number = excluded.number, at = excluded.at WHERE gm_message.attempt <= excluded.attempt"
)
_DECLINE = Sql(
    "UPDATE gm_message SET era = 0 WHERE job_id {in ids}"
    " AND EXISTS (SELECT 1 FROM gm_job j WHERE j.id = job_id AND j.ready IS NOT NULL)"
)
UNPUBLISH_ALL = Sql("UPDATE gm_message SET era = 0")
_NAME = Sql("SELECT backend_job_id FROM gm_message WHERE job_id = :job")
_QUEUES = Sql("SELECT id, name, limit_id IS NOT NULL AS limited FROM gm_queue ORDER BY id")


class Mark(NamedTuple):
    """What Redis is now: which process with which data, and how many batches it has taken."""

    era: int
    number: int


class Due(NamedTuple):
    """A ready job that is to be published."""

    job: int
    attempt: int  # that its claim will have
    priority: int
    ready: int


def unpublished(tx: Tx, queue: int, mark: Mark, most: int) -> list[Due]:
    """Ready jobs of a queue that are not published, from the front of its line."""
    given: dict[str, Any] = {"queue": queue, "window": WINDOW, "most": most, **mark._asdict()}
    return [Due(*row) for pool in BY_NAME for row in tx.tuples(_UNPUBLISHED, pool=pool, **given)]


def newly_ready(tx: Tx, queue: int, mark: Mark, floor: int, most: int) -> list[Due]:
    """The same from the end of the line: those that came after (or shortly before) the one at `floor`.

    None, if that is beyond the window: they are published when they come nearer to the front.
    """
    rows = tx.tuples(_NEW, queue=queue, floor=floor - _SLACK, most=most, **mark._asdict())
    if rows and tx.value(_IN_LINE, queue=queue, window=WINDOW) >= WINDOW:
        return []
    return [Due(*row) for row in rows]


@repeatable
def record(tx: Tx, published: Sequence[tuple[int, int, str]], mark: Mark) -> None:
    """(job, attempt, name there) of jobs that Redis has taken."""
    tx.run(_RECORD, f=sorted(published), **mark._asdict())


@repeatable
def decline(tx: Tx, jobs: Sequence[int]) -> None:
    """Messages that came at the wrong moment (paused, limited): what is still ready is to be published again."""
    tx.run(_DECLINE, ids=sorted(jobs))


def backend_job_id(tx: Tx, job: int) -> str | None:
    """What RQ or Arq call a job; None: it was not published there."""
    name: str | None = tx.value(_NAME, job=job)
    return name


def queues(tx: Tx) -> dict[int, tuple[str, bool]]:
    """The names of all, and whether they have a limit."""
    return {row.id: (row.name, bool(row.limited)) for row in tx.all(_QUEUES)}
