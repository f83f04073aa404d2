"""A job in one statement: what a program does that has one to enqueue.

On PostgreSQL the job is added, workers are told and the commit leaves its mark as in a transaction, but without the round
trips in between: half the time. On SQLite workers are told before it is written, and wake up meanwhile. Only for jobs
without a unique key or a limit, which others may have to be asked about.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from gristmill.clock import to_datetime
from gristmill.ledger.commits import MARKS, Mark
from gristmill.ledger.sql import Sql
from gristmill.ledger.start import NewJob
from gristmill.ledger.tx import DELAYED, Tx
from gristmill.model import Job
from gristmill.priority import Priority
from gristmill.states import State

_NOT_YET = (
    *("run", "stage", "subject", "key", "result", "error", "error_class", "fingerprint", "progress", "worker", "unique"),
    *("started_at", "finished_at"),
)
_NEVER = ("attempt", "errors", "crashes", "timeouts", "losses", "returns")
_NEW: dict[str, Any] = {**dict.fromkeys(_NOT_YET), **dict.fromkeys(_NEVER, 0)}

_MINE = "SELECT :connection, :number::bigint UNION ALL SELECT :connection || ' job', id FROM job"
_ADD = (
    "INSERT INTO gm_job (task_id, queue_id, pool, priority, state, ready, run_at, created_at, args)"
    f" SELECT :task_id, :queue_id, :pool, :priority, {State.QUEUED:d}, %s, {{now}}, :args RETURNING id, created_at, run_at"
)
_WHEN = (
    "CASE WHEN :run_at::bigint IS NULL AND :delay::bigint IS NULL THEN {next} END,"
    " coalesce(:run_at::bigint, {now} + :delay::bigint)"
)
_ADD_READY = Sql(_ADD % "{next}, NULL")
_POST = Sql(
    f"WITH job AS ({_ADD % _WHEN}),"
    f" mark AS ({MARKS.format(_MINE)})"
    " SELECT id, created_at, run_at, pg_notify(:channel, :rung) FROM job"
)
_POSTED = Sql("SELECT number FROM gm_commit WHERE connection = :connection || ' job'")


def suits(job: NewJob) -> bool:
    """Can this job be added so?"""
    return job.unique_key is None and job.limit_id is None


def rings_for(job: NewJob) -> int:
    """The queue that has a ready job then; or that there is a delayed one to wait for."""
    return DELAYED if job.run_at is not None or job.delay is not None else job.queue_id


def is_ready(job: NewJob) -> bool:
    """Can this one be taken as soon as it is there?"""
    return suits(job) and job.run_at is None and job.delay is None


class Posted(NamedTuple):
    """What the database said of a job that was added."""

    id: int
    created_at: int
    run_at: int | None


def add_ready(tx: Tx, job: NewJob) -> Posted:
    """Adds a job that is ready."""
    tx.ring(job.queue_id)
    how = {"task_id": job.task_id, "queue_id": job.queue_id, "pool": job.pool, "priority": job.priority, "args": job.args}
    return Posted(*tx.tuples(_ADD_READY, **how)[0])


def post(tx: Tx, made: Mark, job: NewJob, channel: str, rung: str) -> Posted:
    """Adds a job."""
    how = job._asdict()
    for name in ("unique_key", "unique_scope", "limit_id"):
        assert how.pop(name) is None
    return Posted(*tx.tuples(_POST, **how, **made._asdict(), channel=channel, rung=rung)[0][:3])


def as_job(said: Posted, new: NewJob, task: str, queue: str) -> Job:
    """A new job as `read.job` would read it."""
    return Job(
        id=said.id,
        task=task,
        queue=queue,
        state=State.QUEUED.word,
        priority=Priority(new.priority).word,
        args=orjson.loads(new.args),
        created_at=to_datetime(said.created_at),
        run_at=to_datetime(said.run_at),
        waits=None if said.run_at is None else "delayed",
        **_NEW,
    )


def posted(tx: Tx, connection: str) -> int:
    """The number of the job that was added last by this connection, whose answer got lost."""
    number: int = tx.value(_POSTED, connection=connection)
    return number
