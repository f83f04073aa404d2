"""Parts of a job: handed over by its attempt, jobs of their own, swept when what they are parts of ends without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from gristmill.demand import NOTHING, Demand, class_of
from gristmill.errors import Invalid, NotYours, Refused
from gristmill.ledger import flow, limits, names, parents
from gristmill.ledger.claim import PART_OF
from gristmill.ledger.own import lock_own
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Ledger, Tx
from gristmill.limit import Limit
from gristmill.states import TERMINAL, State

LIMIT = 10_000  # parts of one job: they are swept and retried with it, and one transaction has to carry that


class PartKind(NamedTuple):
    """What the parts of one function have in common."""

    task_id: int
    queue_id: int
    pool: int
    names: tuple[str, ...]  # of their task, former ones included
    limit_id: int | None = None  # the limit that each has a key of


class Standing(NamedTuple):
    """How the parts are doing that an attempt has asked for."""

    total: int
    left: int  # that have not ended
    failed: int  # or were cancelled


_OF = "parent_id = :job AND stage_id IS NULL"
_PARENT = Sql(
    "SELECT j.run_id, j.stage_id, j.parent_id, j.parts, j.ends_as, j.error, r.stop, r.error AS run_error, r.reason,"
    " coalesce(r.priority, j.priority) AS priority"
    " FROM gm_job j LEFT JOIN gm_run r ON r.id = j.run_id WHERE j.id = :job"
)
_ADD = Sql(
    "INSERT INTO gm_job (run_id, parent_id, parent_attempt, task_id, queue_id, pool, priority, key, args, state, ready,"
    " run_at, created_at, limit_id) SELECT CAST(:run AS bigint), CAST(:job AS bigint), :attempt, :task, :queue, :pool,"
    f" :priority, f.key, f.args, {State.QUEUED:d}, CASE WHEN f.lim IS NULL THEN {{next}} END,"
    " CASE WHEN f.lim IS NOT NULL THEN {waiting} END, {now}, f.lim FROM {rows f: key text, args text, lim int} WHERE true"
    " ON CONFLICT (parent_id, key) WHERE stage_id IS NULL AND parent_id IS NOT NULL DO NOTHING RETURNING key"
)
_GROW = Sql(
    "UPDATE gm_job SET parts = coalesce(parts, 0) + :more, parts_left = coalesce(parts_left, 0) + :more,"
    " parts_failed = coalesce(parts_failed, 0) WHERE id = :job"
)
_THERE = Sql(
    "SELECT j.id, j.key, j.args, j.state, j.parent_attempt, t.name FROM gm_job j JOIN gm_task t ON t.id = j.task_id"
    f" JOIN {{rows f: key text}} ON j.key = f.key WHERE j.{_OF}"
)
_AGAIN = Sql(f"UPDATE gm_job SET parent_attempt = :attempt FROM {{rows f: key text}} WHERE {_OF} AND gm_job.key = f.key")
_FRESH = (
    f"UPDATE gm_job SET state = {State.QUEUED:d}, ready = {{ready}}, run_at = {{waits}}, worker_id = NULL,"
    " cancel = {false}, errors = 0, crashes = 0, timeouts = 0, losses = 0, returns = 0, alone = {false}, result = NULL,"
    " fingerprint = NULL, created_at = {now}, finished_at = NULL, archived_at = NULL"
)
_REDO = Sql(
    _FRESH
    + ", args = f.args, error = NULL, error_class = NULL, progress = NULL, parent_attempt = :attempt, task_id = :task,"
    f" queue_id = :queue, pool = :pool FROM {{rows f: key text, args text}} WHERE {_OF} AND gm_job.key = f.key"
)
_MOVE = Sql(
    f"UPDATE gm_job SET limit_id = f.lim FROM {{rows f: key text, args text, lim int}} WHERE {_OF} AND gm_job.key = f.key"
)
_RETRY = Sql(f"{_FRESH} WHERE {_OF} AND state = :state RETURNING queue_id, limit_id")
_OPEN_OF_RUN = Sql("SELECT id FROM gm_job WHERE run_id = :run AND parts_left > 0 ORDER BY id")
# Those that end as something have parts; said here, or PostgreSQL reads all jobs until it has counted how few these are.
ENDING = Sql("SELECT id FROM gm_job WHERE ends_as IS NOT NULL AND parts_left > 0 ORDER BY id")
_SWEEP = Sql(
    f"UPDATE gm_job SET state = {State.CANCELLED:d}, ready = NULL, run_at = NULL, finished_at = {{now}}, error = :reason"
    f" WHERE id {{one_of SELECT id FROM gm_job WHERE {_OF} AND state = {State.QUEUED:d} LIMIT :most {{skip}}}}"
    f" RETURNING stage_id, state, {PART_OF}, id, task_id"
)
_RAISE = Sql(
    "UPDATE gm_job SET priority = :priority WHERE id {one_of SELECT p.id FROM gm_job j JOIN gm_job p ON p.parent_id = j.id"
    " AND p.stage_id IS NULL WHERE j.run_id = :run AND j.parts_left > 0"
    f" AND p.state = {State.QUEUED:d} AND p.priority > :priority ORDER BY p.id LIMIT :most {{lock_p}}}}"
)
_ASKED_FOR = f"j.{_OF} AND j.parent_attempt = :attempt AND t.name IN (SELECT f.name FROM {{rows f: name text}})"
_STANDING = Sql(
    f"SELECT count(*), count(CASE WHEN j.state < {State.COMPLETED:d} THEN 1 END),"
    f" count(CASE WHEN j.state IN ({State.FAILED:d}, {State.CANCELLED:d}) THEN 1 END)"
    f" FROM gm_job j JOIN gm_task t ON t.id = j.task_id WHERE {_ASKED_FOR}"
)
_RESULTS = Sql(
    f"SELECT j.key, j.result FROM gm_job j JOIN gm_task t ON t.id = j.task_id WHERE {_ASKED_FOR}"
    f" AND j.state IN ({State.COMPLETED:d}, {State.COMPLETED_WITH_ERRORS:d}) AND j.key > :after ORDER BY j.key LIMIT :most"
)
_FAILURES = Sql(
    f"SELECT j.key, j.error, j.error_class, j.state FROM gm_job j JOIN gm_task t ON t.id = j.task_id WHERE {_ASKED_FOR}"
    f" AND j.state IN ({State.FAILED:d}, {State.CANCELLED:d}) ORDER BY j.key"
)

_POOL = Sql("SELECT pool FROM gm_job WHERE id = :job")


# ---- handing over


def kind_of(
    ledger: Ledger, name: str, formerly: Sequence[str], spec: str, queue: str, pool: int, limit: Limit | None = None
) -> PartKind:
    """The numbers that jobs of a part carry instead of names, which are made on first use."""
    task = ledger.do(names.add_tasks, [(name, spec)])[name, spec]
    with ledger.reading() as tx:
        known = names.queues(tx)
    number = known[queue] if queue in known else ledger.do(names.add_queues, [queue])[queue]
    rule = None if limit is None else ledger.do(limits.declare, limit.name, limit.stored())
    return PartKind(task, number, pool, (name, *formerly), rule)


def pool_beside(ledger: Ledger, job: int, demands: Sequence[Demand], is_async: bool) -> int:
    """The pool of parts of a job. They are done where it may be: they need the same labels, and what they declare."""
    with ledger.reading() as tx:
        labels = names.classes(tx).get(class_of(tx.value(_POOL, job=job) or 0), NOTHING).labels
    wanted = [demand._replace(labels=tuple(sorted({*labels, *demand.labels}))) for demand in demands]
    return is_async + (0 if wanted == [NOTHING] else ledger.do(names.add_pool, wanted))


def hand_over(tx: Tx, worker: int, job: int, attempt: int, kind: PartKind, parts: Sequence[tuple[Any, ...]]) -> None:
    """A batch of parts, (key, arguments, perhaps its key of a limit), from an attempt that still holds its job.

    A key that an earlier attempt asked for is left as it is, or done afresh where its arguments are others now.
    """
    if not lock_own(tx, worker, job, attempt):
        raise NotYours(f"job {job} is not this attempt's any more")
    parent = tx.one(_PARENT, job=job)
    if parent.stop is not None:
        raise Refused("the run is being stopped")
    if parent.stage_id is None and parent.parent_id is not None:
        raise Invalid("a part cannot have parts of its own")
    rows = _with_limits(tx, kind, parts)
    numbers = {"job": job, "attempt": attempt, "task": kind.task_id, "queue": kind.queue_id, "pool": kind.pool}
    added = {key for (key,) in tx.tuples(_ADD, run=parent.run_id, priority=parent.priority, f=rows, **numbers)}
    if (parent.parts or 0) + len(added) > LIMIT:
        raise Invalid(f"a job has at most {LIMIT:,} parts; give the items of an `each` stage instead")
    if added:
        tx.run(_GROW, job=job, more=len(added))
    if len(added) < len(rows):
        _ask_again(tx, rows, added, kind, numbers)
    tx.ring(kind.queue_id)


def _with_limits(tx: Tx, kind: PartKind, parts: Sequence[tuple[Any, ...]]) -> list[tuple[str, str | None, int | None]]:
    if kind.limit_id is None:
        return [(part[0], part[1], None) for part in parts]
    keys = limits.keys_of(tx, kind.limit_id, (part[2] for part in parts))
    for number in keys.values():
        tx.poke(number)
    return [(key, args, keys[limit]) for key, args, limit in parts]


def _ask_again(
    tx: Tx, rows: Sequence[tuple[str, str | None, int | None]], added: set[str], kind: PartKind, numbers: dict[str, int]
) -> None:
    job, attempt = numbers["job"], numbers["attempt"]
    twice = next((key for key, times in Counter(row[0] for row in rows).items() if times > 1), None)
    if twice is not None:
        raise Invalid(_TWICE.format(twice))
    there = {row.key: row for row in tx.all(_THERE, job=job, f=[row[:1] for row in rows if row[0] not in added])}
    for row in there.values():
        if row.name not in kind.names:
            raise Invalid(
                f"the part {row.key!r} is one of {row.name!r} already; keys must be unique among all parts of a job"
            )
        if row.parent_attempt == attempt:
            raise Invalid(_TWICE.format(row.key))
    same = [(key,) for key, args, _ in rows if key in there and there[key].args == args]
    changed = [row for row in rows if row[0] in there and there[row[0]].args != row[1]]
    if same:
        tx.run(_AGAIN, job=job, attempt=attempt, f=same)
    if changed:
        if kind.limit_id is not None:
            tx.run(_MOVE, job=job, f=changed)
        tx.free(there[row[0]].id for row in changed)
        tx.run(_REDO, f=changed, **numbers)
        parents.uncount(tx, job, Counter(there[row[0]].state for row in changed))


_TWICE = "the part {!r} was asked for twice; keys must be unique among the parts of a job"


# ---- reading what became of them


def standing(tx: Tx, job: int, attempt: int, names: Sequence[str]) -> Standing:
    return Standing(*tx.tuples(_STANDING, job=job, attempt=attempt, f=[(name,) for name in names])[0])


def results(ledger: Ledger, job: int, attempt: int, names: Sequence[str], page: int = 1000) -> Iterator[tuple[str, Any]]:
    """(key, result) of the parts that completed, in the order of their keys, read in pages."""
    after = ""
    while True:
        with ledger.reading() as tx:
            which = {"job": job, "attempt": attempt, "f": [(name,) for name in names]}
            rows = tx.all(_RESULTS, after=after, most=page, **which)
        for key, result in rows:
            yield key, None if result is None else orjson.loads(result)
        if len(rows) < page:
            return
        after = rows[-1].key


def failures(tx: Tx, job: int, attempt: int, names: Sequence[str]) -> dict[str, str]:
    """Why, by key, of the parts that failed or were cancelled."""
    rows = tx.all(_FAILURES, job=job, attempt=attempt, f=[(name,) for name in names])
    return {row.key: row.error or row.error_class or State(row.state).word for row in rows}


# ---- when their job ends without them, or is tried again


def ending(tx: Tx) -> list[int]:
    """Jobs whose end waits for that of their parts."""
    return [row.id for row in tx.all(ENDING)]


def parents_in(tx: Tx, run: int) -> list[int]:
    """Jobs of a run with parts that have not ended."""
    return [row.id for row in tx.all(_OPEN_OF_RUN, run=run)]


def sweep(tx: Tx, job: int, most: int = 1000) -> bool:
    """Cancels the queued parts of a job that ends, or whose run does; True: there may be more."""
    row = tx.one(_PARENT, job=job)
    if row is None:
        return False
    flow.lock_runs(tx, [row.run_id])
    parents.lock(tx, [job])
    row = tx.one(_PARENT, job=job)
    reason = row.run_error or row.reason or "the run was stopped"
    if row.stop is not None:
        parents.cancel(tx, job, reason)
    elif row.ends_as is None:
        return False
    else:
        reason = f"job {job}, which it is a part of, has ended{': ' + row.error if row.error else ''}"
    changed = tx.tuples(_SWEEP, job=job, reason=reason, most=most)
    flow.over(tx, changed)
    return len(changed) == most


def retry_failed(tx: Tx, job: int) -> None:
    """The parts of a job that failed or were cancelled are queued again with it."""
    for state in (State.FAILED, State.CANCELLED):
        queued = tx.all(_RETRY, job=job, state=int(state))
        parents.uncount(tx, job, {state: len(queued)})
        for queue, limit in set(queued):
            tx.ring(queue)
            tx.poke(limit)


def raise_queued(tx: Tx, run: int, priority: int, most: int) -> int:
    """Moves queued parts of a run up to its priority; says how many."""
    return tx.run(_RAISE, run=run, priority=priority, most=most)


class PartOfEnded(Refused):
    """A part cannot be queued again by itself: what it is a part of has ended, and has to be retried."""

    def __init__(self, job: int, parent: int) -> None:
        super().__init__(
            f"job {job} is a part of job {parent}, which has ended; retry that one, and its failed parts with it"
        )
        self.parent = parent


def check_retry(tx: Tx, job: int, parent: int) -> None:
    """Refuses to retry a part of what has ended."""
    row = parents.lock(tx, [parent]).get(parent)
    if row is None or row.state in TERMINAL or row.ends_as is not None:
        raise PartOfEnded(job, parent)
