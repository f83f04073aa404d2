"""The end of an attempt: one fenced write per batch, whatever the outcomes are.

`finish` is what a worker calls, `rescue` and the sweep of a stopped run end in the same `settle`. A row changes only if
its attempt is still the one that the outcome belongs to; only rows that changed are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeVar

import orjson

from gristmill.clock import micros
from gristmill.demand import NOTHING, class_of, shown
from gristmill.fingerprint import fingerprint
from gristmill.ledger import applied, flow, names, parents
from gristmill.ledger.claim import FREE_KEYS, PART_OF
from gristmill.ledger.done import forget_jobs, remember
from gristmill.ledger.failures import count as count_failures
from gristmill.ledger.hold import hold
from gristmill.ledger.moment import Ended, moment
from gristmill.ledger.outcomes import Completed, CompletedRow, Outcome, Verdict
from gristmill.ledger.sql import WAITING, Sql
from gristmill.ledger.store import Tx
from gristmill.retry import Failure, Retries, delay_after, error_name
from gristmill.states import State

__all__ = ["Completed", "CompletedRow", "Outcome", "Verdict"]  # and what is defined here
_R = TypeVar("_R", bound=tuple[Any, ...])
_PORTION = 100 << 20  # characters of results in one statement: PostgreSQL hangs up at a parameter of 1 GiB


_SUCCESS = {
    Verdict.COMPLETED: State.COMPLETED,
    Verdict.WITH_ERRORS: State.COMPLETED_WITH_ERRORS,
    Verdict.END_RUN: State.COMPLETED,
    Verdict.UNCHANGED: State.COMPLETED,
    Verdict.SKIPPED: State.SKIPPED,
}
_WITH_RESULT = (State.COMPLETED, State.COMPLETED_WITH_ERRORS)
_TELLS: dict[Verdict, bool] = {  # of what a limit is about: well or not; all others say nothing
    Verdict.COMPLETED: True,
    Verdict.WITH_ERRORS: True,
    Verdict.END_RUN: True,
    Verdict.UNCHANGED: True,
    Verdict.ERROR: False,
    Verdict.TIMEOUT: False,
}
_APPLIES = (Verdict.COMPLETED, Verdict.WITH_ERRORS, Verdict.END_RUN)
_FAILURE = {
    Verdict.ERROR: Failure.ERROR,
    Verdict.TIMEOUT: Failure.TIMEOUT,
    Verdict.CRASH: Failure.CRASH,
    Verdict.MEMORY: Failure.CRASH,
    Verdict.LOST: Failure.LOSS,
}
_KIND = {
    Verdict.TIMEOUT: "timeout",
    Verdict.CRASH: "crash",
    Verdict.MEMORY: "memory",
    Verdict.LOST: "worker_lost",
    Verdict.UNSPENT: "unspent",
}
_FAILED = (*_FAILURE, Verdict.PERMANENT)
_RETURNED = (Verdict.LATER, Verdict.WAITING, Verdict.UNSPENT, Verdict.RELEASED)

# A CASE, since the planner must not guess how many rows are "in progress and held by this worker": it guesses one, reads
# them first, and compares each with every row of the batch (2,000 rows: 1.7 s instead of 44 ms).
_FENCE = (
    "gm_job.id = f.job AND CASE WHEN gm_job.attempt = f.number"
    f" AND state = {State.IN_PROGRESS:d} AND worker_id = :worker THEN true ELSE false END"
)
_ALL_ENDED = "CASE WHEN parts_left > 0 THEN false ELSE true END"  # its parts: nearly every job has none
_ENDING = (
    "UPDATE gm_job SET %s, result = f.outcome, error = f.said, error_class = f.kind,"
    " progress = coalesce(f.done, progress), errors = errors + f.e, crashes = crashes + f.c,"
    " timeouts = timeouts + f.t, losses = losses + f.l, worker_id = NULL, cancel = {false},"
    " started_at = CASE WHEN f.ran > 0 THEN {now} - f.ran ELSE started_at END"
    " FROM {rows f: job bigint, number int, target smallint, outcome text, ran bigint, done text, said text, kind text,"
    f" e smallint, c smallint, t smallint, l smallint, mark text}} WHERE {_FENCE} AND %s"
)
_END = Sql(
    _ENDING % ("state = f.target, fingerprint = f.mark, unique_key = NULL, finished_at = {now}", _ALL_ENDED)
    + f" RETURNING gm_job.id, task_id, stage_id, state, {PART_OF}"
)
_END_LATER = Sql(_ENDING % (f"state = {State.QUEUED:d}, ends_as = f.target", "parts_left > 0") + " RETURNING gm_job.id")
_COMPLETE = Sql(  # the same for the plain case, which is nearly every job: four values a row instead of twelve
    f"UPDATE gm_job SET state = {State.COMPLETED:d}, result = f.outcome, worker_id = NULL,"
    " error = NULL, error_class = NULL, cancel = {false}, started_at = {now} - f.ran, finished_at = {now}"
    f" FROM {{rows f: job bigint, number int, outcome text, ran bigint}} WHERE {_FENCE} AND {_ALL_ENDED}"
)
_COMPLETING = (  # on SQLite, in the driver's loop: 3 µs a row less than reading them from JSON
    f"UPDATE gm_job SET state = {State.COMPLETED:d}, result = %s, worker_id = NULL, cancel = 0,"
    " error = NULL, error_class = NULL, started_at = {now:d} - %s, finished_at = {now:d} WHERE id %s AND attempt = ?3"
    f" AND state = {State.IN_PROGRESS:d} AND worker_id = {{worker:d}} AND {_ALL_ENDED}"
)
_COMPLETE_WITH_RESULT = _COMPLETING % ("?4", "?2", "= ?1")
_COMPLETE_WITHOUT = _COMPLETING % ("NULL", "?2", "= ?1")
_DIGITS = 16  # of microseconds: 300 years
_RAN = b"%%%dd" % _DIGITS  # bytes, no text: there SQLite would count characters from the start, for each job
_COMPLETE_FROM_TO = _COMPLETING % (
    "NULL",
    f"CAST(substr(?2, (id - ?1) * {_DIGITS} + 1, {_DIGITS}) AS INTEGER)",
    "BETWEEN ?1 AND ?4",
)
_A_FEW = 3  # jobs that are cheaper to write one by one than from one to another
_BACK = Sql(
    f"UPDATE gm_job SET state = {State.QUEUED:d}, worker_id = NULL, cancel = {{false}}, alone = f.solo,"
    " priority = coalesce(f.urgency, priority), pool = coalesce(f.place, pool),"
    " ready = CASE WHEN f.delay > 0 OR (f.waits AND parts_left > 0) THEN NULL ELSE {ready} END,"
    " run_at = CASE WHEN f.delay > 0 THEN {now} + f.delay WHEN f.waits AND parts_left > 0 THEN NULL ELSE {waits} END,"
    " error = coalesce(f.said, error), error_class = coalesce(f.kind, error_class), progress = coalesce(f.done, progress),"
    " errors = errors + f.e, crashes = crashes + f.c, timeouts = timeouts + f.t, losses = losses + f.l,"
    " returns = returns + f.r"
    " FROM {rows f: job bigint, number int, delay bigint, solo boolean, said text, kind text, done text, e smallint,"
    " c smallint, t smallint, l smallint, r int, urgency smallint, waits boolean, place smallint}"
    f" WHERE {_FENCE} RETURNING gm_job.id, queue_id, ready, run_at, limit_id, task_id"
)
_SPENT = Sql(
    "SELECT j.id, j.errors, j.crashes, j.timeouts, j.losses, j.cancel, j.pool, t.spec FROM gm_job j JOIN gm_task t"
    " ON t.id = j.task_id WHERE j.id {in ids} ORDER BY j.id {lock_j}"  # locked: a cancel must not come in between
)
_KEEP = Sql(
    "INSERT INTO gm_attempt (job_id, attempt, outcome, error_class, error, traceback, log, worker_id, started_at, ended_at,"
    " fingerprint) SELECT f.job, f.number, f.verdict, f.kind, f.said, f.trace, f.log, :worker, {now} - f.ran, {now}, f.mark"
    " FROM {rows f: job bigint, number int, verdict text, kind text, said text, trace text, log text, ran bigint, mark text}"
    " WHERE true"
    " ON CONFLICT DO NOTHING"
)
_AS_BEFORE = Sql("UPDATE gm_job SET epoch = NULL WHERE id {in ids}")
_FORGET = Sql("DELETE FROM gm_claim WHERE id {in ids} AND worker_id = :worker")
_BEGIN_RUNS = Sql(
    f"UPDATE gm_run SET state = {State.IN_PROGRESS:d}, started_at = {{now}} WHERE id {{in ids}} AND state = {State.QUEUED:d}"
)
_BEGIN_FREE_RUNS = Sql(
    f"UPDATE gm_run SET state = {State.IN_PROGRESS:d}, started_at = {{now}} WHERE id {{one_of SELECT id FROM gm_run"
    f" WHERE id {{in ids}} AND state = {State.QUEUED:d} ORDER BY id {{skip}}}} RETURNING id"
)
_STILL_QUEUED = Sql(f"SELECT id FROM gm_run WHERE id {{in ids}} AND state = {State.QUEUED:d}")
_PROGRESS = Sql("UPDATE gm_job SET progress = f.done FROM {rows f: job bigint, number int, done text} WHERE " + _FENCE)


def finish(
    tx: Tx,
    worker: int,
    outcomes: Sequence[Outcome],
    completed: Completed | None = None,
    ended_claims: Sequence[int] = (),
) -> list[int]:
    """Records the ends of attempts. Says which were refused: they were not this worker's any more."""
    hold(tx, worker)
    refused = settle(tx, worker, outcomes, completed)
    forget_claims(tx, worker, ended_claims)
    return refused


def forget_claims(tx: Tx, worker: int, claims: Sequence[int]) -> None:
    """Every job of these claims has ended."""
    if claims:
        tx.run(_FORGET, worker=worker, ids=list(claims))


def runs_of(outcomes: Sequence[Outcome], completed: Completed | None) -> set[int | None]:
    return {o.run for o in outcomes} | {run for run, _, _ in (completed.by_origin() if completed else ())}


def _parents_of(outcomes: Sequence[Outcome], completed: Completed | None) -> set[int | None]:
    """What these jobs are parts of, and those that wait for parts of their own."""
    known = {parent for _, _, parent in (completed.by_origin() if completed else ())}
    return known | {o.job if o.verdict is Verdict.WAITING else o.part_of for o in outcomes}


def settle(
    tx: Tx,
    worker: int,
    outcomes: Sequence[Outcome],
    completed: Completed | None = None,
    runs: flow.LockedRuns | None = None,
) -> list[int]:
    """The one way out of `in_progress`. The caller has locked the worker's row, and (`runs`) perhaps the runs."""
    runs = flow.lock_runs(tx, runs_of(outcomes, completed)) if runs is None else runs
    begin_runs(tx, [run.id for run in runs.values() if run.state == State.QUEUED])
    outcomes = skip_late(tx, outcomes)
    parents.lock(tx, _parents_of(outcomes, completed))
    changes: Counter[flow.Change] = _complete(tx, worker, completed) if completed else Counter()
    ended = list(completed.watched) if completed else []
    refused = _settle_others(tx, worker, outcomes, runs, changes, ended) if outcomes else []
    flow.tally(tx, changes)
    moment(tx, ended)
    _free(tx, completed, outcomes, refused)
    return refused


def skip_late(tx: Tx, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Jobs that completed, but after something newer than what they applied, are skipped."""
    guarded = [(o.job, o.guards) for o in outcomes if o.guards and o.verdict in _APPLIES]
    if not guarded:
        return outcomes
    why = applied.late(tx, guarded)
    return [o._replace(verdict=Verdict.SKIPPED, reason=why[o.job], result=None) if o.job in why else o for o in outcomes]


def _free(tx: Tx, completed: Completed | None, outcomes: Sequence[Outcome], refused: Sequence[int]) -> None:
    """Others may go on in the place of these. Only some ends tell whether what a limit is about (a host) is well."""
    if completed and completed.limited:
        tx.free(completed.limited, well=True)
    late = set(refused)
    for o in outcomes:
        if o.job not in late:
            tx.free([o.job], well=_TELLS.get(o.verdict))


class SomeRefused(Exception):
    """Not every plain completion was this worker's. The caller sends them again as outcomes, to learn which."""


def _complete(tx: Tx, worker: int, completed: Completed) -> Counter[flow.Change]:
    if tx.dialect == "sqlite":
        changed = _complete_on_sqlite(tx, worker, completed.rows)
    else:
        changed = sum(tx.run(_COMPLETE, worker=worker, f=rows) for rows in _portions(completed.rows, 2))
    if changed != len(completed.rows):
        raise SomeRefused
    if completed.unique:
        tx.run(FREE_KEYS, ids=completed.unique)
    for (queue, task), times in completed.times.items():
        tx.done.completed(worker, queue, task, *times)
    origins = completed.by_origin().items()
    return Counter({flow.Change(stage, State.COMPLETED, parent): n for (_, stage, parent), n in origins})


def _complete_on_sqlite(tx: Tx, worker: int, rows: Sequence[CompletedRow]) -> int:
    """Jobs without a result whose numbers follow one another differ only in how long they ran: they are written together.
    No None is given: the driver takes longer for it than for the rest of a row."""
    with_result = [(job, ran, attempt, result) for job, attempt, result, ran in rows if result is not None]
    without: list[tuple[int, int, int]] = []
    together: list[tuple[int, bytes, int, int]] = []
    for part in _side_by_side(sorted(row for row in rows if row[2] is None)):
        if len(part) > _A_FEW:
            ran = _RAN * len(part) % tuple(map(itemgetter(3), part))
            together.append((part[0][0], ran, part[0][1], part[-1][0]))
        else:
            without += [(job, ran, attempt) for job, attempt, _, ran in part]
    written = ((_COMPLETE_WITH_RESULT, with_result), (_COMPLETE_WITHOUT, without), (_COMPLETE_FROM_TO, together))
    return sum(tx.run_many(sql.format(now=tx.now, worker=worker), some) for sql, some in written if some)


def _side_by_side(rows: Sequence[CompletedRow]) -> list[Sequence[CompletedRow]]:
    """The rows in parts: in each the jobs' numbers follow one another, and their attempts are the same."""
    ends = [n for n, (a, b) in enumerate(pairwise(rows), 1) if b[0] - a[0] != 1 or b[1] != a[1]]
    return [rows[first:end] for first, end in pairwise([0, *ends, len(rows)])]


def _portions(rows: Sequence[_R], result: int) -> Iterator[Sequence[_R]]:
    """The rows in portions that one statement can carry, nearly always one. `result`: the column that may be large."""
    results = map(itemgetter(result), rows)
    if sum(map(len, filter(None, results))) <= _PORTION:
        yield rows
        return
    first = size = 0
    for n, row in enumerate(rows):
        size += len(row[result] or "")
        if size > _PORTION and n > first:
            yield rows[first:n]
            first, size = n, len(row[result] or "")
    yield rows[first:]


def _settle_others(
    tx: Tx,
    worker: int,
    outcomes: Sequence[Outcome],
    runs: flow.LockedRuns,
    changes: Counter[flow.Change],
    over: list[Ended],
) -> list[int]:
    marks = {o.job: fingerprint(_kind(o), o.reason, o.traceback) for o in outcomes if o.verdict in _FAILED}
    ended, back = _decide(tx, outcomes, runs, marks)
    done: set[int] = set()
    known, runs_of_jobs = len(over), {o.job: o.run for o in outcomes}
    for sql in (_END, _END_LATER, _END):  # later, with parts that have not ended; the last of them may have ended by then
        left = [row for row in ended if row[0] not in done]
        for job, *what in (
            [row for rows in _portions(left, 3) for row in tx.tuples(sql, worker=worker, f=rows)] if left else ()
        ):
            done.add(job)
            if what:
                over.append(Ended(job, what[0]))
                changes[flow.Change(*what[1:])] += 1
                if what[2] == State.FAILED:
                    tx.notes.failed(runs_of_jobs[job], job)
    tx.done.ended(worker, (job for job, _ in over[known:]))
    failures = {o.job: o.ran for o in outcomes if o.verdict in _FAILURE}
    for job, queue, ready, run_at, limit, task in tx.tuples(_BACK, worker=worker, f=back) if back else ():
        done.add(job)
        if job in failures:
            tx.done.retried(worker, queue, task, failures[job])
        tx.poke(limit)
        if ready is not None or (run_at is not None and run_at < WAITING):
            tx.ring(queue, delayed=run_at is not None)
    _keep_attempts(tx, worker, [o for o in outcomes if o.job in done and _noteworthy(o)], marks)
    forget_jobs(tx, [row[0] for row in ended if row[0] in done and row[1] > 1 and row[2] not in _WITH_RESULT])
    completed = [o for o in outcomes if o.verdict is Verdict.COMPLETED and o.job in done]
    remember(tx, [(o.job, o.digest) for o in completed if o.digest is not None])
    if guarded := [(o.job, o.guards) for o in outcomes if o.guards and o.verdict in _APPLIES and o.job in done]:
        applied.record(tx, guarded)
    if unchanged := [o.job for o in outcomes if o.verdict is Verdict.UNCHANGED and o.job in done]:
        tx.run(_AS_BEFORE, ids=unchanged)
    _end_runs(tx, [o for o in outcomes if o.verdict is Verdict.END_RUN and o.job in done])
    return [o.job for o in outcomes if o.job not in done]


def begin(tx: Tx, worker: int, runs: Sequence[int]) -> None:
    """Moves runs on from `queued`: this worker holds a job of theirs."""
    hold(tx, worker)
    locked = flow.lock_runs(tx, runs)
    begin_runs(tx, [run.id for run in locked.values() if run.state == State.QUEUED])


def begin_free(tx: Tx, runs: Sequence[int]) -> list[int]:
    """The same for a transaction that holds locks on jobs, and so must not wait. Says which runs others hold just now."""
    begun = [run for (run,) in tx.tuples(_BEGIN_FREE_RUNS, ids=runs)]
    _note_begun(tx, begun)
    return [] if len(begun) == len(runs) else [run for (run,) in tx.tuples(_STILL_QUEUED, ids=runs)]


def begin_runs(tx: Tx, runs: Sequence[int]) -> None:
    if runs:
        tx.run(_BEGIN_RUNS, ids=sorted(runs))
        _note_begun(tx, runs)


def _note_begun(tx: Tx, runs: Iterable[int]) -> None:
    for run in runs:
        tx.notes.run(run, state=State.IN_PROGRESS.word)


def report_progress(tx: Tx, worker: int, progress: Sequence[tuple[int, int, str]]) -> None:
    """Writes (job, attempt, JSON) of running jobs, fenced like everything else."""
    hold(tx, worker)
    tx.run(_PROGRESS, worker=worker, f=progress)


_UNSPENT = (0, 0, 0, 0)


def _decide(
    tx: Tx, outcomes: Sequence[Outcome], runs: flow.LockedRuns, marks: Mapping[int, str]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Each outcome becomes a row that ends its job or a row that sends it back."""
    ended: list[tuple[Any, ...]] = []
    back: list[tuple[Any, ...]] = []
    unlucky = [o.job for o in outcomes if o.verdict not in _SUCCESS]
    spent = {row.id: row for row in tx.all(_SPENT, ids=unlucky)} if unlucky else {}
    for o in outcomes:
        target = _SUCCESS.get(o.verdict)
        if target is not None:
            said = o.reason if target is not State.COMPLETED else None
            ended.append((o.job, o.attempt, target, o.result, o.ran, o.progress, said, None, *_UNSPENT, None))
            continue
        row = spent.get(o.job)
        if row is None:
            continue  # its row is gone; nothing to write
        failure = _FAILURE.get(o.verdict)
        costs = tuple(int(failure is f) for f in Failure)
        kind = _kind(o)
        run = runs.get(o.run) if o.run is not None else None  # gone: then the job has ended, and this is refused
        stopping = row.cancel or (run is not None and run.stop is not None)
        delay = None if stopping or o.verdict is Verdict.CANCELLED else _delay(o, failure, row)
        place = None
        if not stopping and _out_of_memory(o) and (steps := orjson.loads(row.spec).get("memory")):
            place = _bigger(tx, row.pool, steps)
            delay, costs = (None, costs) if place is None else (0.0, _UNSPENT)
            o = o._replace(reason=_memory_words(o, place is None, steps))
        if delay is not None:
            returned = int(o.verdict is Verdict.UNSPENT or (o.verdict in (Verdict.LATER, Verdict.RELEASED) and o.ran > 0))
            priority = run.priority if run is not None else None  # it may have been raised meanwhile
            how = (o.job, o.attempt, micros(delay), o.alone, o.reason, kind, o.progress)
            back.append((*how, *costs, returned, priority, o.verdict is Verdict.WAITING, place))
        else:
            cancelled = o.verdict is Verdict.CANCELLED or (stopping and o.verdict is not Verdict.PERMANENT)
            target = State.CANCELLED if cancelled else State.FAILED
            mark = None if cancelled else marks.get(o.job)
            ended.append((o.job, o.attempt, target, None, o.ran, o.progress, o.reason, kind, *costs, mark))
    return ended, back


def _delay(outcome: Outcome, failure: Failure | None, row: Any) -> float | None:
    """Seconds until the job is tried again; None: not again."""
    if outcome.verdict in _RETURNED:
        return outcome.delay
    if failure is None:
        return None
    policy = Retries.from_json(orjson.loads(row.spec)["retries"])
    return delay_after(policy, failure, getattr(row, failure.value) + 1, outcome.error_types)


def _out_of_memory(outcome: Outcome) -> bool:
    return outcome.verdict is Verdict.MEMORY or (
        outcome.verdict is Verdict.ERROR and error_name(MemoryError) in outcome.error_types
    )


def _bigger(tx: Tx, pool: int, steps: Sequence[int]) -> int | None:
    """The pool of the next bigger of the memory classes that a task declares; None: there is none."""
    demand = names.classes(tx).get(class_of(pool), NOTHING)
    bigger = [demand._replace(memory=step) for step in steps if step > demand.memory]
    return names.add_pool(tx, bigger[:1]) + pool % 2 if bigger else None


def _memory_words(outcome: Outcome, last: bool, steps: Sequence[int]) -> str:
    said = outcome.reason or "it ran out of memory"
    return f"{said}; there is no class bigger than {shown(steps[-1])}" if last else f"{said}; again in a bigger class"


def _kind(outcome: Outcome) -> str | None:
    """The class of a failure: the error's own, or ours (`timeout`, `crash`, `worker_lost`, …)."""
    return _KIND.get(outcome.verdict) or outcome.error_class


def _noteworthy(outcome: Outcome) -> bool:
    return outcome.verdict not in _SUCCESS and outcome.verdict not in (Verdict.RELEASED, Verdict.LATER, Verdict.WAITING)


def _keep_attempts(tx: Tx, worker: int, outcomes: Sequence[Outcome], marks: Mapping[int, str]) -> None:
    if outcomes:
        rows = [
            (o.job, o.attempt, o.verdict.value, _kind(o), o.reason, o.traceback, o.log, o.ran, marks.get(o.job))
            for o in outcomes
        ]
        tx.run(_KEEP, worker=worker, f=rows)
        count_failures(tx, worker, [_kind(o) for o in outcomes if o.job in marks])


def _end_runs(tx: Tx, outcomes: Sequence[Outcome]) -> None:
    reasons: Mapping[int, str | None] = {o.run: o.reason for o in outcomes if o.run is not None}
    for run in sorted(reasons):
        flow.stop(tx, run, State.COMPLETED, by="gristmill", reason=reasons[run])
