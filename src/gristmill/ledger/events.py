"""What changed, in the order of its commits, for those who follow it: nobody ever misses one.

Numbers from a sequence are handed out before the commit: who has read up to 5 would miss a 4 that commits later. So on
PostgreSQL an event is written without its place, and gets it afterwards, when it can be seen: by whoever looks next, reader
or housekeeping, one at a time (a lock that ends with the commit). A transaction that stays open holds up nobody, one that
is rolled back leaves no hole. On SQLite, where one transaction writes at a time, it has its place at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from gristmill.binding import encode
from gristmill.clock import SECOND, to_datetime
from gristmill.errors import Invalid, quoted
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.pipeline import check_name
from gristmill.watched import Event, Events

KEPT = 24 * 3600 * SECOND  # how long events are kept; and
MOST = 100_000  # how many at most: who comes back later than that looks at everything anew anyway
_BATCH = 2000
_LONGEST = 64 << 10  # characters of what an application says: it is for screens

_WRITE = Sql(
    "INSERT INTO gm_event (place, at, name, run_id, data) SELECT {place}, {now}, f.name, f.run, f.data"
    " FROM {rows f: nr int, name text, run bigint, data text} WHERE true ORDER BY f.nr"
)
NEW = Sql("SELECT 1 FROM gm_event WHERE place IS NULL")
_ALONE = Sql("SELECT pg_try_advisory_xact_lock(hashtext('gristmill events'))")
_NUMBER = Sql(
    "UPDATE gm_event SET place = n.place FROM (SELECT new.id, (SELECT coalesce(max(place), 0) FROM gm_event)"
    " + row_number() OVER (ORDER BY new.id) AS place"
    " FROM (SELECT id FROM gm_event WHERE place IS NULL ORDER BY id LIMIT :most) AS new) AS n WHERE gm_event.id = n.id"
)
_BOUNDS = Sql(
    "SELECT epoch, (SELECT coalesce(min(place), 1) FROM gm_event) AS first,"
    " (SELECT coalesce(max(place), 0) FROM gm_event) AS last FROM gm_ledger"
)
_AFTER = Sql("SELECT place, at, name, run_id, data FROM gm_event WHERE place > :after ORDER BY place LIMIT :most")
_FORGET = Sql(  # from the oldest on, and never the newest: so those that are there have no hole, and their numbers go on
    "DELETE FROM gm_event WHERE place < (SELECT coalesce(min(CASE WHEN at >= {now} - :kept"
    " AND place > (SELECT max(place) FROM gm_event) - :count THEN place END), max(place))"
    " FROM (SELECT place, at FROM gm_event WHERE place IS NOT NULL ORDER BY place LIMIT :most) AS oldest)"
)


class Cursor(NamedTuple):
    """Up to where somebody has read; `epoch`: of the ledger, since a restore begins another story."""

    epoch: int
    place: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.place}"

    @classmethod
    def of(cls, text: object) -> Cursor:
        if not isinstance(text, str) or not re.fullmatch(r"\d{1,18}-\d{1,18}", text, re.ASCII):
            raise Invalid(f"{quoted(text)} is not the id of an event; those are like 1-234")
        return cls(*map(int, text.split("-")))


def write(tx: Tx) -> None:
    """Writes what was noted in this transaction."""
    if tx.notes:
        tx.run(_WRITE, f=tx.notes.taken())


def own(name: str, data: Mapping[str, Any] | None) -> str:
    """What an application says of itself, as JSON; its names have a dot, ours never do."""
    if "." not in check_name(name, "event"):
        raise Invalid(f"an application's own event has a dot in its name, like 'library.{name}'; {name!r} has none")
    if data is not None and not isinstance(data, Mapping):
        raise Invalid(f"the data of event {name!r} must be a dict, not {type(data).__name__}")
    text = encode(data or {}, f"the data of event {name!r}")
    if len(text) > _LONGEST:
        raise Invalid(f"the data of event {name!r} is {len(text):,} characters of JSON; the limit is {_LONGEST:,}")
    return text


def add(tx: Tx, name: str, run: int | None, data: str) -> None:
    """An application's own event."""
    tx.notes.own(name, run, data)


def are_new(tx: Tx) -> bool:
    return tx.one(NEW) is not None


def number(tx: Tx, most: int = _BATCH) -> bool:
    """Gives events their places; says whether there may be more. Another who is at it just now is left alone."""
    if tx.dialect == "postgresql" and not tx.value(_ALONE):
        return False
    return tx.run(_NUMBER, most=most) == most


def after(tx: Tx, last: Cursor | None, most: int) -> Events:
    """The next events after those that were read; None: from the oldest that is kept."""
    bounds = tx.one(_BOUNDS)
    start = Cursor(bounds.epoch, bounds.first - 1) if last is None else last
    if start.epoch != bounds.epoch or not bounds.first - 1 <= start.place <= bounds.last:
        return Events((), str(Cursor(bounds.epoch, bounds.last)), reset=True)
    rows = tx.all(_AFTER, after=start.place, most=most)
    found = tuple(
        Event(str(Cursor(bounds.epoch, row.place)), to_datetime(row.at), row.name, row.run_id, orjson.loads(row.data))
        for row in rows
    )
    return Events(found, found[-1].id if found else str(start))


def newest(tx: Tx) -> str:
    bounds = tx.one(_BOUNDS)
    return str(Cursor(bounds.epoch, bounds.last))


def forget(tx: Tx, kept: int = KEPT, count: int = MOST, most: int = 2 * _BATCH) -> int:
    """Removes some of the events that are too old or too many; says how many."""
    return tx.run(_FORGET, kept=kept, count=count, most=most)
