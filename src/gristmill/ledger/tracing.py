"""Which trace a job or run was asked for in: rows that are there only where traces are on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gristmill.clock import SECOND
from gristmill.ledger import schedules
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.ledger.workers import claims_of
from gristmill.model import Firing
from gristmill.states import State
from gristmill.traces import Attempt

_KEPT = 90 * 86_400 * SECOND  # what is asked for so long ago is told as a trace of its own
_JOB, _RUN = 0, 1

_ADD = Sql(
    "INSERT INTO gm_trace (kind, number, traceparent, at) SELECT :kind, f.number, :traceparent, {now}"
    " FROM {rows f: number bigint} WHERE true ON CONFLICT (kind, number) DO NOTHING"
)
_FORGET = Sql("DELETE FROM gm_trace WHERE at < {now} - :kept")
_ATTEMPTS = Sql(
    "SELECT j.id, j.attempt, j.key, j.run_id AS run, j.started_at, t.name AS task, q.name AS queue, g.name AS stage,"
    " r.pipeline, s.name AS subject, c.traceparent FROM gm_job j JOIN gm_task t ON t.id = j.task_id"
    " JOIN gm_queue q ON q.id = j.queue_id LEFT JOIN gm_stage g ON g.id = j.stage_id"
    " LEFT JOIN gm_run r ON r.id = j.run_id LEFT JOIN gm_subject s ON s.id = r.subject_id"
    f" LEFT JOIN gm_trace c ON c.kind = CASE WHEN j.run_id IS NULL THEN {_JOB} ELSE {_RUN} END"
    f" AND c.number = coalesce(j.run_id, j.id) WHERE j.id {{in ids}} AND j.state = {State.IN_PROGRESS:d}"
)
_LOST = Sql(
    "SELECT a.job_id AS job, a.attempt, a.ended_at, a.error_class AS kind, a.error,"
    f" CASE WHEN j.state = {State.FAILED:d} AND j.attempt = a.attempt THEN j.fingerprint END AS fingerprint"
    " FROM gm_attempt a JOIN gm_job j ON j.id = a.job_id WHERE a.job_id {in ids} AND a.outcome = 'lost'"
)


class Lost(NamedTuple):
    """An attempt that ended with its worker."""

    job: int
    attempt: int
    ended_at: int
    kind: str
    error: str
    fingerprint: str | None  # of its job, if that is failed by it for good


def enqueue(tx: Tx, traceparent: str, verb: Callable[..., Any], job: Any) -> Any:
    """`start.enqueue`, and its trace, in one transaction; a twin that was there has its own."""
    answer = verb(tx, job)
    if answer[1]:
        _add(tx, _JOB, traceparent, [answer[0]])
    return answer


def enqueue_many(tx: Tx, traceparent: str, verb: Callable[..., Any], *asked: Any) -> Any:
    ids = verb(tx, *asked)
    _add(tx, _JOB, traceparent, ids)
    return ids


def fire(tx: Tx, traceparent: str | None, *asked: Any) -> schedules.Fired | None:
    """`schedules.fire`: what it starts is in the trace of that fire time, if there is one."""
    fired = schedules.fire(tx, *asked)
    if fired is not None and traceparent is not None:
        _add_fired(tx, traceparent, fired)
    return fired


def run_now(tx: Tx, traceparent: str | None, *asked: Any, by: str) -> Firing:
    """`schedules.run_now`, the same."""
    firing = schedules.firing(tx, schedules.run_now(tx, *asked, by=by))
    if traceparent is not None:
        _add_fired(tx, traceparent, firing)
    return firing


def _add_fired(tx: Tx, traceparent: str, fired: schedules.Fired | Firing) -> None:
    if fired.job is not None:
        _add(tx, _JOB, traceparent, [fired.job])
    if fired.runs:
        _add(tx, _RUN, traceparent, fired.runs)


def start(tx: Tx, traceparent: str, verb: Callable[..., Any], *asked: Any) -> Any:
    answer = verb(tx, *asked)
    if answer.created:
        _add(tx, _RUN, traceparent, [answer.run_id])
    return answer


def _add(tx: Tx, kind: int, traceparent: str, numbers: Iterable[int]) -> None:
    tx.run(_ADD, kind=kind, traceparent=traceparent, f=[(number,) for number in numbers])


def forget(tx: Tx) -> int:
    return tx.run(_FORGET, kept=_KEPT)


def attempts(tx: Tx, jobs: Iterable[int]) -> dict[int, Attempt]:
    """Of those that are in progress."""
    ids = list(jobs)
    rows = tx.all(_ATTEMPTS, ids=ids) if ids else []
    names = ("pipeline", "subject", "run", "stage", "task", "queue", "key")
    abouts = {row.id: {name: getattr(row, name) or None for name in names} for row in rows}
    return {row.id: Attempt(row.id, row.attempt, abouts[row.id], row.traceparent, row.started_at * 1000) for row in rows}


def held_by(tx: Tx, worker: int) -> dict[int, Attempt]:
    return attempts(tx, claims_of(tx, worker))


def lost(tx: Tx, jobs: Iterable[int]) -> list[Lost]:
    """Of these jobs, which attempts the ledger says are lost."""
    ids = list(jobs)
    return [Lost(*row) for row in tx.tuples(_LOST, ids=ids)] if ids else []
