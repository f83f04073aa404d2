"""What operators do to many jobs or runs at once.

What is wanted is written down first (`begin`), then done in batches (`step`), each with how far it has come in the same
transaction. So it may be any number of rows, and if the one who began it dies, anyone can go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import orjson

from gristmill.errors import NotConfirmed, NotFound, Refused, quoted
from gristmill.ledger import again, choose, flow, remove
from gristmill.ledger.choose import Choice
from gristmill.ledger.chores import Selection
from gristmill.ledger.claim import PART_OF
from gristmill.ledger.parts import PartOfEnded
from gristmill.ledger.read import conditions, now
from gristmill.ledger.sql import WAITING, Sql
from gristmill.ledger.stop import InClosedStage, audit, cancel_jobs, cancel_run, requeue_job
from gristmill.ledger.store import Tx
from gristmill.states import StageState, State

BATCH = 500  # jobs in one transaction: the runs of all of them are locked meanwhile
_PAGE = 5000  # rows that are looked at to find them, where few are meant

_BEGIN = Sql("INSERT INTO gm_order (id, reached, touched_at) VALUES (:order, 0, {now})")
_ORDER = Sql(
    "SELECT a.id, a.who, a.verb, a.detail, o.done, o.reached FROM gm_order o JOIN gm_audit a ON a.id = o.id"
    " WHERE o.id = :order"
)
_LOCK_ORDER = Sql("SELECT id FROM gm_order WHERE id = :order {lock}")
_GO_ON = Sql("UPDATE gm_order SET reached = :reached, done = :done, touched_at = {now} WHERE id = :order")
LEFT_ALONE = Sql("SELECT id FROM gm_order WHERE reached IS NOT NULL AND touched_at <= {now} - :quiet ORDER BY id")
_LAST_JOB = Sql("SELECT coalesce(max(id), 0) FROM gm_job")
_LAST_RUN = Sql("SELECT coalesce(max(id), 0) FROM gm_run")
_ROOTS = Sql(f"SELECT DISTINCT run_id, {PART_OF} AS part_of FROM gm_job WHERE id {{in ids}}")
_JOB_PAGE = Sql("SELECT max(id) FROM (SELECT id FROM gm_job WHERE id > :at AND id <= :upto ORDER BY id LIMIT :most) AS page")
_RUN_PAGE = Sql(_JOB_PAGE.text.replace("gm_job", "gm_run"))
_NOW = Sql(
    "UPDATE gm_job SET ready = {ready}, run_at = {waits} WHERE id {one_of SELECT id FROM gm_job WHERE id {in ids}"
    f" AND state = {State.QUEUED:d} AND run_at < {{waiting}} ORDER BY id {{lock}}}} RETURNING queue_id, limit_id"
)
_ARCHIVE = Sql(
    "UPDATE gm_job SET archived_at = CASE WHEN :away THEN {now} END WHERE id {one_of SELECT id FROM gm_job"
    " WHERE id {in ids} AND finished_at IS NOT NULL AND (archived_at IS NULL) = :away ORDER BY id {lock}}"
)
_SUBJECT = Sql("SELECT id FROM gm_subject WHERE pipeline = :pipeline AND name = :subject")
_UNFINISHED = Sql(
    "SELECT id FROM gm_run WHERE subject_id = (SELECT id FROM gm_subject WHERE pipeline = :pipeline AND name = :subject)"
    " AND finished_at IS NULL AND id <= :upto ORDER BY id"
)
_JOBS_LEFT = Sql(
    "SELECT CAST((SELECT coalesce(sum(total - completed - failed - skipped - cancelled), 0) FROM gm_stage"
    " WHERE run_id {in ids}) + (SELECT coalesce(sum(parts_left), 0) FROM gm_job WHERE run_id {in ids} AND parts_left > 0)"
    " AS bigint)"
)


class Order(NamedTuple):
    """An action on many, as it is recorded."""

    id: int
    who: str
    verb: str
    choice: Choice
    upto: int  # what came later is none of its business
    reason: str | None
    at: int | None  # when it was begun; what ended later is none of its business either. None: older code has begun it
    most: int | None  # it was confirmed for so many, and does no more
    done: Counter[str]
    reached: int | None
    refusals: list[str]  # why some were left
    settled: bool = False  # nothing can be done for it now

    @property
    def action(self) -> Action:
        return ACTIONS[self.verb]

    @property
    def room(self) -> int:
        """To how many more it may be done in the next step."""
        return self.action.batch if self.most is None else min(self.action.batch, self.most - _items(self.done))


Apply = Callable[[Tx, Sequence[int], Order], Mapping[str, int]]


@dataclass(frozen=True)
class Action:
    """What can be done, to which (a condition beside those of the choice), and how to a batch."""

    guard: str
    apply: Apply
    word: str  # what becomes of them
    unless: str  # why it does not apply to others
    runs: bool = False  # it is about runs, not jobs
    batch: int = BATCH
    ended: bool = False  # it is about what had ended when it was begun
    waits_for_runs: bool = False  # there may be some that can be had only once they have ended
    alone: str = ""  # which have a transaction to themselves (a condition), since they may spoil it


# ---- what is done to a batch: each guards its rows again, since they were chosen before the locks were taken


def _cancel(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    roots = tx.all(_ROOTS, ids=ids)
    of = ({row.run_id for row in roots}, {row.part_of for row in roots})
    purged = order.verb == "queue.purge"
    word = "purged" if purged else "cancelled"
    reason = order.reason or f"{word} by {order.who}"
    ended, told = cancel_jobs(tx, ids, *of, reason=reason, kind="purged" if purged else None)
    return {"cancelled": ended, "told to stop": told}


def _run_now(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    rows = tx.all(_NOW, ids=ids)
    for row in rows:
        tx.ring(row.queue_id)
        tx.poke(row.limit_id)
    return {"ready": len(rows)}


def _archive(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    return {"archived": tx.run(_ARCHIVE, ids=ids, away=True)}


def _unarchive(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    return {"listed again": tx.run(_ARCHIVE, ids=ids, away=False)}


def _retry(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    """Who is alone and cannot be queued again spoils the transaction; of others that is known before anything is done."""
    flow.lock_runs(tx, [row.run_id for row in tx.all(_ROOTS, ids=ids)])  # all before the first job, and in their order
    queued = 0
    for job in ids:
        try:
            queued += _requeue(tx, job, order.who, alone=len(ids) == 1)
        except Refused as refused:
            if len(ids) == 1:
                raise
            order.refusals.append(str(refused))
        except NotFound as gone:
            order.refusals.append(str(gone))
    return {"queued": queued, LEFT: len(order.refusals)}


_ALIKE = Sql(
    f"SELECT count(*) FROM gm_job j WHERE j.parent_id = :parent AND j.stage_id IS NULL AND j.state = {State.FAILED:d}"
    " AND j.fingerprint = (SELECT p.fingerprint FROM gm_job p WHERE p.id = :job)"
)


def _requeue(tx: Tx, job: int, who: str, *, alone: bool) -> int:
    """Also of a stage that is closed, by a retry of its run. A part of what has ended is queued with that, and so are all
    that failed like it. Says how many of those that are wanted."""
    try:
        requeue_job(tx, job, by=who)
    except PartOfEnded as part:
        alike: int = tx.value(_ALIKE, parent=part.parent, job=job)
        _requeue(tx, part.parent, who, alone=alone)
        return max(alike, 1)
    except InClosedStage as closed:
        if not alone:
            raise again.Changed(f"stage {closed.stage!r} of run {closed.run} has just closed", closed.run) from None
        which = Selection(key=closed.key, exact=True)
        again.retry(tx, again.choose(tx, closed.run, which, closed.stage), by=who)
    return 1


def _delete(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    return {"deleted": remove.delete_jobs(tx, ids)}


def _cancel_runs(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    stopped = 0
    for run, row in flow.lock_runs(tx, ids).items():
        if row.stop is None and not State(row.state).terminal:
            cancel_run(tx, run, by=order.who, reason=order.reason)
            stopped += 1
    return {"stopped": stopped}


def _delete_runs(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    ended = [run for run, row in flow.lock_runs(tx, ids).items() if State(row.state).terminal]
    jobs = [remove.remove_run(tx, run) or 0 for run in ended if not remove.needed_now(tx, run)]
    return {"runs": len(jobs), JOBS_TOO: sum(jobs)}


def _retry_runs(tx: Tx, ids: Sequence[int], order: Order) -> Mapping[str, int]:
    """What failed of one: one that is refused spoils the transaction, so each has its own."""
    (run,) = ids
    row = flow.lock_runs(tx, [run]).get(run)
    if row is None or not State(row.state).terminal:
        raise Refused(f"run {run} is not over any more; it was left as it is")
    again.retry(tx, again.choose(tx, run, Selection((int(State.FAILED),))), by=order.who)
    return {"retried": 1}


LEFT = "left"  # of those that were chosen, how many stay as they are
JOBS_TOO = "jobs"  # that go with their runs


def _items(counts: Mapping[str, int]) -> int:
    """How many of those that were chosen are counted here."""
    return sum(number for word, number in counts.items() if word != JOBS_TOO)


_ENDED_JOB = "j.finished_at IS NOT NULL"
_ENDED_RUN = f"r.finished_at IS NOT NULL AND NOT {remove.NEEDED_NOW}"
# Not of a run that its subject had another one after: that has done its work again, or does so now.
_FAILED_LAST = (
    "r.finished_at IS NOT NULL AND EXISTS (SELECT 1 FROM gm_stage g WHERE g.run_id = r.id AND g.failed > 0)"
    " AND NOT EXISTS (SELECT 1 FROM gm_run n WHERE n.subject_id = r.subject_id AND n.id > r.id)"
)
_RETRY_LAST = "only runs that have ended, in which something failed, and which are their subject's last, can be retried"
_CANCEL_ONLY = "only what is queued or in progress can be cancelled"
_DELETE_ONLY = "only jobs on their own that have ended can be deleted; those of a run go with it: run delete"
_DELETE_ENDED = "only runs that have ended, and that no run under way has stages from, can be deleted; run cancel stops one"
_STOP = f"j.state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d})"
_WAITS = f"j.state = {State.QUEUED:d}"
ACTIONS: dict[str, Action] = {
    "job.cancel": Action(_STOP, _cancel, "cancelled", _CANCEL_ONLY),
    "queue.purge": Action(_WAITS, _cancel, "cancelled", _CANCEL_ONLY),
    "job.run_now": Action(
        f"j.run_at < {WAITING}", _run_now, "ready", "only what is delayed can be run now; job retry queues what has ended"
    ),
    "job.archive": Action(
        f"{_ENDED_JOB} AND j.archived_at IS NULL",
        _archive,
        "archived",
        "only what has ended, and is not archived yet, can be archived",
        ended=True,
    ),
    "job.unarchive": Action(f"{_ENDED_JOB} AND j.archived_at IS NOT NULL", _unarchive, "listed again", "it is not archived"),
    "job.delete": Action(
        f"{_ENDED_JOB} AND j.stage_id IS NULL AND j.run_id IS NULL AND j.parent_id IS NULL",
        _delete,
        "deleted",
        _DELETE_ONLY,
        ended=True,
    ),
    "job.retry_many": Action(
        _ENDED_JOB,
        _retry,
        "queued",
        "only what has ended can be queued again",
        ended=True,
        alone="(j.unique_name IS NOT NULL OR (j.parent_id IS NOT NULL AND j.stage_id IS NULL)"
        f" OR g.state IN ({StageState.CLOSED:d}, {StageState.WAITING:d}))",
    ),
    "run.cancel": Action(
        "r.finished_at IS NULL AND r.stop IS NULL",
        _cancel_runs,
        "stopped",
        "only what has not ended, and is not being stopped, can be cancelled",
        runs=True,
        batch=20,
    ),
    "run.retry_many": Action(_FAILED_LAST, _retry_runs, "retried", _RETRY_LAST, runs=True, batch=1, ended=True),
    "run.delete": Action(_ENDED_RUN, _delete_runs, "runs", _DELETE_ENDED, runs=True, batch=1, ended=True),
    "subject.purge": Action(_ENDED_RUN, _delete_runs, "runs", _DELETE_ENDED, runs=True, batch=1, waits_for_runs=True),
}


# ---- looking before, and going on


def _where(verb: str, choice: Choice, dialect: str) -> choose.Where:
    action = ACTIONS[verb]
    where = choose.runs_where(choice) if action.runs else choose.jobs_where(choice, dialect)
    return {**where, action.guard: {}}


def preview(tx: Tx, verb: str, choice: Choice) -> dict[str, int]:
    """How many it would do what to."""
    action = ACTIONS[verb]
    one, source = ("r", choose.RUNS) if action.runs else ("j", choose.JOBS)
    where = choose.runs_where(choice) if action.waits_for_runs else _where(verb, choice, tx.dialect)
    clauses, values = conditions(where)
    rows = tx.all(Sql(f"SELECT {one}.state, count(*) AS n{source}{clauses} GROUP BY {one}.state"), **values)
    counts: Counter[str] = Counter()
    for row in rows:
        told = action.apply is _cancel and row.state == State.IN_PROGRESS
        counts["told to stop" if told else action.word] += row.n
    if action.apply is _delete_runs and rows:
        jobs = f"SELECT CAST(coalesce(sum(total), 0) AS bigint) FROM gm_stage WHERE run_id IN (SELECT r.id{source}{clauses})"
        counts[JOBS_TOO] = tx.value(Sql(jobs), **values)
    return dict(counts)


def check_there(tx: Tx, verb: str, choice: Choice) -> None:
    """Refuses numbers that are nobody's."""
    what, source = ("run", choose.RUNS) if ACTIONS[verb].runs else ("job", choose.JOBS)
    clauses = " WHERE r.id {in ids}" if what == "run" else f" WHERE j.id {{in ids}} AND {choose.THERE}"
    rows = tx.tuples(Sql(f"SELECT {what[0]}.id{source}{clauses}"), ids=choice.ids or ())
    missing = sorted(set(choice.ids or ()) - {number for (number,) in rows})
    if missing:
        raise NotFound(f"there is no {what} {missing[0]}")


def begin(tx: Tx, verb: str, choice: Choice, *, by: str, reason: str | None = None, confirm: int | None = None) -> int:
    """Writes down what is wanted; from then on it will be done, by `step` and whoever calls it.

    `confirm`: only if it is about so many now, and then to no more: some may be added, or end, while it is done.
    """
    upto = tx.value(_LAST_RUN if ACTIONS[verb].runs else _LAST_JOB)
    most: dict[str, int] = {}
    if confirm is not None:
        counts = preview(tx, verb, choice)
        if sum(counts.values()) != confirm:
            raise NotConfirmed(sum(counts.values()), confirm)
        most = {"most": _items(counts)}
    kind = "runs" if ACTIONS[verb].runs else "jobs"
    target = f"{kind}: {choice.words()}"[:500]
    number = audit(tx, by, verb, target, choice=choice.to_json(), upto=upto, reason=reason, at=now(tx), **most)
    tx.run(_BEGIN, order=number)
    return number


def _order(row: Any) -> Order:
    detail = orjson.loads(row.detail)
    choice = Choice.from_json(detail["choice"])
    done = Counter(orjson.loads(row.done))
    bounds = (detail.get("at"), detail.get("most"))
    return Order(row.id, row.who, row.verb, choice, detail["upto"], detail["reason"], *bounds, done, row.reached, [])


def order(tx: Tx, number: int) -> Order:
    row = tx.one(_ORDER, order=number)
    if row is None:
        raise NotFound(f"action {number} is not in the ledger any more: that was restored")
    return _order(row)


def left_alone(tx: Tx, quiet: int) -> list[int]:
    """Actions that are not done, and that nobody has gone on with for `quiet` microseconds."""
    return [row.id for row in tx.all(LEFT_ALONE, quiet=quiet)]


class Portion(NamedTuple):
    ids: list[int]
    last: bool  # there is no more after these
    blocked: bool = False  # there is, but not yet


def portion(tx: Tx, order: Order) -> Portion:
    """What the next step is for. A look that may take long, so not in the transaction of the step."""
    if order.room <= 0:
        return Portion([], True)
    found = list(islice(_walk(tx, order), order.room))
    ids = _together(tx, order, found)
    waits = order.action.waits_for_runs and bool(_unfinished_runs(tx, order.choice, order.upto))
    return Portion(ids, len(ids) < order.action.batch and ids == found and not waits, blocked=waits and not ids)


def _together(tx: Tx, order: Order, ids: list[int]) -> list[int]:
    """The first ones, up to one that has to be alone; or that one."""
    if not ids or not order.action.alone:
        return ids
    sql = Sql(f"SELECT min(j.id){choose.JOBS} WHERE j.id {{in ids}} AND {order.action.alone}")
    first = tx.value(sql, ids=ids)
    return ids if first is None else ids[: max(1, ids.index(first))]


def _walk(tx: Tx, order: Order) -> Iterator[int]:
    """Those that are meant, from where it has come to. In pages by number: no planner finds a way that takes longer."""
    one, source = ("r", choose.RUNS) if order.action.runs else ("j", choose.JOBS)
    page = _RUN_PAGE if order.action.runs else _JOB_PAGE
    where = _where(order.verb, order.choice, tx.dialect)
    if order.action.ended and order.at is not None:
        where[f"{one}.finished_at <= :begun"] = {"begun": order.at}
    clauses, values = conditions(where)
    sql = Sql(f"SELECT {one}.id{source}{clauses} AND {one}.id > :at AND {one}.id <= :end ORDER BY {one}.id")
    tx.by_key()
    at, size = order.reached, order.action.batch
    while (end := order.upto if order.choice.ids else tx.value(page, at=at, upto=order.upto, most=size)) is not None:
        yield from (number for (number,) in tx.tuples(sql, at=at, end=end, **values))
        if order.choice.ids:
            return
        at, size = end, min(2 * size, _PAGE)


def _unfinished_runs(tx: Tx, choice: Choice, upto: int) -> list[int]:
    of = {"pipeline": choice.pipeline, "subject": choice.subject, "upto": upto}
    return [row.id for row in tx.all(_UNFINISHED, **of)]


def step(tx: Tx, number: int, reached: int, chosen: Portion) -> list[str]:
    """Does a portion, unless another has gone on from there meanwhile. Says why some were left as they are."""
    order = _hold(tx, number, reached)
    if order is None:
        return []
    done = order.action.apply(tx, chosen.ids, order) if chosen.ids else {}
    _go_on(tx, order, chosen, done)
    return order.refusals


def leave(tx: Tx, number: int, reached: int, chosen: Portion) -> None:
    """The same, for what cannot be done: it stays as it is, and is counted."""
    order = _hold(tx, number, reached)
    if order is not None:
        _go_on(tx, order, chosen, {LEFT: len(chosen.ids)})


def _hold(tx: Tx, number: int, reached: int) -> Order | None:
    tx.one(_LOCK_ORDER, order=number)
    row = tx.one(_ORDER, order=number)
    return None if row is None or row.reached != reached else _order(row)


def _go_on(tx: Tx, order: Order, chosen: Portion, done: Mapping[str, int]) -> None:
    order.done.update(done)
    # A run that had to be waited for may have a lower number than those that are gone by now.
    on = 0 if order.action.waits_for_runs else max(chosen.ids, default=order.reached or 0)
    tx.run(_GO_ON, order=order.id, reached=None if chosen.last else on, done=orjson.dumps(order.done).decode())


# ---- a subject


class Purged(NamedTuple):
    runs: list[int]  # that were stopped
    jobs: int  # of theirs that had not ended
    future: Mapping[str, int]  # what is to go
    order: int | None  # under which number its history goes


def purge_subject(
    tx: Tx, choice: Choice, *, history: bool, by: str, reason: str | None = None, confirm: int | None = None
) -> Purged:
    """Stops the subject's active run and drops the one that waits; with `history`, its runs are to go once they ended."""
    if tx.one(_SUBJECT, pipeline=choice.pipeline, subject=choice.subject) is None:
        raise NotFound(f"{choice.pipeline} has no subject {quoted(choice.subject)}")
    future = preview(tx, "subject.purge", choice) if history else {}
    unfinished = flow.lock_runs(tx, _unfinished_runs(tx, choice, tx.value(_LAST_RUN)))
    jobs: int = tx.value(_JOBS_LEFT, ids=list(unfinished)) if unfinished else 0
    stopped: list[int] = []
    for run, row in sorted(unfinished.items(), reverse=True):  # the one that waits first, or the end of the other starts it
        if row.stop is None and not State(row.state).terminal:
            cancel_run(tx, run, by=by, reason=reason)
            stopped.append(run)
    if confirm is not None and (count := len(stopped) + jobs + sum(future.values())) != confirm:
        raise NotConfirmed(count, confirm)
    if not history:
        audit(tx, by, "subject.purge", f"{choice.pipeline} {choice.subject}", reason=reason, runs=stopped, jobs=jobs)
        return Purged(stopped, jobs, future, None)
    return Purged(stopped, jobs, future, begin(tx, "subject.purge", choice, by=by, reason=reason))
