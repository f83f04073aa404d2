"""Subjects: what people say about them, and the lists of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.clock import SECOND, to_datetime
from gristmill.errors import NotFound, quoted
from gristmill.ledger.choose import named
from gristmill.ledger.columns import SUBJECT, columns
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx
from gristmill.model import Subject
from gristmill.states import State

# ---- setting

_ADD = Sql("INSERT INTO gm_subject (pipeline, name, created_at) VALUES (:pipeline, :name, {now}) ON CONFLICT DO NOTHING")
_LOCK = Sql("SELECT id FROM gm_subject WHERE pipeline = :pipeline AND name = :name {lock}")
_SET_INTERVAL = Sql('UPDATE gm_subject SET "interval" = :gap WHERE id = :subject')
_UNLABEL = Sql("DELETE FROM gm_label WHERE subject_id = :subject AND key = :key")
_LABEL = Sql(
    "INSERT INTO gm_label (subject_id, key, value) VALUES (:subject, :key, :value)"
    " ON CONFLICT (subject_id, key) DO UPDATE SET value = excluded.value"
)


def set_subject(
    tx: Tx, pipeline: str, name: str, interval: int | None, labels: Mapping[str, str | None], *, create: bool, by: str
) -> None:
    """Changes what is given: the interval (microseconds; 0: none), labels (None: removed)."""
    if create:
        tx.run(_ADD, pipeline=pipeline, name=name)
    number = tx.value(_LOCK, pipeline=pipeline, name=name)
    if number is None:
        raise NotFound(f"{pipeline} has no subject {quoted(name)}")
    if interval is not None:
        tx.run(_SET_INTERVAL, subject=number, gap=interval or None)
    for key, value in labels.items():
        if value is None:
            tx.run(_UNLABEL, subject=number, key=key)
        else:
            tx.run(_LABEL, subject=number, key=key, value=value)
    said = {} if interval is None else {"interval": interval / SECOND}
    audit(tx, by, "subject.set", f"subject {pipeline} {name}", **said, labels=dict(labels))


# ---- reading

_COLUMNS = (
    f"SELECT {columns(SUBJECT, 's')}, CASE WHEN s.last_good_at > 0 THEN {{now}} - s.last_good_at END AS age"
    " FROM gm_subject s"
)
_NOW = Sql("SELECT {now}")
_ACTIVE = (State.QUEUED, State.IN_PROGRESS)
_RUNS = Sql(
    "SELECT subject_id, id, state FROM gm_run WHERE subject_id {in ids}"
    f" AND state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d})"
    f" UNION ALL SELECT subject_id, id, state FROM gm_run WHERE subject_id {{in same}} AND state = {State.WAITING:d}"
)
_ARGUMENTS = Sql("SELECT id, args FROM gm_run WHERE id {in ids}")
_LABELS = Sql("SELECT subject_id, key, value FROM gm_label WHERE subject_id {in ids} ORDER BY subject_id, key")
# Written out, so that both databases see that the small indexes of unfinished runs will do.
_BY_ACTIVE = (
    f"s.id IN (SELECT subject_id FROM gm_run WHERE state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d}) AND state = :state)"
)
_BY_WAITING = f"s.id IN (SELECT subject_id FROM gm_run WHERE state = {State.WAITING:d})"


def subject(tx: Tx, pipeline: str, name: str) -> Subject:
    found = _read(tx, ["s.pipeline = :pipeline", "s.name = :name"], 1, pipeline=pipeline, name=name)
    if not found:
        raise NotFound(f"{pipeline} has no subject {quoted(name)}")
    return found[0]


def subjects(
    tx: Tx,
    *,
    ids: Sequence[int] | None = None,
    pipeline: str | None = None,
    name: str | None = None,
    labels: Sequence[tuple[str, str | None]] = (),
    stale_for: int | None = None,
    state: int | None = None,
    after: int | None = None,
    most: int = 50,
) -> list[Subject]:
    """Subjects that meet every condition, by their number. `name`: whole, or a pattern with * and ?. `after`: a number;
    the page begins behind it."""
    where: list[str] = []
    values: dict[str, Any] = {}
    if ids is not None:
        where.append("s.id {in chosen}")
        values["chosen"] = ids
    if pipeline is not None:
        where.append("s.pipeline = :pipeline")
        values["pipeline"] = pipeline
    for clause, bound in named(name).items():
        where.append(clause)
        values |= bound
    if stale_for is not None:
        where.append("s.last_good_at <= :before")
        values["before"] = tx.value(_NOW) - stale_for  # a number, so that PostgreSQL can judge how many these are
    if state == State.WAITING:
        where.append(_BY_WAITING)
    elif state is not None:
        where.append(_BY_ACTIVE if state in _ACTIVE else "s.last_state = :state")
        values["state"] = state
    if after is not None:
        where.append("s.id > :after")
        values["after"] = after
    for n, (key, value) in enumerate(labels):
        fits = "" if value is None else f" AND value = :value{n}"
        where.append(f"s.id IN (SELECT subject_id FROM gm_label WHERE key = :key{n}{fits})")
        values |= {f"key{n}": key} if value is None else {f"key{n}": key, f"value{n}": value}
    return _read(tx, where, most, **values)


def last_arguments(tx: Tx, found: Sequence[Subject]) -> dict[int, str]:
    """Of the last run of each that ended, as JSON; by the subject's number."""
    runs = {subject.last_run: subject.id for subject in found if subject.last_run is not None}
    return {runs[number]: args for number, args in tx.tuples(_ARGUMENTS, ids=list(runs))} if runs else {}


def _read(tx: Tx, where: Sequence[str], most: int, **values: Any) -> list[Subject]:
    """One page, and what belongs to it: the runs that are not over, and labels."""
    clauses = " WHERE " + " AND ".join(where) if where else ""
    rows = tx.all(Sql(f"{_COLUMNS}{clauses} ORDER BY s.id LIMIT :most"), most=most, **values)
    ids = [row.id for row in rows]
    labels: dict[int, dict[str, str]] = {number: {} for number in ids}
    active: dict[int, Any] = {}
    waiting: dict[int, int] = {}
    for row in tx.all(_LABELS, ids=ids) if ids else ():
        labels[row.subject_id][row.key] = row.value
    for row in tx.all(_RUNS, ids=ids, same=ids) if ids else ():
        if row.state == State.WAITING:
            waiting[row.subject_id] = row.id
        else:
            active[row.subject_id] = row
    return [_subject(row, labels[row.id], active.get(row.id), waiting.get(row.id)) for row in rows]


def _subject(row: Any, labels: dict[str, str], active: Any, waiting: int | None) -> Subject:
    return Subject(
        id=row.id,
        pipeline=row.pipeline,
        name=row.name,
        labels=labels,
        interval=None if row.interval is None else row.interval / SECOND,
        active_run=active and active.id,
        active_state=active and State(active.state).word,
        waiting_run=waiting,
        last_run=row.last_run_id,
        last_state=None if row.last_state is None else State(row.last_state).word,
        last_run_at=to_datetime(row.last_run_at),
        last_good_run=row.last_good_run_id,
        last_good_at=to_datetime(row.last_good_at or None),
        age=None if row.age is None else row.age / SECOND,
        created_at=to_datetime(row.created_at),
    )
