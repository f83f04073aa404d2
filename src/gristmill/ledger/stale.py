"""Stalest first: which subject of a pipeline is due next, and its run, in one transaction.

Subjects without an interval of their own stand in one index, by when their last run ended; those with one in another, by
when that is over. So the ones that are due are always the beginning of an index, however many subjects there are. Those
that are chosen move back in it at once, and so do those that are found running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gristmill.ledger import start
from gristmill.ledger.read import now
from gristmill.ledger.sql import Sql
from gristmill.ledger.start import PlannedStage
from gristmill.ledger.store import Tx
from gristmill.schedule import Stalest
from gristmill.states import State

_FEW = 5000  # subjects with a label that are rather looked at one by one than searched for in the whole index
_FIRST = 200  # of these, those in whose order they are locked: more than are started at once, so that others find some
_HEAD = 100  # how many at the beginning are looked at, at first
_PUT_BACK = 5000  # running ones that one call puts back, at most: the next one goes on
# With a limit, or PostgreSQL would rather read all active runs first.
_ACTIVE_RUN = (
    f"(SELECT r.id FROM gm_run r WHERE r.subject_id = s.id AND r.state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d}) LIMIT 1)"
)
_COLUMNS = f"s.id, s.name, s.stale_at, s.due_at, s.created_at, {_ACTIVE_RUN} AS active"
# Its statistics know nothing of who is due now: it would sort them all.
_WALK = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off"
_WALK_NO_MORE = "SET LOCAL enable_sort = on; SET LOCAL enable_bitmapscan = on"
_LABELLED = "SELECT subject_id FROM gm_label WHERE key = :key%s LIMIT :most"
_MEET = Sql(
    "UPDATE gm_subject SET chosen_at = {now}"
    " WHERE id {one_of SELECT id FROM gm_subject WHERE id {in ids} ORDER BY id {skip}}"
)
_CHOOSE = Sql("UPDATE gm_subject SET chosen_at = {now} WHERE id {in ids}")


class Wanted(NamedTuple):
    """The runs to start, and when it will be asked again (microseconds; None: as many as there may be at once)."""

    pipeline: str
    args: str
    priority: int
    plan: Callable[[Tx, str], Sequence[PlannedStage]]  # of a subject
    stalest: Stalest
    gap: int | None = None


class Chosen(NamedTuple):
    subject: str
    run: int


def start_stalest(tx: Tx, wanted: Wanted) -> list[Chosen]:
    """Starts runs of the subjects that are due longest, never-run ones first, none that is running. A row lock each, and
    locked ones are passed over: whoever does the same at the same time gets others."""
    line = _Line(tx, wanted)
    walks = tx.dialect == "postgresql" and line.few is None
    if walks:
        tx.script(_WALK)
    due = line.look() if line.few is None else line.look_at(line.few)
    most = line.how_many(due) if wanted.stalest.spread and wanted.gap else wanted.stalest.batch
    mine = line.take(due, most)
    if walks:
        tx.script(_WALK_NO_MORE)
    chosen: list[Chosen] = []
    if mine:
        tx.run(_CHOOSE, ids=[subject.id for subject in mine])
    for subject in mine:
        run = start.start_idle(tx, wanted.pipeline, subject.id, wanted.args, wanted.priority, wanted.plan(tx, subject.name))
        if run is not None:
            chosen.append(Chosen(subject.name, run))
    return chosen


class _Kind(NamedTuple):
    """With or without an interval of its own, and the column by which those stand in line."""

    which: str
    by: str


_KINDS = _COMMON, _OWN = _Kind("IS NULL", "stale_at"), _Kind("IS NOT NULL", "due_at")


class _Due(NamedTuple):
    """A subject whose time has come, in the order in which they are taken."""

    ran: bool
    since: int
    name: str
    id: int
    kind: _Kind
    active: bool


class _Line:
    """The subjects of a pipeline (with some labels) that are due, in the order in which they are."""

    def __init__(self, tx: Tx, wanted: Wanted) -> None:
        self.tx = tx
        self.wanted = wanted
        self.stalest = wanted.stalest
        self.at = now(tx)
        self.few: list[int] | None = None  # who has a rare label: each of them is looked at, instead of walking an index
        self.labels = ""
        self.values: dict[str, Any] = {"pipeline": wanted.pipeline}
        for n, (key, value) in enumerate(self.stalest.labels):
            self._label(n, key, value)

    def _label(self, n: int, key: str, value: str | None) -> None:
        """One condition. Of a rare label, all who have it: else the way to the first of them could be long."""
        given = {"key": key} if value is None else {"key": key, "value": value}
        fits = "" if value is None else " AND value = :value"
        if self.few is None:
            some = self.tx.tuples(Sql(_LABELLED % fits), most=_FEW + 1, **given)
            if len(some) <= _FEW:
                self.few = [number for (number,) in some]
                return
        named = fits.replace(":value", f":value{n}")
        self.labels += (
            f" AND (SELECT 1 FROM gm_label l WHERE l.subject_id = s.id AND l.key = :key{n}{named} LIMIT 1) IS NOT NULL"
        )
        self.values |= {f"{name}{n}": text for name, text in given.items()}

    def _sql(self, kind: _Kind, columns: str, more: str = "") -> str:
        where = f's.pipeline = :pipeline AND s."interval" {kind.which} AND s.{kind.by} <= :cutoff{self.labels}{more}'
        if self.few is not None:  # and no index but that of numbers, whatever PostgreSQL thinks
            where = where.replace("s.pipeline =", "s.pipeline || '' =").replace(f"s.{kind.by} <=", f"s.{kind.by} + 0 <=")
            where = f"s.id {{in few}} AND {where}"
        return f"SELECT {columns} FROM gm_subject s WHERE {where}"

    def _gap(self, kind: _Kind) -> int:
        return self.stalest.not_within if kind is _COMMON else 0

    def _head(self, kind: _Kind, most: int, more: str = "", lock: str = "") -> list[_Due]:
        sql = Sql(f"{self._sql(kind, _COLUMNS, more)} ORDER BY s.{kind.by}, s.name LIMIT :most {lock}")
        rows = self.tx.all(sql, cutoff=self.at - self._gap(kind), most=most, **self.values)
        return [self._due(row, kind) for row in rows]

    def _turn(self, row: Any, kind: _Kind) -> int:
        """When its time came, or will."""
        turn: int = row.due_at if kind is _OWN else row.stale_at + self.stalest.not_within
        return turn

    def _due(self, row: Any, kind: _Kind) -> _Due:
        since = self._turn(row, kind) if row.stale_at else row.created_at
        return _Due(row.stale_at > 0, since, row.name, row.id, kind, row.active is not None)

    def look(self) -> list[_Due]:
        """The first ones, in order, without locking any. Those that run are put back, if they are in the way."""
        most, back = max(_HEAD, self.stalest.batch), 0
        while True:
            heads = [self._head(kind, most) for kind in _KINDS]
            running = [due.id for head in heads for due in head if due.active]
            idle = sorted(due for head in heads for due in head if not due.active)
            in_the_way = any(len(head) == most for head in heads) and len(running) >= most // 2
            if not in_the_way or back >= _PUT_BACK:
                return idle
            back += self.tx.run(_MEET, ids=running) or _PUT_BACK
            most = min(2 * most, _PUT_BACK)

    def look_at(self, few: Sequence[int]) -> list[_Due]:
        """The same of a few by number, all of them."""
        sql = Sql(f'SELECT {_COLUMNS}, s.pipeline, s."interval" FROM gm_subject s WHERE s.id {{in few}}{self.labels}')
        found: list[_Due] = []
        for row in self.tx.all(sql, **{**self.values, "few": few}):
            kind = _COMMON if row.interval is None else _OWN
            if row.pipeline == self.wanted.pipeline and self._turn(row, kind) <= self.at and row.active is None:
                found.append(self._due(row, kind))
        found.sort()
        self.values["few"] = [due.id for due in found[: max(_FIRST, 2 * self.stalest.batch)]]
        return found

    def take(self, due: Sequence[_Due], most: int) -> list[_Due]:
        """Locks as many of each kind as are among the first; where others were quicker, those after them."""
        first = due[:most]
        mine: list[_Due] = []
        for kind in _KINDS:
            mine += self._locked(kind, sum(one.kind is kind for one in first))
        for kind in _KINDS:
            mine += self._locked(kind, len(first) - len(mine), [one.id for one in mine])
        return sorted(mine)

    def _locked(self, kind: _Kind, most: int, besides: Sequence[int] = ()) -> list[_Due]:
        if most <= 0:
            return []
        self.values["besides"] = besides
        return self._head(kind, most, f" AND {_ACTIVE_RUN} IS NULL AND NOT s.id {{in besides}}", "{skip}")

    def how_many(self, due: Sequence[_Due]) -> int:
        """Spread evenly: what is overdue, in what is left of the time."""
        if not due or self.wanted.gap is None:
            return 0
        if self.few is not None:
            return self.stalest.wanted(len(due), self.at - min(one.since for one in due), self.wanted.gap)
        ran = [one for kind in _KINDS for one in self._head(kind, 1, " AND s.stale_at > 0")]
        longest = self.at - min(one.since for one in (*due, *ran))
        most = self.stalest.counted(longest, self.wanted.gap)
        overdue = 0
        for kind in _KINDS:
            counted = Sql(f"SELECT count(*) FROM ({self._sql(kind, '1')} LIMIT :most) AS overdue")
            overdue += self.tx.value(counted, cutoff=self.at - self._gap(kind), most=most, **self.values)
        return self.stalest.wanted(overdue, longest, self.wanted.gap)
