"""Limits by permits: of a key only so many jobs are in the line or in progress as it may have; the others wait outside.

Only `promote` puts a job that has a limit into the line, under the lock of its key, and gives it a permit. A permit whose
job is in the line no more, nor in progress, counts no more, however that came about: whoever looks next removes it. So the
ways on which jobs end need not think of limits. They only say that something may go on (`Tx.freed`, `Tx.poked`), and the
transaction does that last of all; what nobody said is found by housekeeping. Limits are locked by id, after everything
else; who has them never waits for a job.

Limits of whole queues need no line outside: a claim takes no more than they allow (`admit`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.errors import Refused
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import DELAYED, Tx
from gristmill.limit import OF_QUEUES, Breaker, Bucket, Numbers, room
from gristmill.states import State

# Numbers of a key, of its limit, and what of that an application has declared. Each queue is a limit of its own.
NUMBERS = "k.id, k.name, k.key, r.declared, r.chosen, CASE WHEN k.key <> '' THEN k.chosen END AS own"
WITH_RULE = (
    f"gm_limit k JOIN gm_limit r ON r.name = k.name AND r.key = CASE WHEN k.name = '{OF_QUEUES}' THEN k.key ELSE '' END"
)
_KEYS = (
    f"SELECT {NUMBERS}, k.tokens, k.stamped, k.failures, k.open_until, k.due_at, k.more, {{now}} AS at FROM {WITH_RULE}"
    " WHERE k.id {in ids} ORDER BY k.id"
)
_LOOK, _LOCK, _LOCK_FREE = Sql(_KEYS), Sql(_KEYS + " {lock_k}"), Sql(_KEYS + " {skip_k}")
_HOLDS = f"p.limit_id IN (j.limit_id, q.limit_id) AND (j.ready IS NOT NULL OR j.state = {State.IN_PROGRESS:d})"
_ITS_JOB = "gm_permit p LEFT JOIN gm_job j ON j.id = p.job_id LEFT JOIN gm_queue q ON q.id = j.queue_id"
_COUNTS = Sql(
    f"SELECT p.limit_id, count(CASE WHEN {_HOLDS} THEN j.worker_id END) AS running,"
    f" count(CASE WHEN {_HOLDS} AND NOT q.paused THEN j.ready END) AS line,"
    f" count(CASE WHEN {_HOLDS} AND q.paused THEN j.ready END) AS shut, count(*) AS held"
    f" FROM {_ITS_JOB} WHERE p.limit_id {{in ids}} GROUP BY p.limit_id"
)
_PERMITS = Sql(
    f"SELECT p.limit_id, p.job_id, p.in_line, CASE WHEN {_HOLDS} THEN {{false}} ELSE {{true}} END, j.state,"
    f" CASE WHEN {_HOLDS} THEN j.ready END, j.started_at, q.paused"
    f" FROM {_ITS_JOB} WHERE p.limit_id {{in ids}}"
)
_REMOVE_OVER = Sql(
    "DELETE FROM gm_permit WHERE limit_id {in ids} AND NOT EXISTS"
    " (SELECT 1 FROM gm_job j JOIN gm_queue q ON q.id = j.queue_id"
    f" WHERE j.id = gm_permit.job_id AND {_HOLDS.replace('p.limit_id', 'gm_permit.limit_id')})"
)
_FREED = Sql(
    "SELECT p.limit_id, p.job_id, l.name, q.id AS queue FROM gm_permit p JOIN gm_limit l ON l.id = p.limit_id"
    " LEFT JOIN gm_queue q ON q.limit_id = p.limit_id WHERE p.job_id {in ids}"
)
_WITH_MORE = Sql(
    "SELECT DISTINCT p.limit_id FROM gm_permit p JOIN gm_limit l ON l.id = p.limit_id WHERE p.job_id {in ids} AND l.more"
)
_PAUSED = Sql("SELECT id FROM gm_queue WHERE paused")
_FIRST = (
    "SELECT id FROM gm_job WHERE limit_id = %s AND run_at = {waiting} AND NOT queue_id {in paused} ORDER BY priority, id"
)
_NEXT_OF_MANY = Sql(  # PostgreSQL
    f"SELECT j.id FROM {{rows f: lim int, most int}} CROSS JOIN LATERAL ({_FIRST % 'f.lim'} LIMIT f.most {{skip}}) AS j"
)
_NEXT_OF_ALIKE = Sql(  # SQLite: how many may not come from a row
    f"SELECT id FROM gm_job WHERE id IN (SELECT j.id FROM json_each(:ids) f JOIN gm_job j ON j.id IN ({_FIRST % 'f.value'}"
    " LIMIT :most))"
)
_INTO_LINE = Sql("UPDATE gm_job SET ready = {next}, run_at = NULL WHERE id {in ids} RETURNING id, limit_id, queue_id")
STEP_BACK = Sql(
    "UPDATE gm_job SET ready = NULL, run_at = {waiting} WHERE id {one_of SELECT id FROM gm_job WHERE id {in ids}"
    " AND ready IS NOT NULL {skip}} RETURNING id"
)
_GIVE = Sql(
    "INSERT INTO gm_permit (limit_id, job_id, in_line) SELECT f.lim, f.job, f.line"
    " FROM {rows f: lim int, job bigint, line boolean} WHERE true ON CONFLICT DO NOTHING"
)
_TAKE_BACK = Sql(
    "DELETE FROM gm_permit WHERE (limit_id, job_id) IN (SELECT f.lim, f.job FROM {rows f: lim int, job bigint})"
)
_BEGUN = Sql(
    "UPDATE gm_permit SET in_line = {false} FROM {rows f: lim int, job bigint}"
    " WHERE gm_permit.limit_id = f.lim AND gm_permit.job_id = f.job"
)
_REMEMBER = Sql(
    "UPDATE gm_limit SET tokens = f.tokens, stamped = f.at, failures = f.failures, open_until = f.until, due_at = f.due,"
    " more = f.more FROM {rows f: id int, tokens float8, at bigint, failures int, until bigint, due bigint, more boolean}"
    " WHERE gm_limit.id = f.id"
)
# From key to key, not from job to job: there may be 100,000 of one.
_WAITING_KEYS = Sql(
    "WITH RECURSIVE k(id) AS (SELECT (SELECT limit_id FROM gm_job {by_limit} WHERE run_at = {waiting}"
    " AND limit_id > :after ORDER BY limit_id LIMIT 1) UNION ALL"
    " SELECT (SELECT limit_id FROM gm_job {by_limit} WHERE run_at = {waiting} AND limit_id > k.id"
    " ORDER BY limit_id LIMIT 1) FROM k WHERE k.id IS NOT NULL)"
    " SELECT id FROM k WHERE id IS NOT NULL LIMIT :most"
)
MAY_GO_ON = Sql(  # something is due, or a job waits: an index answers that, however old PostgreSQL's statistics are
    "SELECT 1 FROM gm_limit WHERE due_at IS NOT NULL UNION ALL"
    " SELECT 1 WHERE (SELECT max(run_at) FROM gm_job WHERE run_at IS NOT NULL) = {waiting}"
)
_DUE = Sql("SELECT id, due_at - {now} AS due FROM gm_limit WHERE due_at IS NOT NULL ORDER BY due_at LIMIT :most")


class _Permit(NamedTuple):
    limit: int
    job: int
    was_in_line: bool
    over: bool  # it counts no more
    state: int | None  # None: the job is gone
    ready: int | None  # its place in the line, if this counts
    started_at: int | None
    paused: bool | None


class _Key:
    """A key as its row and its permits say."""

    def __init__(self, row: Any, counts: Sequence[int], ends: Mapping[int, bool]) -> None:
        self.row = row
        self.id: int = row.id
        self.running, self.line, self.shut, self.held = counts
        self.ends = ends  # jobs that ended just now: well or not
        self.numbers = Numbers.of(row.declared, row.chosen, row.own)
        self.permits: Sequence[_Permit] = ()  # only where they matter one by one

    def decide(self) -> None:
        numbers, row = self.numbers, self.row
        self.breaker = Breaker(row.failures, row.open_until)
        if numbers.breaker is not None or row.open_until is not None:
            self.breaker = self.breaker.after(numbers, row.at, [*self._ended_elsewhere(), *self.ends.values()])
        self.bucket = Bucket(row.tokens, row.stamped)
        if numbers.per_second is not None:
            self.bucket = self._filled(numbers.per_second)
        self.room = room(numbers, self.breaker, self.bucket, row.at, self.running, self.line, self.over)

    @property
    def one_by_one(self) -> bool:
        """Do its permits matter one by one?"""
        shaky = self.numbers.breaker is not None and (self.row.failures > 0 or self.row.open_until is not None)
        return shaky or self.numbers.per_second is not None

    def _ended_elsewhere(self) -> list[bool]:
        """Jobs that ended well in their application's own transaction, which could not tell."""
        return [True for p in self.permits if p.over and p.state in _WELL and p.job not in self.ends]

    def _filled(self, rate: float) -> Bucket:
        left = [p for p in self.permits if p.was_in_line and p.ready is None]
        begun = [self.row.at if p.started_at is None else p.started_at for p in left if self._has_begun(p)]
        return self.bucket.after(rate, self.row.at, begun, self.line, len(left) - len(begun) + self.shut)

    def _has_begun(self, permit: _Permit) -> bool:
        """Since it stood in line; what was cancelled there has not."""
        return permit.state is None or (permit.started_at is not None and permit.started_at >= self.row.stamped)

    @property
    def over(self) -> int:
        """How many permits count no more."""
        return self.held - self.running - self.line - self.shut

    def went_on(self, number: int) -> tuple[Any, ...] | None:
        """Its row after so many of those that it had room for; None: as it was."""
        row, free = self.row, self.room.free
        all_of_them = number >= free
        due = self.room.due_at if all_of_them else None
        more = self.room.more and all_of_them
        plain = self.numbers.per_second is None and self.numbers.breaker is None and row.open_until is None
        if plain and due == row.due_at and more == bool(row.more):
            return None
        tokens = self.bucket.tokens - (number if self.numbers.per_second is not None else 0)
        return (self.id, tokens, self.bucket.at, *self.breaker, due, more)


_NONE = (0, 0, 0, 0)
_WELL = (State.COMPLETED, State.COMPLETED_WITH_ERRORS)

Ends = Mapping[int, Mapping[int, bool]]  # by key: jobs that ended just now, well or not


def _read(tx: Tx, sql: Sql, ids: Collection[int], ends: Ends) -> dict[int, _Key]:
    rows = tx.all(sql, ids=sorted(ids))
    if not rows:
        return {}
    counts = {limit: given for limit, *given in tx.tuples(_COUNTS, ids=[row.id for row in rows])}
    keys = {row.id: _Key(row, counts.get(row.id, _NONE), ends.get(row.id, {})) for row in rows}
    for limit, permits in _one_by_one(tx, [key.id for key in keys.values() if key.one_by_one]).items():
        keys[limit].permits = permits
    for key in keys.values():
        key.decide()
    return keys


def _one_by_one(tx: Tx, ids: Sequence[int]) -> dict[int, list[_Permit]]:
    found: dict[int, list[_Permit]] = {}
    for permit in map(_Permit._make, tx.tuples(_PERMITS, ids=ids)) if ids else ():
        found.setdefault(permit.limit, []).append(permit)
    return found


# ---- what goes on


def settle(tx: Tx) -> None:
    """Lets jobs go on whose limits have room again, or who are new: the last thing in a transaction that said so."""
    if tx.poked or tx.freed:
        ends: dict[int, dict[int, bool]] = {}
        freed = tx.all(_FREED, ids=sorted(tx.freed)) if tx.freed else ()
        for row in freed:
            if row.name == OF_QUEUES:
                if row.queue is not None:
                    tx.ring(row.queue)
                continue
            tx.poked.add(row.limit_id)
            if (well := tx.freed[row.job_id]) is not None:
                ends.setdefault(row.limit_id, {})[row.job_id] = well
        poked = set(tx.poked)
        tx.freed.clear()
        tx.poked.clear()
        promote(tx, poked, ends)


def tell(tx: Tx) -> None:
    """The same in a caller's transaction, which may take long: nothing is locked, but workers are told to look.
    What ended well is found by its permit."""
    if tx.poked or (tx.freed and tx.all(_FREED, ids=sorted(tx.freed))):
        tx.ring(DELAYED)


def follow(tx: Tx, jobs: Iterable[int]) -> None:
    """Of the keys of jobs that were just taken from the line, the next come into it."""
    ids = sorted(jobs)
    if ids and (keys := [row.limit_id for row in tx.all(_WITH_MORE, ids=ids)]):
        promote(tx, keys, wait=False)  # who holds them does the same, or will


def promote(tx: Tx, ids: Collection[int], ends: Ends | None = None, *, wait: bool = True) -> int:
    """Puts as many jobs of these keys into the line as may be there; says how many."""
    keys = _read(tx, _LOCK if wait else _LOCK_FREE, ids, ends or {}) if ids else {}
    if not keys:
        return 0
    _step_back(tx, keys)
    _remove_over(tx, keys)
    begun = [p[:2] for key in keys.values() for p in key.permits if p.was_in_line and p.state == State.IN_PROGRESS]
    if begun:
        tx.run(_BEGUN, f=begun)
    went_on = dict.fromkeys(keys, 0)
    chosen = _next(tx, {key.id: key.room.free for key in keys.values() if key.room.free > 0})
    moved = tx.tuples(_INTO_LINE, ids=chosen) if chosen else []
    for _, limit, queue in moved:
        went_on[limit] += 1
        tx.ring(queue)
    if moved:
        tx.run(_GIVE, f=[(limit, job, True) for job, limit, _ in moved])
    changed = [row for key in keys.values() if (row := key.went_on(went_on[key.id])) is not None]
    if changed:
        tx.run(_REMEMBER, f=changed)
    for key in keys.values():
        if key.room.due_at is not None:
            tx.due_in(key.room.due_at - key.row.at)
    return len(moved)


def _step_back(tx: Tx, keys: Mapping[int, _Key]) -> None:
    """Jobs in line leave it again where a limit was lowered, a circuit has opened, or their queue is paused."""
    chosen: list[_Permit] = []
    for limit, permits in _one_by_one(tx, [key.id for key in keys.values() if key.shut or key.room.free < 0]).items():
        line = [permit for permit in permits if permit.ready is not None and not permit.paused]
        chosen += [permit for permit in permits if permit.ready is not None and permit.paused]
        chosen += line[keys[limit].room.free :] if keys[limit].room.free < 0 else []
    back = {job for (job,) in tx.tuples(STEP_BACK, ids=[permit.job for permit in chosen])} if chosen else set()
    if back:
        tx.run(_TAKE_BACK, f=[permit[:2] for permit in chosen if permit.job in back])


def _remove_over(tx: Tx, keys: Mapping[int, _Key]) -> None:
    """Of keys that were read one by one, only what was seen: another job's end has not been counted yet."""
    if seen := [p[:2] for key in keys.values() for p in key.permits if p.over]:
        tx.run(_TAKE_BACK, f=seen)
    if over := [key.id for key in keys.values() if key.over and not key.one_by_one]:
        tx.run(_REMOVE_OVER, ids=over)


def _next(tx: Tx, free: Mapping[int, int]) -> list[int]:
    """The first jobs that wait, so many of each key."""
    if not free:
        return []
    paused = [number for (number,) in tx.tuples(_PAUSED)]
    if tx.dialect == "postgresql":
        return [job for (job,) in tx.tuples(_NEXT_OF_MANY, f=sorted(free.items()), paused=paused)]
    alike: dict[int, list[int]] = {}
    for limit, most in sorted(free.items()):
        alike.setdefault(most, []).append(limit)
    found = [tx.tuples(_NEXT_OF_ALIKE, ids=_list(limits), most=most, paused=paused) for most, limits in alike.items()]
    return sorted(job for rows in found for (job,) in rows)


def _list(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


# ---- what nobody said, and what is due


def waiting_keys(tx: Tx, after: int = 0, most: int = 1000) -> list[int]:
    """Keys of which jobs wait, a page of them by number."""
    with tx.in_order():
        return [row.id for row in tx.all(_WAITING_KEYS, after=after, most=most)]


def to_promote(tx: Tx, after: int = 0, most: int = 1000) -> tuple[list[int], int]:
    """Keys of the next page of which a job waits though it need not, and where to go on (0: it was the last). Only looks."""
    ids = waiting_keys(tx, after, most)
    found = _read(tx, _LOOK, ids, {}) if ids else {}
    return [key.id for key in found.values() if key.room.free or key.shut], ids[-1] if len(ids) == most else 0


def due(tx: Tx, most: int = 1000) -> tuple[list[int], int | None]:
    """Keys of which something is due, and microseconds until the next is; None: none will be by itself."""
    rows = tx.all(_DUE, most=most)
    now = [row.id for row in rows if row.due <= 0]
    return now, next((row.due for row in rows if row.due > 0), 0 if now else None)


# ---- a worker for one run only

_OF_RUN = (  # those of a paused queue would only keep others out of the line
    "stage_id IN (SELECT id FROM gm_stage WHERE run_id = :run) AND NOT queue_id IN (SELECT id FROM gm_queue WHERE paused)"
)
_KEYS_OF_RUN = Sql(f"SELECT DISTINCT limit_id FROM gm_job WHERE run_at = {{waiting}} AND {_OF_RUN}")
_OTHERS = Sql(
    "SELECT p.limit_id, p.job_id FROM gm_permit p JOIN gm_job j ON j.id = p.job_id WHERE p.limit_id {in ids}"
    " AND j.ready IS NOT NULL AND coalesce(j.run_id, 0) <> :run"
)
_FIRST_OF_RUN = Sql(
    f"SELECT id FROM gm_job WHERE limit_id = :lim AND run_at = {{waiting}} AND {_OF_RUN} ORDER BY priority, id LIMIT :most"
    " {skip}"
)


def waits(tx: Tx, run: int) -> bool:
    """Does a job of this run wait for nothing but a limit?"""
    return tx.one(_KEYS_OF_RUN, run=run) is not None


def prefer(tx: Tx, run: int) -> None:
    """Lets jobs of a run go before others in the line of their keys: whoever works for it alone does not take the others."""
    ids = [row.limit_id for row in tx.all(_KEYS_OF_RUN, run=run)]
    keys = _read(tx, _LOCK, ids, {}) if ids else {}
    others: dict[int, list[int]] = {}
    for limit, job in tx.tuples(_OTHERS, ids=list(keys), run=run) if keys else ():
        others.setdefault(limit, []).append(job)
    for limit, jobs in others.items():
        chosen = [job for (job,) in tx.tuples(_FIRST_OF_RUN, lim=limit, run=run, most=len(jobs))]
        back = [job for (job,) in tx.tuples(STEP_BACK, ids=jobs[: len(chosen)])]
        went_on = tx.tuples(_INTO_LINE, ids=chosen[: len(back)]) if back else []
        if back:
            tx.run(_TAKE_BACK, f=[(limit, job) for job in back])
            tx.run(_GIVE, f=[(limit, job, True) for job, _, _ in went_on])


# ---- queues


def admit(tx: Tx, limits: Collection[int]) -> dict[int, int]:
    """Locks the limits of queues; says how many more jobs each lets start."""
    most: dict[int, int] = {}
    keys = _read(tx, _LOCK, limits, {})
    _remove_over(tx, keys)
    for key in keys.values():
        numbers, now = key.numbers, key.row.at
        free = _ANY if numbers.at_once is None else max(0, numbers.at_once - key.running)
        if numbers.per_second is not None:
            bucket = Bucket(key.row.tokens, key.row.stamped).after(numbers.per_second, now, (), 0)
            if free and bucket.tokens < free:
                free = max(0, int(bucket.tokens + 1e-9))
                tx.due_in(bucket._replace(tokens=bucket.tokens - free).next_at(numbers.per_second) - now)
            tx.buckets[key.id] = bucket
        most[key.id] = free
    return most


_ANY = 1 << 30


def admitted(tx: Tx, limit: int, jobs: Sequence[int]) -> None:
    """These of a queue have started."""
    if jobs:
        tx.run(_GIVE, f=[(limit, job, False) for job in jobs])
    if jobs and (bucket := tx.buckets.get(limit)) is not None:
        tx.buckets[limit] = bucket._replace(tokens=bucket.tokens - len(jobs))
        tx.run(_SPEND, id=limit, tokens=tx.buckets[limit].tokens, at=bucket.at)


_SPEND = Sql("UPDATE gm_limit SET tokens = :tokens, stamped = :at WHERE id = :id")


# ---- keys by name

_FIND = Sql(
    "SELECT k.id, k.key FROM gm_limit r JOIN {rows f: key text} ON true JOIN gm_limit k ON k.name = r.name AND k.key = f.key"
    " WHERE r.id = :rule"
)
_ADD = Sql(
    "INSERT INTO gm_limit (name, key) SELECT r.name, f.key FROM gm_limit r JOIN {rows f: key text} ON true"
    " WHERE r.id = :rule ON CONFLICT DO NOTHING"
)
_DECLARE = Sql(
    "INSERT INTO gm_limit (name, key, declared) SELECT f.name, '', f.declared FROM {rows f: name text, declared text}"
    " WHERE true ON CONFLICT (name, key) DO UPDATE SET declared = excluded.declared"
    " WHERE gm_limit.declared IS NULL OR gm_limit.declared <> excluded.declared"
)
_DECLARED = Sql("SELECT id FROM gm_limit WHERE name = :name AND key = ''")
_SAID = Sql("SELECT id FROM gm_limit WHERE name = :name AND key = '' AND declared = :declared")


def declare(tx: Tx, name: str, numbers: str) -> int:
    """The number of a limit, with what an application says about it."""
    known: int | None = tx.value(_SAID, name=name, declared=numbers)
    if known is None:
        tx.run(_DECLARE, f=[(name, numbers)])
        known = tx.value(_DECLARED, name=name)
    assert known is not None
    return known


def keys_of(tx: Tx, rule: int, keys: Iterable[str]) -> dict[str, int]:
    """The numbers of keys of a limit, made where they are not there. Refused, if the ledger has no such limit."""
    wanted = sorted(set(keys))
    found = {row.key: row.id for row in tx.all(_FIND, rule=rule, f=[(key,) for key in wanted])} if wanted else {}
    if missing := [key for key in wanted if key not in found]:
        tx.run(_ADD, rule=rule, f=[(key,) for key in missing])
        found |= {row.key: row.id for row in tx.all(_FIND, rule=rule, f=[(key,) for key in missing])}
    if len(found) < len(wanted):
        raise Refused(f"there is no limit number {rule} in this ledger, {_RESTORED}")
    return found


_RESTORED = "which was restored from a backup of another: restart the applications that ask for work, and ask again"
