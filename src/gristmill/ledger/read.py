"""Reading: what the command line, pages and applications ask. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gristmill.clock import SECOND, to_datetime
from gristmill.errors import NotFound, did_you_mean, quoted
from gristmill.ledger.choose import JOBS, RUNS, THERE
from gristmill.ledger.columns import ATTEMPT, JOB, STAGE, WORKER, columns
from gristmill.ledger.sql import WAITING, Sql, numbers
from gristmill.ledger.store import Tx
from gristmill.limit import Numbers
from gristmill.model import Attempt, AuditEntry, Job, Queue, Run, Stage, Worker
from gristmill.priority import Priority
from gristmill.states import ACTIVE_RUN, SUCCESS, StageState, State, WorkerState

Look = Callable[..., Any]  # runs a look in a transaction that reads: `look(function, …)` is `function(tx, …)`


# ---- results


_RESULTS = (
    "SELECT key, result FROM gm_job WHERE stage_id = :stage"
    f" AND state IN ({State.COMPLETED:d}, {State.COMPLETED_WITH_ERRORS:d}) AND key {{}} :after ORDER BY key LIMIT :most"
)
_FIRST_RESULTS, _MORE_RESULTS = Sql(_RESULTS.format(">=")), Sql(_RESULTS.format(">"))
_STAGE_IDS = Sql(
    "SELECT g.name, f.id FROM gm_stage g LEFT JOIN gm_stage f ON f.id = coalesce(g.source_id, g.id) WHERE g.run_id = :run"
)


def results(look: Look, run: int, stage: str, page: int = 1000, after: str | None = None) -> Iterator[tuple[str, Any]]:
    """(key, result) of the items of a stage that completed, in the order of their keys, read in pages: a look for each."""
    stages = {row.name: row.id for row in look(Tx.all, _STAGE_IDS, run=run)}
    if stage not in stages:
        raise NotFound(f"run {run} has no stage {quoted(stage)}{did_you_mean(stage, stages)}")
    if stages[stage] is None:
        raise NotFound(f"stage {stage!r} of run {run} is that of an earlier run, which was deleted; start a whole run")
    query = _FIRST_RESULTS if after is None else _MORE_RESULTS
    after = after or ""
    while True:
        rows = look(Tx.all, query, stage=stages[stage], after=after, most=page)
        for key, result in rows:
            yield key, None if result is None else orjson.loads(result)
        if len(rows) < page:
            return
        after, query = rows[-1].key, _MORE_RESULTS


# ---- runs


LAST_WHOLE_RUN = (  # of a subject: the last good one that did not end early. Later ones may only have found nothing to do
    "(SELECT w.id FROM gm_run w WHERE w.subject_id = %s"
    f" AND w.state IN ({State.COMPLETED:d}, {State.COMPLETED_WITH_ERRORS:d})"
    f" AND NOT EXISTS (SELECT 1 FROM gm_stage e WHERE e.run_id = w.id AND e.outcome = {State.CANCELLED:d})"
    " ORDER BY w.finished_at DESC, w.id DESC LIMIT 1)"
)
UNFINISHED = f"r.state IN ({numbers([*ACTIVE_RUN, State.WAITING])})"
_WHOLE = Sql(f"SELECT {LAST_WHOLE_RUN % 's.id'} FROM gm_subject s WHERE s.pipeline = :pipeline AND s.name = :subject")
_RUN_COLUMNS = (
    "SELECT r.id, r.pipeline, s.name AS subject, r.state, r.priority, r.epoch, r.args, r.error, r.reason, r.stop,"
    f" r.created_at, r.started_at, r.finished_at, r.retried_at{RUNS}"
)
_STAGES_OF = Sql(
    f"SELECT {columns(STAGE, 'g')}, q.name AS queue, f.run_id AS taken_from FROM gm_stage g"
    " JOIN gm_queue q ON q.id = g.queue_id LEFT JOIN gm_stage f ON f.id = g.source_id WHERE g.run_id {in ids}"
    " ORDER BY g.run_id, g.position"
)
_OPEN_PARTS = Sql(
    "SELECT stage_id, count(*) AS items_with_parts, sum(parts) AS parts, sum(parts_left) AS parts_left FROM gm_job"
    " WHERE run_id {in ids} AND parts_left > 0 GROUP BY stage_id"
)
_PLAIN_RESULTS = Sql(
    "SELECT s.name, j.result FROM gm_stage s JOIN gm_job j ON j.stage_id = coalesce(s.source_id, s.id)"
    f" WHERE s.run_id = :run AND NOT s.each AND j.state IN ({numbers(SUCCESS)})"
)

_EDGES = Sql(
    "SELECT d.name, u.name AS before FROM gm_edge e JOIN gm_stage d ON d.id = e.downstream_id"
    " JOIN gm_stage u ON u.id = e.upstream_id WHERE d.run_id = :run ORDER BY d.position, u.position"
)


def order(tx: Tx, number: int) -> dict[str, tuple[str, ...]]:
    """After which stages each stage of a run comes."""
    found: dict[str, tuple[str, ...]] = {}
    for row in tx.all(_EDGES, run=number):
        found[row.name] = (*found.get(row.name, ()), row.before)
    return found


def run(tx: Tx, number: int) -> Run:
    found = runs(tx, {"r.id = :id": {"id": number}}, 1)
    if not found:
        raise NotFound(f"there is no run {number}")
    results = {row.name: orjson.loads(row.result) for row in tx.all(_PLAIN_RESULTS, run=number) if row.result is not None}
    return Run(**{**vars(found[0]), "results": results})


def last_whole_run(tx: Tx, pipeline: str, subject: str) -> int | None:
    """The run whose stages a part run of the subject stands on; None: there is none."""
    number: int | None = tx.value(_WHOLE, pipeline=pipeline, subject=subject)
    return number


def runs(tx: Tx, where: Mapping[str, Mapping[str, Any]], most: int) -> list[Run]:
    """Runs that meet every condition, newest first, with their stages."""
    clauses, values = conditions(where)
    rows = tx.all(Sql(f"{_RUN_COLUMNS}{clauses} ORDER BY r.id DESC LIMIT :most"), most=most, **values)
    stages: dict[int, list[Stage]] = {row.id: [] for row in rows}
    active = [row.id for row in rows if row.finished_at is None]
    with_parts = {row.stage_id: row for row in tx.all(_OPEN_PARTS, ids=active)} if active else {}
    for row in tx.all(_STAGES_OF, ids=list(stages)) if stages else ():
        stages[row.run_id].append(_stage(row, with_parts.get(row.id)))
    return [_run(row, stages[row.id]) for row in rows]


def _run(row: Any, stages: Sequence[Stage]) -> Run:
    stopping = None
    if row.stop is not None and row.finished_at is None:
        stopping = row.error or row.reason or State(row.stop).word
    return Run(
        id=row.id,
        pipeline=row.pipeline,
        subject=row.subject,
        state=State(row.state).word,
        priority=Priority(row.priority).word,
        epoch=row.epoch,
        args=orjson.loads(row.args),
        error=row.error,
        reason=row.reason,
        stopping=stopping,
        created_at=to_datetime(row.created_at),
        started_at=to_datetime(row.started_at),
        finished_at=to_datetime(row.finished_at),
        retried_at=to_datetime(row.retried_at),
        stages=tuple(stages),
    )


def _stage(row: Any, parts: Any) -> Stage:
    return Stage(
        name=row.name,
        state=StageState(row.state).word,
        outcome=None if row.outcome is None else State(row.outcome).word,
        total=row.total,
        completed=row.completed,
        failed=row.failed,
        skipped=row.skipped,
        cancelled=row.cancelled,
        queue=row.queue,
        each=bool(row.each),
        gate=bool(row.gate),
        opened_at=to_datetime(row.opened_at),
        closed_at=to_datetime(row.closed_at),
        items_with_parts=parts.items_with_parts if parts else 0,
        parts=int(parts.parts) if parts else 0,
        parts_left=int(parts.parts_left) if parts else 0,
        taken_from=row.taken_from,
    )


# ---- jobs


_JOB_COLUMNS = (
    f"SELECT {columns(JOB, 'j')}, g.name AS stage, s.name AS subject, t.name AS task, q.name AS queue,"
    " EXISTS (SELECT 1 FROM gm_attempt a WHERE a.job_id = j.id AND a.attempt = j.attempt AND a.outcome = 'adopted')"
    " AS adopted, (SELECT m.error FROM gm_missed m WHERE m.job_id = j.id AND m.at = j.finished_at)"
    f" AS missed{JOBS}"
)
_THESE_JOBS = Sql(f"{_JOB_COLUMNS} WHERE j.id {{in ids}} AND {THERE} ORDER BY j.id DESC")
_THIS_JOB = Sql(f"{_JOB_COLUMNS} WHERE j.id = :id AND {THERE}")  # by one number: PostgreSQL need not plan it each time
_ATTEMPTS = Sql(f"SELECT {columns(ATTEMPT)} FROM gm_attempt WHERE job_id = :job ORDER BY attempt DESC")


def job(tx: Tx, number: int) -> Job:
    row = tx.one(_THIS_JOB, id=number)
    if row is None:
        raise NotFound(f"there is no job {number}")
    return job_of(row)


def jobs_of(tx: Tx, numbers: Sequence[int]) -> list[Job]:
    """These jobs, newest first; what is not there is left out."""
    return [job_of(row) for row in tx.all(_THESE_JOBS, ids=list(numbers))] if numbers else []


def job_of(row: Any) -> Job:
    return Job(
        id=row.id,
        run=row.run_id,
        stage=row.stage,
        subject=row.subject,
        key=row.key or None,
        task=row.task,
        queue=row.queue,
        state=State(row.state).word,
        priority=Priority(row.priority).word,
        attempt=row.attempt,
        errors=row.errors,
        crashes=row.crashes,
        timeouts=row.timeouts,
        losses=row.losses,
        returns=row.returns,
        args=None if row.args is None else orjson.loads(row.args),
        result=None if row.result is None else orjson.loads(row.result),
        error=row.error,
        error_class=row.error_class,
        fingerprint=row.fingerprint,
        progress=None if row.progress is None else orjson.loads(row.progress),
        worker=row.worker_id,
        unique=row.unique_key,
        run_at=None if row.run_at is None or row.run_at >= WAITING else to_datetime(row.run_at),
        archived_at=to_datetime(row.archived_at),
        created_at=to_datetime(row.created_at),
        started_at=to_datetime(row.started_at),
        finished_at=to_datetime(row.finished_at),
        waits=_waits(row),
        part_of=row.parent_id if row.stage_id is None else None,
        parts=row.parts,
        parts_left=row.parts_left,
        parts_failed=row.parts_failed,
        ends_as=None if row.ends_as is None else State(row.ends_as).word,
        adopted=bool(row.adopted),
        missed=row.missed,
    )


def _waits(row: Any) -> str | None:
    if row.run_at is not None:
        if row.run_at >= WAITING:
            return "limited"
        return "retrying" if row.errors + row.crashes + row.timeouts + row.losses else "delayed"
    return "for parts" if row.state == State.QUEUED and row.ready is None and row.parts_left else None


def attempts(tx: Tx, number: int) -> list[Attempt]:
    """The attempts of a job that did not succeed, newest first."""
    return [attempt(row) for row in tx.all(_ATTEMPTS, job=number)]


def attempt(row: Any) -> Attempt:
    return Attempt(
        job=row.job_id,
        attempt=row.attempt,
        outcome=row.outcome,
        error_class=row.error_class,
        error=row.error,
        fingerprint=row.fingerprint,
        traceback=row.traceback,
        log=row.log,
        worker=row.worker_id,
        started_at=to_datetime(row.started_at),
        ended_at=to_datetime(row.ended_at),
    )


def conditions(where: Mapping[str, Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """WHERE of fixed clauses and bound values; no text from outside becomes SQL."""
    values = {name: value for bound in where.values() for name, value in bound.items()}
    return (" WHERE " + " AND ".join(where) if where else ""), values


# ---- queues, workers, the whole


_OUTSIDE = Sql(  # what is due is ready, since then: a worker puts it into the line, and there may be none
    "SELECT queue_id, 'ready' AS state, count(*) AS n, min(run_at) AS oldest FROM gm_job WHERE run_at <= {now}"
    " GROUP BY queue_id UNION ALL SELECT queue_id, 'delayed', count(*), NULL FROM gm_job"
    " WHERE run_at > {now} AND run_at < {waiting} GROUP BY queue_id"
    " UNION ALL SELECT queue_id, 'limited', count(*), NULL FROM gm_job WHERE run_at = {waiting} GROUP BY queue_id"
)
_QUEUES = Sql(  # with the length of each line, and its first
    "SELECT q.id, q.name, q.weight, q.paused, l.chosen, (SELECT count(*) FROM gm_job h WHERE h.ready IS NOT NULL"
    " AND h.queue_id = q.id) AS ready, (SELECT h.created_at FROM gm_job h WHERE h.ready IS NOT NULL"
    " AND h.queue_id = q.id ORDER BY h.pool, h.priority, h.ready LIMIT 1) AS oldest"
    " FROM gm_queue q LEFT JOIN gm_limit l ON l.id = q.limit_id ORDER BY q.name"
)
_WORKERS = Sql(
    f"SELECT {columns(WORKER)}, state = {WorkerState.ACTIVE:d} AND lease_until < {{now}} AS late FROM gm_worker"
    f" WHERE state = {WorkerState.ACTIVE:d} OR :every ORDER BY id DESC LIMIT :most"
)
_HELD_IDS = Sql("SELECT worker_id, jobs FROM gm_claim ORDER BY id")
_HELD = Sql(
    "SELECT j.worker_id, j.queue_id, t.name AS task, count(*) AS n FROM gm_job j JOIN gm_task t ON t.id = j.task_id"
    f" WHERE j.id {{in ids}} AND j.state = {State.IN_PROGRESS:d} GROUP BY j.worker_id, j.queue_id, t.name"
)
_RUN_COUNTS = Sql("SELECT state, count(*) AS n FROM gm_run GROUP BY state")
_UNFINISHED_RUNS = Sql(  # those that are active and those that wait have an index each
    f"SELECT state, count(*) AS n FROM gm_run WHERE state IN ({numbers(ACTIVE_RUN)}) GROUP BY state"
    f" UNION ALL SELECT state, count(*) FROM gm_run WHERE state = {State.WAITING:d} GROUP BY state"
)


def claimed_ids(tx: Tx) -> list[int]:
    """The jobs of all claims that are not given back yet: all that are in progress, and some that have ended since."""
    return [number for row in tx.all(_HELD_IDS) for number in orjson.loads(row.jobs)]


class Held(NamedTuple):
    """Jobs in progress that have all this in common."""

    worker: int
    queue: int
    task: str
    n: int


def held(tx: Tx) -> list[Held]:
    ids = claimed_ids(tx)
    return [Held(*row) for row in tx.tuples(_HELD, ids=ids)] if ids else []


def queues(tx: Tx) -> list[Queue]:
    busy = held(tx)
    return _queues(tx, busy, _workers(tx, busy))


def queues_and_workers(tx: Tx) -> tuple[list[Queue], list[Worker]]:
    """Both, and the active workers only: what they hold is looked up once."""
    busy = held(tx)
    active = _workers(tx, busy)
    return _queues(tx, busy, active), active


def _queues(tx: Tx, busy: Sequence[Held], active: Sequence[Worker]) -> list[Queue]:
    outside = {(row.queue_id, row.state): (row.n, row.oldest) for row in tx.all(_OUTSIDE)}

    def found(queue: int, state: str) -> tuple[int, int | None]:
        return outside.get((queue, state), (0, None))

    return [
        Queue(
            name=row.name,
            weight=row.weight,
            paused=bool(row.paused),
            ready=row.ready + found(row.id, "ready")[0],
            delayed=found(row.id, "delayed")[0],
            in_progress=sum(one.n for one in busy if one.queue == row.id),
            oldest=to_datetime(min(filter(None, (row.oldest, found(row.id, "ready")[1])), default=None)),
            workers=sum(1 for w in active if not w.queues or row.name in w.queues),
            limited=found(row.id, "limited")[0],
            at_once=Numbers.of(row.chosen).at_once,
            per_second=Numbers.of(row.chosen).per_second,
        )
        for row in tx.all(_QUEUES)
    ]


def workers(tx: Tx, every: bool = False, most: int = 1000) -> list[Worker]:
    """The active workers, newest first; `every`: also those that stopped or were lost."""
    return _workers(tx, held(tx), every, most)


def _workers(tx: Tx, busy: Sequence[Held], every: bool = False, most: int = 1000) -> list[Worker]:
    holds: dict[int, list[Held]] = {}
    for one in busy:
        holds.setdefault(one.worker, []).append(one)
    return [
        Worker(
            id=row.id,
            host=row.host,
            pid=row.pid,
            state=WorkerState(row.state).word,
            queues=tuple(orjson.loads(row.queues)),
            slots=row.slots,
            own_slots=orjson.loads(row.own_slots),
            labels=tuple(orjson.loads(row.labels)),
            memory_mib=row.memory,
            version=row.version,
            delivery=row.delivery,
            holding=sum(one.n for one in holds.get(row.id, ())),
            doing=tuple(sorted({one.task for one in holds.get(row.id, ())})),
            registered_at=to_datetime(row.registered_at),
            heartbeat_at=to_datetime(row.heartbeat_at),
            lease_until=to_datetime(row.lease_until),
            late=bool(row.late),
        )
        for row in tx.all(_WORKERS, every=every, most=most)
    ]


def run_counts(tx: Tx, ended: bool = True) -> dict[str, int]:
    return {State(row.state).word: row.n for row in tx.all(_RUN_COUNTS if ended else _UNFINISHED_RUNS)}


_WAITED = Sql(
    "SELECT {now} - created_at FROM gm_job WHERE id = :job AND errors + crashes + timeouts + losses + returns = 0"
    " AND parts IS NULL"
)


def waited(tx: Tx, job: int) -> float | None:
    """Seconds since a job was asked for; None if it was started before."""
    micros: int | None = tx.value(_WAITED, job=job)
    return None if micros is None else micros / SECOND


_NOW = Sql("SELECT {now}")


def now(tx: Tx) -> int:
    """The time by which the ledger goes."""
    micros: int = tx.value(_NOW)
    return micros


# ---- what people did


_AUDIT = (
    "SELECT a.id, a.at, a.who, a.verb, a.target, a.detail, o.done, o.reached FROM gm_audit a"
    " LEFT JOIN gm_order o ON o.id = a.id%s ORDER BY a.id DESC LIMIT :most"
)


def audit(tx: Tx, where: Mapping[str, Mapping[str, Any]], most: int) -> list[AuditEntry]:
    """What people did, the newest first."""
    clauses, values = conditions(where)
    return [
        AuditEntry(
            id=row.id,
            at=to_datetime(row.at),
            who=row.who,
            verb=row.verb,
            target=row.target,
            detail=orjson.loads(row.detail),
            done=orjson.loads(row.done) if row.done else {},
            open=row.reached is not None,
        )
        for row in tx.all(Sql(_AUDIT % clauses), most=most, **values)
    ]
