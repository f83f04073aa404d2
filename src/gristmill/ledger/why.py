"""Why a run, a job or a subject is not moving: the one reason, in a word and a sentence, and what mends it.

First the facts are read, in one consistent look; then `of_job` and `of_run`, which see nothing but these, decide. While
something moves nothing is wrong; otherwise what needs a person comes before what passes by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from gristmill.clock import to_datetime
from gristmill.demand import NOTHING, Demand, all_of, class_of, least_lacking, options
from gristmill.errors import NotFound, did_you_mean, quoted
from gristmill.identity import gone, host
from gristmill.ledger import locks, names, why_limits
from gristmill.ledger.choose import THERE
from gristmill.ledger.columns import JOB, RUN, STAGE, columns
from gristmill.ledger.serving import Worker, offers
from gristmill.ledger.sql import WAITING, Sql
from gristmill.ledger.store import Tx
from gristmill.model import LimitState, Lock, Reason, Why
from gristmill.states import SUCCESS, TERMINAL, StageState, State, WorkerState

# ---- the facts


class Holder(NamedTuple):
    """The worker that holds a job."""

    id: int
    host: str
    heartbeat_at: int | None
    silent: bool  # its lease is over, it was declared lost, or its process is gone


class Locked(NamedTuple):
    """What a job in progress waits for."""

    resource: str
    by: str
    job: int | None  # that holds it
    since: datetime | None


class Stage(NamedTuple):
    name: str
    each: bool
    state: StageState
    left: int  # items that have not ended
    total: int
    after: tuple[str, ...]
    failed: int = 0
    with_errors: int = 0  # items that completed, though parts of them failed
    unprepared: bool = False  # its items are still being queued, or dropped, in batches


class Job(NamedTuple):
    id: int
    name: str  # `job 34 ('a.pdf')`
    state: State
    stage: str | None
    queue: str
    paused: bool
    served: bool  # a worker that is alive takes jobs of its queue
    workers: int  # that are alive, whatever they take
    ahead: int  # ready jobs that come before it
    run_at: int | None  # delayed until then
    since: int | None  # when it started or ended
    error: str | None
    holder: Holder | None
    stopping: bool
    may_retry: bool
    missed: str | None = None  # why its task's on_terminal failed when it ended
    ends_as: State | None = None  # its end is decided, but parts of it have not ended
    parts: int = 0
    parts_left: int = 0
    parts_running: int = 0
    locked: Locked | None = None
    demand: Demand = NOTHING
    lacks: Sequence[str] = ()  # what of it the worker has not that has most
    some_parts: Sequence[Job] = ()  # if it waits for them: the one that runs longest, the one that is next
    limit: LimitState | None = None  # the key whose limits it waits for; or the limits of its queue, if it has any


class Run(NamedTuple):
    id: int
    pipeline: str
    subject: str
    state: State
    said: str | None  # its error, or the reason why it ended early
    finished_at: int | None
    stopping: bool
    behind: int | None  # the subject's active run
    workers: int  # that are alive
    stages: Sequence[Stage]
    running: Sequence[Job]  # in progress: one with a worker that is alive first, then the oldest
    queued: Sequence[Job]  # of each stage, the one that is next
    in_progress: int


# ---- the decision


def of_job(job: Job, now: int) -> Why:
    target = f"job {job.id}"
    if job.state in TERMINAL:
        again: tuple[str, ...] = ("job", "retry", str(job.id)) if job.may_retry else ()
        said = f"{job.name} ended {job.state.word} at {_time(job.since)}{_after(': ', job.error)}"
        if job.missed is not None:
            said, again = f"{said}{_after('; its on_terminal failed: ', job.missed)}", ("reconcile",)
        return _why(target, Reason.FINISHED, said, *again, at=job.since)
    if job.parts_left and job.some_parts:
        return _of_parts(target, job, now)
    if job.holder is not None:
        return _held(target, job, job.holder)
    if job.stopping:
        return _why(target, Reason.STOPPING, f"the run of {job.name} is being stopped, and the job will be cancelled")
    if job.paused:
        said = f"{job.name} is in queue {job.queue!r}, which is paused"
        return _why(target, Reason.QUEUE_PAUSED, said, "queue", "resume", job.queue)
    serve = ("work", "-q", job.queue) if job.workers else ("up",)
    if job.run_at is not None and job.run_at > now:
        said = f"{job.name} is not to run before {_time(job.run_at)}{_after(', after: ', job.error)}"
        if job.served:
            return _why(target, Reason.DELAYED, said, "job", "retry", str(job.id), at=job.run_at)
        said += f"; and then it needs a worker: none that is running serves queue {job.queue!r}"
        return _why(target, Reason.DELAYED, said, *serve, at=job.run_at)
    if not job.served:
        said = f"{job.name} is in queue {job.queue!r}, which no running worker serves"
        return _why(target, Reason.NO_WORKER, said, *serve)
    if job.lacks:
        said = f"{job.name} waits: queue {job.queue!r} has no running worker with {all_of(job.demand, job.lacks)}"
        return _why(target, Reason.NO_WORKER, said, "work", "-q", job.queue, *options(job.demand))
    if (waits := why_limits.of_job(target, job.name, job.limit)) is not None:
        return waits
    if job.ahead:
        said = f"{job.name} waits behind {_count(job.ahead, 'ready job')} of queue {job.queue!r}"
        return _why(target, Reason.IN_LINE, said)
    needs = f" for {' and '.join(job.demand.words())}" if job.demand != NOTHING else ""
    said = f"{job.name} is the next of queue {job.queue!r}, as soon as a worker has room{needs}"
    return _why(target, Reason.IN_LINE, said)


def _of_parts(target: str, job: Job, now: int) -> Why:
    """Of a job that waits for its parts: why these are not moving."""
    some = f"{job.parts_left:,} of {_count(job.parts, 'part')}"
    if job.ends_as is not None:
        return _why(target, Reason.STOPPING, f"{job.name} will be {job.ends_as.word} as soon as {some} have stopped")
    reasons = [of_job(part, now) for part in job.some_parts]
    chosen = min(reasons, key=lambda why: _CHOICE.index(why.reason))
    if chosen.reason is not Reason.IN_PROGRESS:
        return replace(chosen, target=target, sentence=f"{job.name} waits for {some}: {chosen.sentence}")
    first = job.some_parts[reasons.index(chosen)]
    running = f"{job.parts_running:,} in progress, the oldest is {first.name}, since {_time(first.since)}"
    return _why(target, Reason.PARTS, f"{job.name} waits for {some}: {running}", at=first.since)


def _held(target: str, job: Job, holder: Holder) -> Why:
    worker = f"worker {holder.id} on {holder.host}"
    if holder.silent:
        said = f"{job.name} is held by {worker}, which was last heard of at {_time(holder.heartbeat_at)}"
        return _why(target, Reason.WORKER_SILENT, said, "reconcile", at=holder.heartbeat_at)
    if job.locked is not None and not job.stopping:
        waits = f"waits for the lock {job.locked.resource} since {_moment(job.locked.since)}"
        command = ("why", "job", str(job.locked.job)) if job.locked.job else ("lock", "list")
        said = f"{job.name} on {worker} {waits}: locked by {job.locked.by}"
        return Why(target, Reason.LOCKED, said, command, job.locked.since)
    reason, doing = (Reason.STOPPING, "was told to stop") if job.stopping else (Reason.IN_PROGRESS, "is in progress")
    return _why(target, reason, f"{job.name} {doing}: {worker} has it since {_time(job.since)}", at=job.since)


def of_run(run: Run, now: int) -> Why:
    target = f"run {run.id}"
    if run.state in TERMINAL:
        again = _again(run)
        said = f"{target} ended {run.state.word} at {_time(run.finished_at)}{_after(': ', run.said)}"
        return _why(target, Reason.FINISHED, said, *again, at=run.finished_at)
    if run.behind is not None:
        said = f"{target} waits behind run {run.behind} of the same subject {run.subject!r}"
        return _why(target, Reason.BEHIND_RUN, said, "why", "run", str(run.behind))
    jobs = [*run.running, *run.queued]
    unprepared = [stage.name for stage in run.stages if stage.unprepared]
    if not jobs and unprepared and not run.stopping:
        said = f"the items of stage {unprepared[0]!r} are not all queued yet: any worker goes on with that, in batches"
        return _why(target, Reason.PREPARING, said, *(() if run.workers else ("up",)))
    if not jobs:
        said = f"{target} is not over, but no job of it is left to move it on"
        return _why(target, Reason.INCONSISTENT, said, "reconcile")
    reasons = [of_job(job, now) for job in jobs]
    if run.stopping and reasons[0].reason is not Reason.WORKER_SILENT:
        left = _count(sum(stage.left for stage in run.stages), "job")
        said = f"{target} is being stopped{_after(', because: ', run.said)}; {left} of it not ended yet"
        return _why(target, Reason.STOPPING, said, *(() if run.workers else ("up",)))
    chosen = min(reasons, key=lambda why: _CHOICE.index(why.reason))
    job = jobs[reasons.index(chosen)]
    waits = _fan_in(run.stages) if chosen.reason is Reason.IN_PROGRESS else None
    if waits is not None:
        said = f"{waits}: {run.in_progress:,} in progress, the oldest is {job.name}, since {_time(job.since)}"
        return _why(target, Reason.STAGE_WAITS, said, at=job.since)
    return replace(chosen, target=target, sentence=_of_stage(run.stages, job) + chosen.sentence)


def _again(run: Run) -> tuple[str, ...]:
    """What runs that part of an ended run again which did not succeed."""
    retry = ("run", "retry", str(run.id))
    if run.state not in SUCCESS:
        return retry if any(stage.total for stage in run.stages) else ("start", run.pipeline, run.subject)
    if any(stage.failed for stage in run.stages):
        return retry
    partly = [stage.name for stage in run.stages if stage.with_errors]
    return (*retry, "--stage", partly[0]) if partly else ()


# Of the reasons of a run's jobs: what moves, what needs a person, what passes by itself.
_CHOICE = (
    *(Reason.IN_PROGRESS, Reason.PARTS, Reason.IN_LINE),
    *(Reason.WORKER_SILENT, Reason.QUEUE_PAUSED, Reason.NO_WORKER),
    *(Reason.LOCKED, Reason.LIMITED, Reason.DELAYED, Reason.STOPPING),
)


def _fan_in(stages: Sequence[Stage]) -> str | None:
    """`stage 'total' waits for 3 of 100 items of 'page'`: the first stage that waits for many."""
    by_name = {stage.name: stage for stage in stages}
    for stage in stages:
        before = [by_name[name] for name in stage.after if by_name[name].left]
        if stage.state is StageState.WAITING and any(upstream.each for upstream in before):
            names = " and ".join(repr(upstream.name) for upstream in before)
            return f"stage {stage.name!r} waits for {_items(before)} of {names}"
    return None


def _of_stage(stages: Sequence[Stage], job: Job) -> str:
    """`3 of 100 items of stage 'page' are left: `, where there are many."""
    many = [stage for stage in stages if stage.name == job.stage and stage.total > 1]
    return "".join(f"{_items([stage])} of stage {stage.name!r} are left: " for stage in many)


def _items(stages: Sequence[Stage]) -> str:
    """`3 of 100 items`, or of so many so far."""
    left, total = sum(stage.left for stage in stages), sum(stage.total for stage in stages)
    return f"{left:,} of {total:,} items{' so far' if any(s.state is StageState.OPEN for s in stages) else ''}"


def _why(target: str, reason: Reason, sentence: str, *command: str, at: int | None = None) -> Why:
    return Why(target, reason, sentence, command, to_datetime(at))


def _time(at: int | None) -> str:
    return _moment(to_datetime(at))


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "an unknown time"


def _after(words: str, text: str | None) -> str:
    """The first line of a text after these words; nothing without one."""
    lines = (text or "").strip().splitlines()
    return f"{words}{lines[0][:200]}" if lines else ""


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


# ---- the reading

_NOW = Sql("SELECT {now}")
_WORKERS = Sql(
    "SELECT id, host, pid, born, queues, slots, own_slots, labels, memory FROM gm_worker"
    f" WHERE state = {WorkerState.ACTIVE:d} AND lease_until >= {{now}}"
)
_HOLDERS = Sql("SELECT id, host, heartbeat_at FROM gm_worker WHERE id {in ids}")
_JOBS = Sql(
    f"SELECT {columns(JOB, 'j')}, g.name AS stage, r.state AS run_state, r.stop,"
    " t.name AS task, q.name AS queue, q.paused, q.limit_id AS queue_limit, l.name AS limit_name, l.key AS limit_key,"
    " p.id AS part_of, coalesce(p.ends_as, p.state) AS parent_state,"
    " (SELECT m.error FROM gm_missed m WHERE m.job_id = j.id AND m.at = j.finished_at) AS missed"
    " FROM gm_job j JOIN gm_task t ON t.id = j.task_id JOIN gm_queue q ON q.id = j.queue_id"
    " LEFT JOIN gm_limit l ON l.id = j.limit_id"
    " LEFT JOIN gm_job p ON p.id = j.parent_id AND j.stage_id IS NULL"
    " LEFT JOIN gm_stage g ON g.id = j.stage_id LEFT JOIN gm_run r ON r.id = j.run_id"
    f" WHERE j.id {{in ids}} AND {THERE}"
)
_RUNNING_PARTS = Sql(
    f"SELECT id FROM gm_job WHERE parent_id = :job AND stage_id IS NULL AND state = {State.IN_PROGRESS:d}"
    " ORDER BY started_at, id"
)
_NEXT_PART = Sql(
    f"SELECT id FROM gm_job WHERE parent_id = :job AND stage_id IS NULL AND state = {State.QUEUED:d}"
    " ORDER BY CASE WHEN ready IS NULL THEN 1 ELSE 0 END, ready, run_at, id LIMIT 1"
)
_LINE = "SELECT count(*) FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND"
_AHEAD = Sql(  # the index of the line alone tells those before it; of those at its very place it does not know the numbers
    f"SELECT ({_LINE} (priority < :priority OR (priority = :priority"
    " AND (CAST(:ready AS bigint) IS NULL OR ready < :ready))))"
    f" + ({_LINE} priority = :priority AND ready = :ready AND id < :job)"
)
_RUN = Sql(
    f"SELECT {columns(RUN, 'r')}, s.name AS subject FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id WHERE r.id = :run"
)
_STAGES = Sql(f"SELECT {columns(STAGE)} FROM gm_stage WHERE run_id = :run ORDER BY position")
_EDGES = Sql(
    "SELECT e.downstream_id, u.name FROM gm_edge e JOIN gm_stage u ON u.id = e.upstream_id WHERE u.run_id = :run"
    " ORDER BY u.position"
)
_CLAIMS = Sql("SELECT jobs FROM gm_claim")
_RUNNING = Sql(
    f"SELECT id, worker_id FROM gm_job WHERE id {{in ids}} AND run_id = :run AND state = {State.IN_PROGRESS:d}"
    " ORDER BY started_at, id"
)
_NEXT = Sql(
    f"SELECT id FROM gm_job WHERE stage_id = :stage AND state = {State.QUEUED:d}"
    " ORDER BY CASE WHEN ready IS NULL THEN 1 ELSE 0 END, priority, ready, run_at, id LIMIT 1"
)
_ACTIVE = Sql(f"SELECT id FROM gm_run WHERE subject_id = :subject AND state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d})")
_SUBJECT = Sql("SELECT id FROM gm_subject WHERE pipeline = :pipeline AND name = :name")
_SUBJECTS = Sql("SELECT name FROM gm_subject WHERE pipeline = :pipeline ORDER BY id DESC LIMIT 1000")
_PIPELINES = Sql("SELECT DISTINCT pipeline FROM gm_subject")
_LAST = Sql("SELECT id FROM gm_run WHERE subject_id = :subject ORDER BY id DESC LIMIT 1")


def job(tx: Tx, number: int) -> Why:
    found = _Look(tx).jobs([number])
    if not found:
        raise NotFound(f"there is no job {number}")
    return of_job(found[0], tx.value(_NOW))


def run(tx: Tx, number: int) -> Why:
    return of_run(_Look(tx).run(number), tx.value(_NOW))


def subject(tx: Tx, pipeline: str, name: str) -> Why:
    """Of its active run; without one, of the last."""
    number = tx.value(_SUBJECT, pipeline=pipeline, name=name)
    if number is None:
        raise _unknown_subject(tx, pipeline, name)
    chosen = tx.value(_ACTIVE, subject=number) or tx.value(_LAST, subject=number)
    if chosen is None:
        raise NotFound(f"{pipeline} {quoted(name)} has no run, or none any more; start one")
    found = run(tx, chosen)
    return replace(found, target=f"subject {name}")


def _unknown_subject(tx: Tx, pipeline: str, name: str) -> NotFound:
    names = [row.name for row in tx.all(_SUBJECTS, pipeline=pipeline)]
    if names:
        return NotFound(f"pipeline {quoted(pipeline)} has no subject {quoted(name)}{did_you_mean(name, names)}")
    pipelines = [row.pipeline for row in tx.all(_PIPELINES)]
    return NotFound(f"no run of a pipeline {quoted(pipeline)} was ever started{did_you_mean(pipeline, pipelines)}")


class _Look:
    """One consistent look at the ledger: which workers are alive, and with them the facts about jobs and runs."""

    def __init__(self, tx: Tx) -> None:
        self.tx = tx
        self._locks: Sequence[Lock] | None = None
        alive = [row for row in tx.all(_WORKERS) if row.host != host() or not gone(row.pid, row.born)]
        self.alive = {row.id: Worker.of(row) for row in alive}
        self.classes = names.classes(tx)

    def jobs(self, ids: Collection[int]) -> list[Job]:
        """In the order that was asked for."""
        rows = {row.id: row for row in self.tx.all(_JOBS, ids=list(ids))} if ids else {}
        held = sorted({row.worker_id for row in rows.values() if row.worker_id is not None})
        holders = {row.id: row for row in self.tx.all(_HOLDERS, ids=held)} if held else {}
        return [self._job(rows[number], holders) for number in ids if number in rows]

    def _job(self, row: Any, holders: dict[int, Any]) -> Job:
        closed = (row.stop is not None and row.run_state not in TERMINAL) or row.parent_state in TERMINAL
        state = State(row.state)
        demand = self.classes.get(class_of(row.pool), NOTHING)
        lacks = least_lacking(offers(self.alive.values(), row.queue, row.pool), demand)
        job = Job(
            id=row.id,
            name=_named(row),
            state=state,
            stage=row.stage,
            queue=row.queue,
            paused=bool(row.paused),
            served=lacks is not None,
            workers=len(self.alive),
            lacks=lacks or (),
            demand=demand,
            ahead=self._ahead(row) if state is State.QUEUED else 0,
            run_at=None if row.run_at == WAITING else row.run_at,
            since=row.finished_at or row.started_at,
            error=row.error,
            holder=self._holder(row.worker_id, holders),
            locked=self._locked(row.id) if state is State.IN_PROGRESS else None,
            stopping=bool(row.cancel) or row.stop is not None or row.parent_state in TERMINAL,
            may_retry=state in (State.FAILED, State.CANCELLED) and not closed,
            missed=row.missed,
            limit=why_limits.look(self.tx, row) if state is State.QUEUED else None,
        )
        split = state is State.QUEUED and row.ready is None and row.run_at is None and row.parts_left
        return self._with_parts(job, row) if split else job

    def _locked(self, job: int) -> Locked | None:
        """Locks are asked for once, and only when a job in progress is looked at."""
        if self._locks is None:
            self._locks = locks.held_locks(self.tx)
        for lock in self._locks:
            for waiter in lock.waiters:
                if waiter.job == job:
                    return Locked(lock.resource, lock.holder.words, lock.holder.job, waiter.since)
        return None

    def _with_parts(self, job: Job, row: Any) -> Job:
        running = [part.id for part in self.tx.all(_RUNNING_PARTS, job=job.id)]
        following = self.tx.value(_NEXT_PART, job=job.id)
        return job._replace(
            ends_as=None if row.ends_as is None else State(row.ends_as),
            parts=row.parts,
            parts_left=row.parts_left,
            parts_running=len(running),
            some_parts=self.jobs(running[:1] + [part for part in [following] if part is not None]),
        )

    def _holder(self, number: int | None, holders: dict[int, Any]) -> Holder | None:
        if number is None:
            return None
        row = holders.get(number)
        if row is None:
            return Holder(number, "a host that nobody knows", None, silent=True)
        return Holder(number, row.host, row.heartbeat_at, silent=number not in self.alive)

    def _ahead(self, row: Any) -> int:
        line = {"queue": row.queue_id, "pool": row.pool, "priority": row.priority}
        ahead: int = self.tx.value(_AHEAD, ready=row.ready, job=row.id, **line)
        return ahead

    def run(self, number: int) -> Run:
        row = self.tx.one(_RUN, run=number)
        if row is None:
            raise NotFound(f"there is no run {number}")
        stages = self.tx.all(_STAGES, run=number)
        running = self._running(number)
        following = [self.tx.value(_NEXT, stage=stage.id) for stage in stages if _left(stage)]
        return Run(
            id=number,
            pipeline=row.pipeline,
            subject=row.subject,
            state=State(row.state),
            said=row.error or row.reason,
            finished_at=row.finished_at,
            stopping=row.stop is not None,
            behind=self.tx.value(_ACTIVE, subject=row.subject_id) if row.state == State.WAITING else None,
            workers=len(self.alive),
            stages=self._stages(number, stages),
            running=self.jobs(running[:1]),
            queued=self.jobs([job for job in following if job is not None]),
            in_progress=len(running),
        )

    def _running(self, run: int) -> list[int]:
        """Jobs in progress, found through the claims: there is no index for them. Those of workers alive come first."""
        ids = [number for row in self.tx.all(_CLAIMS) for number in orjson.loads(row.jobs)]
        rows = self.tx.all(_RUNNING, ids=ids, run=run) if ids else []
        return [row.id for row in sorted(rows, key=lambda row: row.worker_id not in self.alive)]

    def _stages(self, run: int, rows: Sequence[Any]) -> list[Stage]:
        after: dict[int, list[str]] = {row.id: [] for row in rows}
        for edge in self.tx.all(_EDGES, run=run):
            after[edge.downstream_id].append(edge.name)
        return [
            Stage(
                row.name,
                bool(row.each),
                StageState(row.state),
                _left(row),
                row.total,
                tuple(after[row.id]),
                row.failed,
                row.with_errors,
                row.todo is not None or row.pruning is not None,
            )
            for row in rows
        ]


def _named(row: Any) -> str:
    if row.part_of is not None:
        return f"job {row.id} ({row.key!r} of job {row.part_of})"
    return f"job {row.id} ({row.key!r})" if row.key else f"job {row.id} ({row.task})"


def _left(row: Any) -> int:
    left: int = row.total - row.completed - row.failed - row.skipped - row.cancelled
    return left
