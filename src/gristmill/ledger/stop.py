"""Cancelling and requeueing: what operators do to runs and jobs, recorded with who and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy.exc import IntegrityError

from gristmill.errors import NotConfirmed, NotFound, Refused
from gristmill.ledger import done, flow, parents, parts
from gristmill.ledger.chores import NOT_EMITTED
from gristmill.ledger.claim import PART_OF
from gristmill.ledger.sql import Sql
from gristmill.ledger.start import TWIN
from gristmill.ledger.store import Tx
from gristmill.states import TERMINAL, StageState, State, sources


class InClosedStage(Refused):
    """A job cannot simply be queued again: its stage is closed, so its run has to be retried for it."""

    def __init__(self, job: int, run: int, stage: str, key: str) -> None:
        super().__init__(f"job {job} is an item of stage {stage!r}, which is closed; retry its run: run retry {run}")
        self.run, self.stage, self.key = run, stage, key


_RUN = Sql("SELECT id, state, stop FROM gm_run WHERE id = :run")
STOPPING = Sql("SELECT id FROM gm_run WHERE stop IS NOT NULL AND finished_at IS NULL ORDER BY id")
_TO_SWEEP = Sql(f"SELECT id FROM gm_stage WHERE run_id = :run AND state <> {StageState.CLOSED:d} ORDER BY id")
_NEXT_KEYS = Sql("SELECT key FROM gm_job WHERE stage_id = :stage AND key > :after ORDER BY key LIMIT 1 OFFSET :most")
_SWEEP = Sql(
    f"UPDATE gm_job SET state = {State.CANCELLED:d}, ready = NULL, run_at = NULL, unique_key = NULL, finished_at = {{now}},"
    " error = :reason WHERE id {one_of SELECT id FROM gm_job WHERE stage_id = :stage AND key >= :first"
    " AND (CAST(:last AS text) IS NULL OR key < :last)"
    f" AND state = {State.QUEUED:d} AND (parts_left IS NULL OR parts_left = 0) {{skip}}}}"
    f" RETURNING stage_id, state, {PART_OF}, id, task_id"
)
_JOB = Sql(
    "SELECT id, run_id, stage_id, key, state, error_class, run_at, queue_id, parts, parts_left, ends_as,"
    f" {PART_OF} AS part_of FROM gm_job WHERE id = :job"
)
_LOCK_JOB = Sql("SELECT state, stage_id, unique_name FROM gm_job WHERE id = :job {lock}")
_LOCK_JOBS = Sql("SELECT id FROM gm_job WHERE id {in ids} ORDER BY id {lock}")
_CANCEL_QUEUED = Sql(
    f"UPDATE gm_job SET state = {State.CANCELLED:d}, ready = NULL, run_at = NULL, unique_key = NULL, finished_at = {{now}},"
    " error = :reason, error_class = :kind"
    f" WHERE id {{in ids}} AND state = {State.QUEUED:d} AND (parts_left IS NULL OR parts_left = 0)"
    f" RETURNING stage_id, state, {PART_OF}, id, task_id"
)
_SPLIT = Sql(f"SELECT id FROM gm_job WHERE id {{in ids}} AND state = {State.QUEUED:d} AND parts_left > 0 ORDER BY id")
_ASK_CANCEL = Sql(f"UPDATE gm_job SET cancel = {{true}} WHERE id {{in ids}} AND state = {State.IN_PROGRESS:d}")
_NOW = Sql(
    "UPDATE gm_job SET ready = {ready}, run_at = {waits}"
    f" WHERE id = :job AND state = {State.QUEUED:d} AND run_at < {{waiting}} RETURNING queue_id, limit_id"
)
_REQUEUED_FROM = sources("requeue")
_REQUEUE = Sql(
    f"UPDATE gm_job SET state = {State.QUEUED:d}, ready = {{ready}}, run_at = {{waits}}, errors = 0, crashes = 0,"
    " timeouts = 0, losses = 0, returns = 0, result = NULL, created_at = {now}, finished_at = NULL, alone = {false},"
    " unique_key = unique_name, fingerprint = NULL,"
    " archived_at = NULL"
    f" WHERE id = :job AND state IN ({', '.join(map(str, _REQUEUED_FROM))}) RETURNING queue_id, limit_id"
)
_EDITABLE = Sql("SELECT state, stage_id, attempt, args, limit_id FROM gm_job WHERE id = :job {lock}")
_EDIT = Sql("UPDATE gm_job SET args = :args WHERE id = :job")
_LIMIT_KEY = Sql("SELECT key FROM gm_limit WHERE id = :limit")
_MOVE = Sql(  # out of the line, which it has no permit of the other key for
    "UPDATE gm_job SET limit_id = :limit, ready = NULL, run_at = CASE WHEN ready IS NULL THEN run_at ELSE {waiting} END"
    " WHERE id = :job"
)
_STAGE = Sql("SELECT id, name, state FROM gm_stage WHERE id = :stage")
_UNCOUNT = Sql(
    "UPDATE gm_stage SET failed = failed - :failed, skipped = skipped - :skipped, cancelled = cancelled - :cancelled,"
    " completed = completed - :partly, with_errors = with_errors - :partly WHERE id = :stage"
)
_AUDIT = Sql(
    "INSERT INTO gm_audit (at, who, verb, target, detail) VALUES ({now}, :who, :verb, :target, :detail) RETURNING id"
)
_END_WAITING = Sql(
    f"UPDATE gm_run SET state = {State.CANCELLED:d}, stop = {State.CANCELLED:d}, stop_by = :by, reason = :reason,"
    f" finished_at = {{now}} WHERE id = :run AND state = {State.WAITING:d}"
)
_CLOSE_ALL = Sql(
    f"UPDATE gm_stage SET state = {StageState.CLOSED:d}, outcome = {State.CANCELLED:d}, closed_at = {{now}}, todo = NULL"
    " WHERE run_id = :run"
)


def audit(tx: Tx, who: str, verb: str, target: str, **detail: Any) -> int:
    """Records what somebody does; says under which number."""
    number: int = tx.value(_AUDIT, who=who, verb=verb, target=target, detail=orjson.dumps(detail).decode())
    tx.notes.add("audit", id=number, who=who, verb=verb, target=target)
    return number


def forget_done(tx: Tx, pipeline: str, subject: str, stage: str | None, *, by: str, confirm: int | None = None) -> int:
    """Forgets the fingerprints of a subject (or of one stage of it); with `confirm`, only if they are so many."""
    forgotten = done.forget(tx, pipeline, subject, stage)
    if confirm is not None and confirm != forgotten:
        raise NotConfirmed(forgotten, confirm)
    audit(tx, by, "forget", f"{pipeline} {subject}", stage=stage, forgotten=forgotten)
    return forgotten


def cancel_run(tx: Tx, run: int, *, by: str, reason: str | None = None) -> None:
    """Flags a run to end `cancelled`. Its jobs end in batches (`sweep`), the run turns terminal last."""
    row = flow.lock_runs(tx, [run]).get(run)
    if row is None:
        raise NotFound(f"there is no run {run}")
    if row.state in TERMINAL:
        raise Refused(f"run {run} is {State(row.state).word} already")
    if row.stop is not None:
        return
    audit(tx, by, "run.cancel", f"run {run}", reason=reason)
    if row.state == State.WAITING:
        tx.run(_END_WAITING, run=run, by=by, reason=reason)
        tx.run(_CLOSE_ALL, run=run)
        tx.notes.run(run, state=State.CANCELLED.word)
    else:
        flow.stop(tx, run, State.CANCELLED, by=by, reason=reason)


def stopping_runs(tx: Tx) -> list[int]:
    return [row.id for row in tx.all(STOPPING)]


def stages_to_sweep(tx: Tx, run: int) -> list[int]:
    return [row.id for row in tx.all(_TO_SWEEP, run=run)]


def sweep(tx: Tx, run: int, stage: int, first: str = "", most: int = 1000) -> str | None:
    """Cancels the queued items of a stopped run's stage, from key `first` on. Says where to go on; None: done.

    Jobs that a worker is just taking are left to that worker, which sees the flag.
    """
    row = flow.lock_runs(tx, [run]).get(run)
    if row is None or row.stop is None or row.state in TERMINAL:
        return None
    following: str | None = tx.value(_NEXT_KEYS, stage=stage, after=first, most=most)
    reason = row.error or row.reason or "the run was stopped"
    changed = tx.all(_SWEEP, stage=stage, first=first, last=following, reason=reason)
    flow.over(tx, changed)
    return following


def cancel_job(tx: Tx, job: int, *, by: str, reason: str | None = None) -> State:
    """Cancels a queued job now, or after its parts; one in progress is stopped by its worker. Says which state it was in."""
    row = tx.one(_JOB, job=job)
    if row is None:
        raise NotFound(f"there is no job {job}")
    cancelled, told = cancel_jobs(tx, [job], [row.run_id], [row.part_of], reason=reason or f"cancelled by {by}")
    if not cancelled and not told:
        raise Refused(_ended_already(job, tx.one(_JOB, job=job)))
    audit(tx, by, "job.cancel", f"job {job}", reason=reason)
    return State.QUEUED if cancelled else State.IN_PROGRESS


def cancel_jobs(
    tx: Tx,
    jobs: Sequence[int],
    runs: Iterable[int | None],
    part_of: Iterable[int | None],
    *,
    reason: str,
    kind: str | None = None,
) -> tuple[int, int]:
    """Ends queued jobs, and asks for the end of those in progress; says how many of each.

    `runs` and `part_of`: what the jobs belong to. One that waits for its parts ends after them (`parts.sweep`).
    """
    flow.lock_runs(tx, runs)
    parents.lock(tx, part_of)
    tx.all(_LOCK_JOBS, ids=jobs)  # between the next ones none must change hands
    ended = tx.all(_CANCEL_QUEUED, ids=jobs, reason=reason, kind=kind)
    split = tx.all(_SPLIT, ids=jobs) if len(ended) < len(jobs) else []
    ending = sum(bool(parents.cancel(tx, row.id, reason)) for row in split)
    told = tx.run(_ASK_CANCEL, ids=jobs) if len(ended) < len(jobs) else 0
    flow.over(tx, ended)
    return len(ended) + ending, told


def _ended_already(job: int, row: Any) -> str:
    if row is not None and row.ends_as is not None:
        return f"job {job} will be {State(row.ends_as).word} already, once {row.parts_left} parts of it have stopped"
    return f"job {job} is {State(row.state).word if row else 'gone'} already"


def requeue_job(tx: Tx, job: int, *, by: str) -> None:
    """Queues a terminal job again with a fresh budget; one that waits for its retry runs now."""
    row = tx.one(_JOB, job=job)
    if row is None:
        raise NotFound(f"there is no job {job}")
    if row.run_id is not None:
        run = flow.lock_runs(tx, [row.run_id]).get(row.run_id)
        if run is None:
            raise NotFound(f"there is no job {job}; its run was removed")
        if run.stop is not None and run.state not in TERMINAL:
            raise Refused(f"job {job}: its run {run.id} is being stopped; retry it when that is done")
        if row.state == State.SKIPPED and row.error_class == NOT_EMITTED:
            raise Refused(f"job {job} was dropped: what it came from was retried, and did not give it again")
        stage = None if row.part_of is not None else tx.one(_STAGE, stage=row.stage_id)
        if stage is not None and row.state in _REQUEUED_FROM and stage.state in (StageState.CLOSED, StageState.WAITING):
            raise InClosedStage(job, run.id, stage.name, row.key)
    part_of, has_parts = row.part_of, row.parts is not None
    if part_of is not None:
        parts.check_retry(tx, job, part_of)
    row = tx.one(_LOCK_JOB, job=job)
    queued = tx.one(_NOW, job=job)
    if queued is None:
        queued = _requeue(tx, job, row and row.unique_name)
        if queued is None or row is None:
            raise Refused(f"job {job} is {State(row.state).word if row else 'gone'}: there is nothing to retry")
        if row.stage_id is not None:
            _uncount(tx, row.stage_id, State(row.state))
            done.forget_jobs(tx, [job])
        if part_of is not None:
            parents.uncount(tx, part_of, {row.state: 1})
        if has_parts:
            parts.retry_failed(tx, job)
    tx.ring(queued.queue_id)
    tx.poke(queued.limit_id)
    audit(tx, by, "job.retry", f"job {job}")


def _requeue(tx: Tx, job: int, unique: str | None) -> Any:
    """Says in which queue the job is again; None: it has not ended. It takes its unique key back, or is refused."""
    twin = None if unique is None else tx.value(TWIN, key=unique)
    if twin is not None and twin != job:
        raise Refused(f"job {job} would run beside job {twin}, which has the same unique key now; cancel one of them")
    try:
        return tx.one(_REQUEUE, job=job)
    except IntegrityError:  # enqueued between the two statements
        raise Refused(f"job {job} would run beside a job that was just added with the same unique key") from None


def _uncount(tx: Tx, stage: int, state: State) -> None:
    tx.run(
        _UNCOUNT,
        stage=stage,
        failed=int(state is State.FAILED),
        skipped=int(state is State.SKIPPED),
        cancelled=int(state is State.CANCELLED),
        partly=int(state is State.COMPLETED_WITH_ERRORS),
    )


_SHOWN = 2000  # characters of arguments that the record keeps


class Moves(NamedTuple):
    """The key of its limit, by number, that a job had by its arguments, and the one that it has by others."""

    args: Mapping[str, Any]  # those that it had, when that was found out
    old: int | None  # None: they give none any more
    new: int


def edit_job(tx: Tx, job: int, args: str, moves: Moves | None = None, *, by: str) -> None:
    """Changes the arguments (JSON) of a job that waits, and with them its key of a limit. No `moves`: nobody knows that."""
    row = tx.one(_EDITABLE, job=job)
    if row is None:
        raise NotFound(f"there is no job {job}")
    if row.state == State.IN_PROGRESS:
        raise Refused(f"job {job} is in progress and has its arguments already; wait until it has ended, or cancel it")
    if row.state != State.QUEUED:
        raise Refused(f"job {job} is {State(row.state).word} already; ask for a new one with other arguments")
    if row.args is None and row.stage_id is not None:
        raise Refused(f"job {job} has no arguments of its own: it runs with those of its run")
    tx.run(_EDIT, job=job, args=args)
    if row.limit_id is not None and tx.value(_LIMIT_KEY, limit=row.limit_id):  # else all of its limit count together
        _move(tx, job, row, moves)
    audit(tx, by, "job.edit", f"job {job}", before=(row.args or "{}")[:_SHOWN], after=args[:_SHOWN])


def _move(tx: Tx, job: int, row: Any, moves: Moves | None) -> None:
    """To the key that its new arguments give. A key that the old ones did not give was its own, and stays."""
    if moves is None:
        raise Refused(
            f"job {job} counts against a limit by its arguments, and by which of them is not known here;"
            " edit it with the application that has its task"
        )
    if orjson.loads(row.args or "{}") != moves.args:
        raise Refused(f"job {job} has just got other arguments from somebody else; look at it again")
    if moves.old in (None, row.limit_id) and moves.new != row.limit_id:
        tx.run(_MOVE, job=job, limit=moves.new)
        tx.free([job])
        tx.poke(moves.new)
