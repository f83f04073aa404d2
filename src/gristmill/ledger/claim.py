"""Taking jobs: the only way to `in_progress`, from `queued` or, for items just being written (`may_start`), at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from gristmill.ledger import limits
from gristmill.ledger.hold import hold
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.rollup import UNKNOWN
from gristmill.states import State, UniqueScope

BY_NAME = (0, 1)  # pools whose jobs may be told of by name: any worker of their queue can run them


_ANY, _FROM_FLOOR, _OF_RUN, _NAMED = "true", "priority = :priority AND ready > :floor", "run_id = :run", "id {in jobs}"
IN_LINE = (_ANY, _FROM_FLOOR, _OF_RUN)  # conditions of jobs that are not asked for by name


class Lane(NamedTuple):
    """A line of ready jobs: of all priorities in their order, or of one priority from a floor on.

    Entries up to the floor are known to be gone: PostgreSQL's index keeps them a while, and longer under a held snapshot.
    """

    queue_id: int
    pool: int
    priority: int | None = None
    floor: int = 0
    run: int | None = None  # only jobs of this run: it looks through all that are in line, so it is for small queues
    limit_id: int | None = None  # of the queue, as this worker knows it: without it, nothing of a limited queue is taken
    jobs: tuple[int, ...] = ()  # only these, of whom a message told; those that are gone, paused or taken are not had

    @property
    def which(self) -> str:
        """The condition that its jobs meet."""
        if self.jobs:
            return _NAMED
        return _OF_RUN if self.run is not None else _ANY if self.priority is None else _FROM_FLOOR

    @property
    def values(self) -> dict[str, Any]:
        """What that condition asks for."""
        line = {"queue": self.queue_id, "pool": self.pool}
        if self.jobs:
            return {**line, "jobs": self.jobs}
        if self.run is not None:
            return {**line, "run": self.run}
        return line if self.priority is None else {**line, "priority": self.priority, "floor": self.floor}


class Want(NamedTuple):
    """Up to `most` jobs from these lanes, in this order, for one place: where they run, and which has only so much room.

    `merged`: the lanes are one line, in which who came first is first, whichever lane it stands in.
    """

    place: int
    most: int
    lanes: tuple[Lane, ...]
    merged: bool = False


_NONE = Want(-1, 0, ())


class Head(NamedTuple):
    """Where a job stands: who is in front has the lower one."""

    priority: int
    ready: int
    id: int


class Origin(NamedTuple):
    """Where a job comes from; nowhere, if it is one on its own."""

    run_id: int | None
    stage_id: int | None
    part_of: int | None = None  # the job that it is a part of


class Kind(NamedTuple):
    """What many jobs have in common. One object for all of them, so that most questions are asked once per claim."""

    origin: Origin
    task_id: int
    alone: bool
    unique_scope: int | None
    limited: bool  # it has a limit, or its queue has: what ends lets others go on
    queue_id: int
    pool: int


class Claimed(NamedTuple):
    """A job in this worker's hands, payload undecoded."""

    id: int
    attempt: int
    key: str | None
    args: str | None
    kind: Kind
    waited: int  # microseconds since it was asked for; UNKNOWN: this is not its first attempt

    @property
    def run_id(self) -> int | None:
        return self.kind.origin.run_id

    @property
    def stage_id(self) -> int | None:
        return self.kind.origin.stage_id

    @property
    def part_of(self) -> int | None:
        return self.kind.origin.part_of

    @property
    def task_id(self) -> int:
        return self.kind.task_id


def claimed(rows: Iterable[tuple[Any, ...]]) -> list[Claimed]:
    """Claimed._make of each, without a Python call for each."""
    return list(map(tuple.__new__, repeat(Claimed), rows))


class Taken(NamedTuple):
    """What a claim got, the number to give back when all of it is done, and the lanes that had no more."""

    claim: int | None
    jobs: list[Claimed]
    kinds: set[Kind]
    empty: list[Lane]


TAKE = (
    f"UPDATE gm_job SET state = {State.IN_PROGRESS:d}, ready = NULL, attempt = attempt + 1, worker_id = :worker,"
    " started_at = {now}%s WHERE id "  # and what else is to be set
)
NEXT = (
    "SELECT %s FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND %s"
    " AND EXISTS (SELECT 1 FROM gm_queue WHERE id = :queue AND NOT paused AND (limit_id IS NULL OR limit_id = :limit))"
    " ORDER BY priority, ready LIMIT :most"
)
PART_OF = "CASE WHEN stage_id IS NULL THEN parent_id END"  # the job that a job is a part of; NULL: it is no part
_JOB = f"key, args, run_id, stage_id, {PART_OF}, task_id, alone, unique_scope, limit_id IS NOT NULL"
_WAITED = f"CASE WHEN attempt = %d THEN %s - created_at ELSE {UNKNOWN} END"
JOB = f"{_JOB}, {_WAITED % (1, 'started_at')}"
_IN_LINE = itemgetter(12, 0)  # priority, id


def _claiming(which: str) -> Sql:
    """PostgreSQL: takes the next jobs, skipping those that others have locked."""
    return Sql(f"{TAKE % ''} {{one_of {NEXT % ('id', which)} {{skip}}}} RETURNING id, attempt, {JOB}, priority")


_CLAIM = {which: _claiming(which) for which in (*IN_LINE, _NAMED)}
# SQLite, where a transaction that writes is alone: to look and then to take is a fifth cheaper than RETURNING.
_LOOK = {which: Sql(NEXT % (f"id, attempt + 1, {_JOB}, {_WAITED % (0, '{now}')}", which)) for which in _CLAIM}
_TAKE_THESE = Sql(TAKE % "" + "{in ids}")
_TAKE_FROM_TO = Sql(TAKE % "" + "BETWEEN :first AND :last")
_IN_FRONT = (
    "SELECT count(*) FROM (SELECT 1 FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND %s"
    " LIMIT :most) AS line"
)
_IN_FRONT_OF = {which: Sql(_IN_FRONT % which) for which in _CLAIM}
_HEAD = (
    "SELECT priority, ready, id FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND %s"
    " ORDER BY priority, ready LIMIT :most"
)
_HEAD_OF = {which: Sql(_HEAD % which) for which in _CLAIM}
_OPEN = Sql("SELECT NOT paused AND limit_id IS NULL FROM gm_queue WHERE id = :queue")
FREE_KEYS = Sql("UPDATE gm_job SET unique_key = NULL WHERE id {in ids}")
_REMEMBER = Sql("INSERT INTO gm_claim (worker_id, jobs) VALUES (:worker, :jobs) RETURNING id")
_WHERE_READY = Sql(
    "SELECT id, queue_id, pool FROM gm_job WHERE id {in ids} AND ready IS NOT NULL AND pool IN (0, 1) ORDER BY id"
)
_FLOOR = Sql(
    "SELECT ready FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool = :pool AND priority = :priority"
    " AND ready > :floor ORDER BY ready LIMIT 1"
)


def claim(tx: Tx, worker: int, wants: Sequence[Want], room: Mapping[int, int]) -> Taken:
    """Takes ready jobs, want by want, but no more for a place than it has room for in all."""
    hold(tx, worker, leased=True)
    return take(tx, worker, wants, room)


def take(tx: Tx, worker: int, wants: Sequence[Want], room: Mapping[int, int], started: Sequence[Claimed] = ()) -> Taken:
    """The same for a caller that has locked the worker's row, and has perhaps `started` some new jobs."""
    left = dict(room)
    jobs: list[Claimed] = []
    kinds: set[Kind] = {started[0].kind} if started else set()
    # New jobs that start at once are all of one line, and from the first want of their place.
    had = {_first(wants, started[0].kind.queue_id, started[0].kind.pool).place: len(started)} if started else {}
    empty: list[Lane] = []
    allowed = _admitted(tx, wants)
    for want in wants:
        got = had.pop(want.place, 0)
        left[want.place] -= got
        most = min(want.most - got, left[want.place])
        for lane, share in _shares(tx, want, most):
            if most <= 0:
                break
            asked = min(share, most)
            if lane in empty:
                continue
            some = asked if lane.limit_id is None else min(asked, allowed[lane.limit_id])
            rows = _next(tx, worker, lane, some) if some else []
            if lane.limit_id is not None and rows:
                allowed[lane.limit_id] -= len(rows)
                limits.admitted(tx, lane.limit_id, [row[0] for row in rows])
            if len(rows) < asked:
                empty.append(lane)
            most -= len(rows)
            left[want.place] -= len(rows)
            jobs += sorted_out(rows, lane, kinds)
    jobs += started
    if not jobs:
        return Taken(None, jobs, kinds, empty)
    if any(kind.unique_scope == UniqueScope.QUEUED for kind in kinds):
        tx.run(FREE_KEYS, ids=[job.id for job in jobs if job.kind.unique_scope == UniqueScope.QUEUED])
    number: int = tx.value(_REMEMBER, worker=worker, jobs=orjson.dumps(list(map(itemgetter(0), jobs))).decode())
    return Taken(number, jobs, kinds, empty)


def _shares(tx: Tx, want: Want, most: int) -> list[tuple[Lane, int]]:
    """How many of `most` jobs come from each lane; from those of one line, as many as stand in front in each.

    Others may take some of these first. Then those behind them are had, and at last what any lane still has.
    """
    whole = [(lane, most) for lane in want.lanes]
    if not want.merged or len(whole) < 2 or most <= 0:
        return whole
    line = sorted((*head, lane) for lane in want.lanes for head in find_heads(tx, lane, most))[:most]
    return [*Counter(lane for *_, lane in line).items(), *whole]


def _admitted(tx: Tx, wants: Sequence[Want]) -> dict[int, int]:
    """How many jobs the limits of these queues let start; all are locked at once, so that nobody waits for another."""
    found = {lane.limit_id for want in wants for lane in want.lanes if lane.limit_id is not None}
    return dict.fromkeys(found, 0) | limits.admit(tx, found) if found else {}


def may_start(tx: Tx, wants: Sequence[Want], room: Mapping[int, int], queue: int, pool: int) -> int:
    """How many new jobs of a queue may start without standing in line: if it is next, and all in front will start too."""
    first = _first(wants, queue, pool)
    if first is _NONE or not tx.value(_OPEN, queue=queue):
        return 0
    most = min(first.most, room[first.place])
    for lane in first.lanes:
        most -= tx.value(_IN_FRONT_OF[lane.which], most=most, **lane.values)
    return most


def _first(wants: Sequence[Want], queue: int, pool: int) -> Want:
    """The first want of the place that such jobs run at, if they come first there."""
    firsts: dict[int, Want] = {}
    for want in wants:
        firsts.setdefault(want.place, want)
    own = [want for want in firsts.values() if not want.merged]  # new ones are behind all others of a line
    return next((want for want in own if want.lanes[0][:2] == (queue, pool) and not want.lanes[0].jobs), _NONE)


def _next(tx: Tx, worker: int, lane: Lane, most: int) -> list[tuple[Any, ...]]:
    """Takes the next jobs of a lane: their rows, in line."""
    if tx.dialect == "sqlite":
        rows = tx.tuples(_LOOK[lane.which], most=most, limit=lane.limit_id, **lane.values)
        if rows:
            _take(tx, worker, [row[0] for row in rows])
        return rows
    return sorted(
        tx.tuples(_CLAIM[lane.which], worker=worker, most=most, limit=lane.limit_id, **lane.values), key=_IN_LINE
    )  # UPDATE returns them in no order


def _take(tx: Tx, worker: int, ids: Sequence[int]) -> None:
    """Takes these jobs, which nobody else can since they were looked at. Side by side, as they nearly always are, a fifth
    cheaper than by a list."""
    first, last = min(ids), max(ids)
    if last - first == len(ids) - 1:
        tx.run(_TAKE_FROM_TO, worker=worker, first=first, last=last)
    else:
        tx.run(_TAKE_THESE, worker=worker, ids=ids)


def sorted_out(rows: Sequence[tuple[Any, ...]], lane: Lane, kinds: set[Kind]) -> list[Claimed]:
    """Rows as jobs; adds their kinds to `kinds`."""
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    shared = list(zip(*columns[4:11], strict=True))
    alike = shared.count(shared[0]) == len(shared)  # as nearly always
    of_queue = lane.limit_id is not None
    known = {
        (run, stage, parent, task, alone, unique, limited): Kind(
            Origin(run, stage, parent), task, alone, unique, bool(limited) or of_queue, lane.queue_id, lane.pool
        )
        for run, stage, parent, task, alone, unique, limited in (shared[:1] if alike else set(shared))
    }
    kinds.update(known.values())
    of = repeat(known[shared[0]], len(rows)) if alike else map(known.__getitem__, shared)
    return claimed(zip(*columns[:4], of, columns[11], strict=True))


def lanes_of(tx: Tx, jobs: Sequence[int]) -> list[Lane]:
    """Where these jobs are ready, so that they can be claimed by name; those that are not are left out."""
    found: dict[tuple[int, int], list[int]] = {}
    for job, queue, pool in tx.tuples(_WHERE_READY, ids=jobs):
        found.setdefault((queue, pool), []).append(job)
    return [Lane(queue, pool, jobs=tuple(ids)) for (queue, pool), ids in sorted(found.items())]


def find_floor(tx: Tx, lane: Lane) -> int:
    """Just below the first entry of a lane that is still there, looking from its old floor on."""
    first = tx.value(_FLOOR, **lane.values)
    return lane.floor if first is None else int(first) - 1


def find_heads(tx: Tx, lane: Lane, most: int) -> list[Head]:
    """The first jobs of a lane."""
    return [Head(*row) for row in tx.tuples(_HEAD_OF[lane.which], most=most, **lane.values)]


def find_head(tx: Tx, lane: Lane) -> Head | None:
    """The first one; None: it has none."""
    return next(iter(find_heads(tx, lane, 1)), None)
