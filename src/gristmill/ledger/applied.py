"""What was applied last: the newest version of each resource, so that what comes too late is skipped.

It is written in the transaction that ends the job, under a lock on its row, after the runs' locks and before the jobs'. The
newest one stays, also when an older one is applied on purpose: what is older than that is still late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from gristmill.clock import from_datetime
from gristmill.errors import Invalid, Skip
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.settings import KEY_LIMIT

Version = int | float | str | datetime | Sequence["int | float | str | datetime"]


class Guard(NamedTuple):
    """A version of a resource that a job applies."""

    resource: str  # JSON
    version: str  # JSON
    label: str  # what it is called when something else is skipped because of it
    force: bool = False  # on purpose, though a newer one was applied


class Newer(NamedTuple):
    version: str
    label: str


_NEWEST = Sql("SELECT version, label FROM gm_applied WHERE resource = :resource AND version IS NOT NULL")
_ADD = Sql(
    "INSERT INTO gm_applied (resource, at) SELECT f.resource, {now} FROM {rows f: resource text} WHERE true"
    " ON CONFLICT (resource) DO NOTHING"
)
_LOCKED = Sql(
    "SELECT a.resource, a.version, a.label FROM gm_applied a WHERE a.resource IN (SELECT f.resource FROM"
    " {rows f: resource text}) ORDER BY a.resource {lock}"
)
_WRITE = Sql(
    "UPDATE gm_applied SET version = f.version, label = f.label, job_id = f.job, at = {now}"
    " FROM {rows f: resource text, version text, label text, job bigint} WHERE gm_applied.resource = f.resource"
)


def guard(resource: Sequence[str | int], version: Version, label: str | None, force: bool) -> Guard:
    """The values that were given, checked, as they are stored."""
    if not resource or not all(isinstance(part, str | int) and not isinstance(part, bool) for part in resource):
        raise Invalid(f"a resource is named by text and numbers, as in ('edition', 42), not {resource!r:.60}")
    parts = list(version) if isinstance(version, tuple | list) else [version]
    plain = [from_datetime(part) if isinstance(part, datetime) else part for part in parts]
    if not plain or not all(isinstance(part, int | float | str) and not isinstance(part, bool) for part in plain):
        raise Invalid(f"a version is a number, text, a time, or a tuple of these, not {version!r:.60}")
    try:
        name, stored = orjson.dumps(list(resource)).decode(), orjson.dumps(plain).decode()
    except TypeError as error:
        raise Invalid(f"the resource {resource!r:.60} in version {version!r:.60} cannot be stored: {error}") from None
    if len(name) > KEY_LIMIT:
        raise Invalid(f"the name of a resource has at most {KEY_LIMIT} characters, not {len(name)}")
    said = label if label is not None else f"version {', '.join(str(part) for part in parts)}"
    return Guard(name, stored, said, force)


def newer_than(version: str, other: str | None) -> bool:
    """Is `other` newer? Versions of different kinds cannot be compared: then it is not."""
    try:
        return other is not None and bool(orjson.loads(other) > orjson.loads(version))
    except TypeError:
        return False


def refuse_stale(tx: Tx, wanted: Guard) -> None:
    """Raises `Skip` if something newer was applied; locks nothing."""
    found = tx.one(_NEWEST, resource=wanted.resource)
    if found is None or wanted.force:
        return
    try:
        stale = orjson.loads(found.version) > orjson.loads(wanted.version)
    except TypeError:
        raise Invalid(f"the version {wanted.version} cannot be compared with {found.version}, which was applied") from None
    if stale:
        raise Skip(_reason(found.label))


def apply(tx: Tx, wanted: Guard, job: int | None) -> None:
    """Raises `Skip` if something newer was applied; otherwise this is the newest, if and when the transaction commits."""
    current = _lock(tx, [wanted.resource])
    refuse_stale(tx, wanted)
    if not newer_than(wanted.version, current[wanted.resource].version):
        tx.run(_WRITE, f=[(wanted.resource, wanted.version, wanted.label, job)])


def late(tx: Tx, jobs: Iterable[tuple[int, Sequence[Guard]]]) -> dict[int, str]:
    """Of jobs that complete in this transaction, in their order: those that came too late, and why. Locks what they name."""
    jobs = list(jobs)
    newest = _lock(tx, {each.resource for _, guards in jobs for each in guards})
    found: dict[int, str] = {}
    for job, guards in jobs:
        behind = [newest[g.resource] for g in guards if not g.force and newer_than(g.version, newest[g.resource].version)]
        if behind:
            found[job] = _reason(behind[0].label)
            continue
        for g in guards:
            if not newer_than(g.version, newest[g.resource].version):
                newest[g.resource] = Newer(g.version, g.label)
    return found


def record(tx: Tx, jobs: Iterable[tuple[int, Sequence[Guard]]]) -> None:
    """These jobs have completed in this transaction, which `late` has looked at."""
    jobs = list(jobs)
    before = _lock(tx, {each.resource for _, guards in jobs for each in guards})
    rows: dict[str, Any] = {}
    for job, guards in jobs:
        for g in guards:
            newest = rows[g.resource][1] if g.resource in rows else before[g.resource].version
            if not newer_than(g.version, newest):
                rows[g.resource] = (g.resource, g.version, g.label, job)
    if rows:
        tx.run(_WRITE, f=[rows[name] for name in sorted(rows)])


def _lock(tx: Tx, resources: Iterable[str]) -> dict[str, Any]:
    """The rows of these resources, there and locked, in the order of their names."""
    rows = [(name,) for name in sorted(resources)]
    tx.run(_ADD, f=rows)
    return {row.resource: row for row in tx.all(_LOCKED, f=rows)}


def _reason(label: str | None) -> str:
    return f"superseded by {label}"
