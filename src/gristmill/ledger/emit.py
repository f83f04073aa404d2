"""Streaming fan-out: a running job gives items to the `each` stages after its own, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy.exc import IntegrityError

from gristmill.errors import Refused
from gristmill.ledger import drawing, flow, limits
from gristmill.ledger.chores import NOT_EMITTED
from gristmill.ledger.claim import Claimed, Kind, Origin, claimed
from gristmill.ledger.hold import hold
from gristmill.ledger.sql import WAITING, Sql
from gristmill.ledger.store import Tx
from gristmill.states import StageState, State


class Item(NamedTuple):
    """One item: its key (empty: its producer's), its arguments as JSON, the stage it is for (None: all of them), and where
    stages have limits, its key of these by stage."""

    key: str
    args: str | None
    stage: str | None = None
    limits: Mapping[str, str] | None = None


class Refusal(NamedTuple):
    """Why a producer must stop."""

    reason: str
    stopped: bool = False  # its run is being stopped: it did nothing wrong


class Emission(NamedTuple):
    """A batch of items from one attempt of one job; batches of an attempt are numbered, from 1."""

    job: int
    attempt: int
    run: int
    number: int
    items: Sequence[Item]  # or lists of the same, as they came over the wire


_PRODUCERS = Sql(
    "SELECT j.id, j.attempt, j.stage_id, j.key, j.emitted, j.epoch, s.name AS stage"
    " FROM gm_job j JOIN gm_stage s ON s.id = j.stage_id"
    f" WHERE j.id {{in ids}} AND j.state = {State.IN_PROGRESS:d} AND j.worker_id = :worker"
)
_TARGETS = Sql(
    "SELECT e.upstream_id, s.id, s.name, s.task_id, s.queue_id, s.pool, s.limit_id FROM gm_edge e"
    " JOIN gm_stage s ON s.id = e.downstream_id WHERE e.upstream_id {in ids} AND s.each"
    f" AND s.state <> {StageState.CLOSED:d} ORDER BY s.id"  # closed: it is not run here, but stands for an earlier run
)
_ADD = (
    "INSERT INTO gm_job (run_id, stage_id, parent_id, parent_attempt, task_id, queue_id, pool, priority, key, args, state,"
    f" ready, run_at, limit_id, created_at) SELECT %s, {State.QUEUED:d}, CASE WHEN f.lim IS NULL THEN {{next}} END,"
    " CASE WHEN f.lim IS NOT NULL THEN {waiting} END, f.lim, {now} FROM {rows f: path text, args text, lim int%s} WHERE true"
    " ON CONFLICT (stage_id, key) WHERE stage_id IS NOT NULL DO NOTHING RETURNING key, stage_id"
)
_ADD_ANY = Sql(  # items of many producers, each row with all that it needs
    _ADD
    % (
        "f.run, f.stage, f.parent, f.number, f.task, f.queue, f.pool, f.urgency, f.path, f.args",
        ", run bigint, stage bigint, parent bigint, number int, task int, queue int, pool smallint, urgency smallint",
    )
)
_ADD_ALIKE = Sql(  # many items of one producer for one stage
    _ADD
    % (
        ":run, CAST(:stage AS bigint), CAST(:parent AS bigint), :number, :task, :queue, :pool, :urgency, f.path, f.args",
        "",
    )
)
_THERE = Sql(
    "SELECT j.id, j.stage_id, j.key, j.parent_id, j.parent_attempt, j.args, j.state, j.error_class, j.epoch,"
    " coalesce(j.parts_left, 0) AS parts_left, d.run_id AS done_in FROM gm_job j"
    " JOIN {rows f: stage bigint, path text} ON j.stage_id = f.stage AND j.key = f.path"
    " JOIN gm_stage g ON g.id = j.stage_id JOIN gm_run r ON r.id = j.run_id"
    " LEFT JOIN gm_done d ON d.subject_id = r.subject_id AND d.stage = g.name AND d.key = j.key"
)
_EMITTED = Sql("UPDATE gm_job SET emitted = f.position FROM {rows f: job bigint, position bigint} WHERE gm_job.id = f.job")
_AGAIN = Sql(
    "UPDATE gm_job SET parent_attempt = f.number FROM {rows f: stage bigint, path text, number int}"
    " WHERE gm_job.stage_id = f.stage AND gm_job.key = f.path"
)
_MOVE = Sql("UPDATE gm_job SET limit_id = f.lim FROM {rows f: job bigint, lim int} WHERE gm_job.id = f.job")
_GROW = Sql(
    "UPDATE gm_stage SET total = total + f.more FROM {rows f: stage bigint, more bigint} WHERE gm_stage.id = f.stage"
)


def emit(tx: Tx, worker: int, emissions: Sequence[Emission]) -> dict[int, Refusal]:
    """Adds items and counts them, in one transaction. Says which producers must stop, and why.

    The same path twice from one attempt is an error; from a retry of the producer it is a no-op.
    """
    hold(tx, worker)
    return add_items(tx, worker, emissions, flow.lock_runs(tx, [e.run for e in emissions])).refused


PATH_LIMIT = 2500  # bytes: paths are indexed, and PostgreSQL's index rows end at 2,704


class SomeTwice(Exception):
    """Items that should have been new were there already. The caller asks again, carefully, to learn which."""


class Added(NamedTuple):
    """What came of items: producers that must stop, and why; jobs that started at once."""

    refused: dict[int, Refusal]
    started: list[Claimed]


MayStart = Callable[[int, int], int]  # (queue, pool): how many new jobs of it need not stand in line


def add_items(
    tx: Tx,
    worker: int,
    emissions: Sequence[Emission],
    runs: flow.LockedRuns,
    *,
    careful: bool = True,
    may_start: MayStart = lambda queue, pool: 0,
) -> Added:
    """The same for a caller that has locked the worker's row and the runs. Not `careful`: may raise SomeTwice."""
    producers = {row.id: row for row in tx.all(_PRODUCERS, worker=worker, ids=[e.job for e in emissions])}
    targets: dict[int, list[Any]] = {}
    for row in tx.all(_TARGETS, ids=sorted({p.stage_id for p in producers.values()})) if producers else ():
        targets.setdefault(row.upstream_id, []).append(row)
    refused: dict[int, Refusal] = {}
    news: dict[tuple[int, int], _News] = {}  # by producer and stage
    last: dict[int, int] = {}
    for emission in emissions:
        producer = producers.get(emission.job)
        if producer is None or producer.attempt != emission.attempt:
            refused[emission.job] = Refusal("not yours any more")
        elif runs[emission.run].stop is not None:
            refused[emission.job] = Refusal("the run is being stopped", stopped=True)
        elif _position(emission) > producer.emitted:  # else it is here already: its commit got no answer
            last[emission.job] = max(last.get(emission.job, 0), _position(emission))
            items = _with_paths(emission.items, producer)
            if _any_too_long([item[0] for item in items]):
                refused[emission.job] = Refusal(f"an item's path is over {PATH_LIMIT} bytes; use shorter keys")
                continue
            for to in targets.get(producer.stage_id, ()):
                new = news.setdefault((producer.id, to.id), _news(emission.run, producer, to, runs[emission.run].priority))
                mine = [item for item in items if item[2] is None or item[2] == to.name]
                new.rows.extend([(item[0], item[1]) for item in mine])
                if to.limit_id is not None:
                    new.keys.extend(_limit_key(item, to.name) for item in mine)
    without = _find_limits(tx, news.values())
    refused |= without
    added = _add(tx, worker, [new for new in news.values() if new.alike["parent"] not in without], runs, careful, may_start)
    if last:
        tx.run(_EMITTED, f=sorted(last.items()))
    return Added(refused | added.refused, added.started)


def _any_too_long(paths: Sequence[str]) -> bool:
    longest = max(map(len, paths), default=0)
    return longest > PATH_LIMIT // 4 and any(len(path.encode()) > PATH_LIMIT for path in paths)


class _News(NamedTuple):
    """Items of one producer for one stage."""

    rows: list[tuple[str, str | None]]  # path, arguments
    first: bool  # there was no earlier attempt that could have emitted them
    rerun: bool  # their producer runs once more in a later epoch: what it gave before may have changed
    alike: dict[str, int]  # what they have in common; in the order in which _ADD_ANY has it
    rule: int | None  # the limit that each has a key of
    keys: list[str]  # and these keys, beside the rows; none if there is no limit
    limits: list[int]  # the same by number

    @property
    def stage(self) -> int:
        return self.alike["stage"]

    @property
    def line(self) -> tuple[int, int]:
        return self.alike["queue"], self.alike["pool"]

    def without(self, number: int) -> _News:
        """The same without the first so many rows."""
        return self._replace(rows=self.rows[number:]) if number else self

    def with_limits(self) -> list[tuple[str, str | None, int | None]]:
        if self.rule is None:
            return [(path, args, None) for path, args in self.rows]
        return [(*row, limit) for row, limit in zip(self.rows, self.limits, strict=True)]


def _limit_key(item: Sequence[Any], stage: str) -> str:
    """An item that says none (of an application that is older than its run) has the same as all such."""
    return str(item[3].get(stage, "")) if len(item) > 3 and item[3] else ""


def _find_limits(tx: Tx, news: Iterable[_News]) -> dict[int, Refusal]:
    """Says which producers must stop: the limit that their items have is not there."""
    refused: dict[int, Refusal] = {}
    limited = [new for new in news if new.rule is not None]
    for rule in sorted({new.rule for new in limited if new.rule is not None}):
        same = [new for new in limited if new.rule == rule]
        try:
            numbers = limits.keys_of(tx, rule, (key for new in same for key in new.keys))
        except Refused as error:
            refused |= {new.alike["parent"]: Refusal(str(error)) for new in same}
            continue
        for new in same:
            new.limits.extend(map(numbers.__getitem__, new.keys))
        for number in numbers.values():
            tx.poke(number)
    return refused


def _news(run: int, producer: Any, to: Any, priority: int) -> _News:
    alike = {"run": run, "stage": to.id, "parent": producer.id, "number": producer.attempt}
    alike |= {"task": to.task_id, "queue": to.queue_id, "pool": to.pool, "urgency": priority}
    return _News([], producer.attempt == 1, producer.epoch is not None, alike, to.limit_id, [], [])


def _position(emission: Emission) -> int:
    """Grows with every batch, and with every attempt."""
    return emission.attempt << 32 | emission.number


def _with_paths(items: Sequence[Item], producer: Any) -> Sequence[Item]:
    """The items with their paths instead of their keys."""
    if not producer.key and all(item[0] for item in items):
        return items
    return [Item(_path(producer, item[0]), *item[1:]) for item in items]


def _path(producer: Any, key: str) -> str:
    """An item's identity: its producer's path and its own key. Without a key it goes on under its producer's.

    A "/" in a key that comes after one is escaped, or `a/b` + `c` and `a` + `b/c` would be one item.
    """
    if not key:
        return producer.key or str(producer.stage)
    return f"{producer.key}/{key.replace('%', '%25').replace('/', '%2F')}" if producer.key else key


_MANY = 20  # items of one producer that are worth a statement of their own


def _add(tx: Tx, worker: int, news: Sequence[_News], runs: flow.LockedRuns, careful: bool, may_start: MayStart) -> Added:
    started: list[Claimed] = []
    grown: Counter[int] = Counter()  # items added, by stage
    certain: list[_News] = []  # cannot be there already: a third of the cost
    doubtful: list[_News] = []  # some of these may be there already
    added: set[tuple[str, int]] = set()
    for new in news:
        if len(new.rows) >= _MANY and new.first and not careful:
            waits = bool(started) or new.rule is not None
            now = 0 if waits else may_start(*new.line)
            started += _start(tx, worker, new, now) if now else ()
            grown[new.stage] += len(new.rows)
            certain.append(new.without(now))
            continue
        doubtful.append(new)
        if len(new.rows) >= _MANY:
            added.update(tx.tuples(_ADD_ALIKE, f=new.with_limits(), **new.alike))
    _line_up(tx, [new for new in certain if new.rule is None])
    _line_up(tx, [new for new in certain if new.rule is not None], limited=True)
    few = [(*row, *new.alike.values()) for new in doubtful if len(new.rows) < _MANY for row in new.with_limits()]
    if few:
        added.update(tx.tuples(_ADD_ANY, f=few))
    grown.update(stage for _, stage in added)
    if grown:
        tx.run(_GROW, f=sorted(grown.items()))
    for new in news:
        if new.rows and new.rule is None:
            tx.ring(new.alike["queue"])
    refused = _twice(tx, doubtful, runs, added) if len(added) < sum(len(new.rows) for new in doubtful) else {}
    return Added(refused, started)


_NAMES = {"run": "run_id", "stage": "stage_id", "parent": "parent_id", "number": "parent_attempt", "task": "task_id"}
_NAMES |= {"queue": "queue_id", "pool": "pool", "urgency": "priority"}


def _start(tx: Tx, worker: int, new: _News, count: int) -> list[Claimed]:
    """The first so many start here and now: that spares a job its place in the line, and the claim."""
    _, now = drawing.place(tx)
    first = new.rows[:count]
    ids = drawing.new_ids(tx, len(first))
    held = {"state": State.IN_PROGRESS, "worker_id": worker, "attempt": 1, "started_at": now, "created_at": now}
    alike = {_NAMES[name]: value for name, value in new.alike.items()} | held
    _add_certain(tx, alike, ("id", "key", "args"), [(number, *row) for number, row in zip(ids, first, strict=True)])
    kind = Kind(Origin(new.alike["run"], new.stage), new.alike["task"], False, None, False, *new.line)
    return claimed([(number, 1, *row, kind, 0) for number, row in zip(ids, first, strict=True)])


def _line_up(tx: Tx, news: Sequence[_News], limited: bool = False) -> None:
    """Items that do not start at once stand in line as they were written, or wait for their limit; all in one statement."""
    if not any(new.rows for new in news):
        return
    line, now = drawing.place(tx)
    shared = dict(set.intersection(*(set(new.alike.items()) for new in news)))
    own = [name for name in news[0].alike if name not in shared]
    rows: list[tuple[Any, ...]] = []
    for new in news:
        values = tuple(new.alike[name] for name in own)
        of_new: Sequence[tuple[Any, ...]] = new.with_limits() if limited else new.rows
        rows += [(*values, *row) for row in of_new] if own else of_new
    alike = {_NAMES[name]: value for name, value in shared.items()} | {"state": State.QUEUED, "created_at": now}
    alike |= {"run_at": WAITING} if limited else {"ready": line}
    columns = [*(_NAMES[name] for name in own), "key", "args", *(["limit_id"] if limited else [])]
    _add_certain(tx, alike, columns, rows)


def _add_certain(tx: Tx, alike: Mapping[str, int], columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    try:
        tx.add_alike("gm_job", alike, columns, rows)
    except IntegrityError:
        raise SomeTwice from None


def _twice(tx: Tx, news: Sequence[_News], runs: flow.LockedRuns, added: set[tuple[str, int]]) -> dict[int, Refusal]:
    """Some were there already: from an earlier attempt of the same producer that is right, otherwise an error."""
    refused: dict[int, Refusal] = {}
    again: list[tuple[int, str, int]] = []
    changed: dict[int, list[tuple[Any, str | None]]] = {}  # by run
    moved: list[tuple[int, int | None]] = []  # the same, and the limits that they have now
    seen: set[tuple[str, int]] = set()
    there = {(path, new.stage) for new in news for path, _ in new.rows} - added
    old = {(row.key, row.stage_id): row for row in tx.all(_THERE, f=sorted((s, p) for p, s in there))} if there else {}
    for new in news:
        parent, attempt = new.alike["parent"], new.alike["number"]
        for path, args, limit in new.with_limits():
            row = old.get((path, new.stage))
            if (path, new.stage) in seen or (row and (row.parent_id != parent or row.parent_attempt == attempt)):
                refused[parent] = Refusal(_TWICE.format(path))
            elif row:
                again.append((new.stage, path, attempt))
                if new.rerun and _has_changed(row, args, runs[new.alike["run"]].epoch):
                    changed.setdefault(new.alike["run"], []).append((row, args))
                    moved.append((row.id, limit))
            seen.add((path, new.stage))
    if again:
        tx.run(_AGAIN, f=again)
    if any(limit is not None for _, limit in moved):
        tx.run(_MOVE, f=moved)
    for run, rows in changed.items():
        flow.renew(tx, runs[run], rows)
    return refused


_ASKED_AGAIN = (State.COMPLETED, State.COMPLETED_WITH_ERRORS, State.SKIPPED, State.IN_PROGRESS)


def _has_changed(row: Any, args: str | None, epoch: int) -> bool:
    """Must an item run again? Its arguments are others; or it had been dropped; or only its own function can tell, since
    it knows its input by a digest. An item that was itself chosen runs anyway."""
    if row.parts_left:
        return False  # it goes on as it is: a job is not taken from its parts
    if row.args != args or (row.state == State.SKIPPED and row.error_class == NOT_EMITTED):
        return True
    return row.done_in is not None and row.state in _ASKED_AGAIN and row.epoch != epoch


_TWICE = "the key {!r} was emitted twice; keys must be unique within a stage"
