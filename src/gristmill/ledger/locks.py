"""Named locks: what they are called in each database, who holds them, who waits.

On PostgreSQL they are advisory locks, in the form with two numbers, of a session whose `application_name` says whose it
is. On SQLite a request is a row of `gm_lock`: of each resource the lowest number that is alive has the lock, and the
number is its fencing token. A row is alive while its lease runs and its process is there; who comes next deletes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from gristmill.clock import SECOND, to_datetime
from gristmill.errors import Invalid
from gristmill.identity import gone, host
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.model import Lock, LockUser
from gristmill.settings import KEY_LIMIT, NAME_LIMIT

HOLD_FOR = 60 * SECOND  # the lease of a holder on SQLite; it is renewed four times as often
WAIT_FOR = 20 * SECOND  # and of one that waits: if it is dead, or frozen, others must not wait for it for long
_HIGHEST = 2**31 - 1


class LockKey(NamedTuple):
    """A resource: two numbers, as PostgreSQL's advisory locks want them, and what people call it."""

    kind: int
    object: int
    name: str


class Who(NamedTuple):
    """Who asks for a lock; zeros: a program outside jobs."""

    job: int
    attempt: int
    worker: int


def key_of(kind: str | int, item: str | int) -> LockKey:
    """Numbers are taken as they are, so that they mean the same to other programs; text is hashed.

    Two texts may have the same hash: then one waits for the other, which costs time and nothing else. A kind in text is
    never the same as a number that was given.
    """
    for what, value, longest in (("kind", kind, NAME_LIMIT), ("object", item, KEY_LIMIT)):
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise Invalid(f"the {what} of a lock is text or a whole number, not {value!r:.60}")
        if isinstance(value, str) and not 0 < len(value) <= longest:
            raise Invalid(f"the {what} of a lock has 1 to {longest} characters, not {len(value)}")
    if isinstance(kind, int) and not 0 <= kind <= _HIGHEST:
        raise Invalid(f"a lock's kind, given as a number, is from 0 to {_HIGHEST}, not {kind}")
    number = kind if isinstance(kind, int) else -1 - (_hash(kind) & _HIGHEST)
    return LockKey(number, _object(item), f"{kind}/{item}")


def _object(item: str | int) -> int:
    if isinstance(item, int) and -_HIGHEST - 1 <= item <= _HIGHEST:
        return item
    return _hash(str(item)) - 2**31


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4])


# ---- SQLite: rows

_PRUNE = Sql("DELETE FROM gm_lock WHERE lease_until < {now}")
_ASK = Sql(
    "INSERT INTO gm_lock (kind, object, name, job_id, worker_id, host, pid, born, asked_at, lease_until)"
    " VALUES (:kind, :object, :name, :job, :worker, :host, :pid, :born, {now}, {now} + :lease) RETURNING id"
)
_AHEAD = Sql(
    "SELECT id, host, pid, born, lease_until < {now} AS over FROM gm_lock WHERE kind = :kind AND object = :object"
    " AND id <= :id ORDER BY id"
)
_DROP = Sql("DELETE FROM gm_lock WHERE id {in ids}")
_TAKE = Sql("UPDATE gm_lock SET held_at = {now}, lease_until = {now} + :lease WHERE id = :id")
_RENEW = Sql("UPDATE gm_lock SET lease_until = {now} + :lease WHERE id = :id AND born = :born")
_RELEASE = Sql("DELETE FROM gm_lock WHERE id = :id AND born = :born")
_HELD = Sql("SELECT 1 FROM gm_lock WHERE id = :id AND born = :born AND held_at IS NOT NULL")


def ask(tx: Tx, key: LockKey, who: Who, pid: int, born: str) -> int:
    """Gets in line for a resource; says the number of the request."""
    tx.run(_PRUNE)
    given = {**key._asdict(), "job": who.job or None, "worker": who.worker or None, "host": host()}
    number: int = tx.value(_ASK, **given, pid=pid, born=born, lease=WAIT_FOR)
    return number


def may_take(tx: Tx, key: LockKey, number: int) -> bool:
    """Is it worth a try: is nobody alive ahead, or is the request itself gone? A look only: most who wait, wait on."""
    rows = tx.all(_AHEAD, kind=key.kind, object=key.object, id=number)
    return not rows or rows[-1].id != number or _dead(rows[0]) or len(rows) == 1


def take(tx: Tx, key: LockKey, number: int) -> bool | None:
    """Takes the lock if nobody alive is ahead; None: the request is gone, since it was not heard of for too long."""
    rows = tx.all(_AHEAD, kind=key.kind, object=key.object, id=number)
    if not rows or rows[-1].id != number:
        return None
    dead = [row.id for row in rows[:-1] if _dead(row)]
    if dead:
        tx.run(_DROP, ids=dead)
    if len(dead) < len(rows) - 1:
        return False
    tx.run(_TAKE, id=number, lease=HOLD_FOR)
    return True


def _dead(row: Any) -> bool:
    return bool(row.over) or (row.host == host() and gone(row.pid, row.born))


def renew(tx: Tx, number: int, born: str, lease: int) -> bool:
    """Lengthens the lease; False: the request is gone. One that is over but still there is as good as new."""
    return tx.run(_RENEW, id=number, born=born, lease=lease) == 1


def release(tx: Tx, number: int, born: str) -> bool:
    """Gives the lock back, or gives up waiting; False: it was lost before."""
    return tx.run(_RELEASE, id=number, born=born) == 1


def holds_row(tx: Tx, number: int, born: str) -> bool:
    """Is the lock still held? In a transaction that writes, it is then so until that has ended."""
    return tx.one(_HELD, id=number, born=born) is not None


# ---- PostgreSQL: sessions

_LABEL = re.compile(r"gristmill lock (\d+)\.(\d+)\.(\d+) (\d+) (.*)", re.DOTALL)
_HERE = (
    "l.locktype = 'advisory' AND l.objsubid = 2"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_SIGNED = "CASE WHEN l.{0}::bigint > 2147483647 THEN l.{0}::bigint - 4294967296 ELSE l.{0}::bigint END"
_SESSIONS = Sql(
    f"SELECT {_SIGNED.format('classid')} AS kind, {_SIGNED.format('objid')} AS object, l.granted, l.pid,"
    " coalesce(a.application_name, '') AS label,"
    " (extract(epoch FROM (to_jsonb(l) ->> 'waitstart')::timestamptz) * 1000000)::bigint AS asked_at"  # not before 14
    f" FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE {_HERE} ORDER BY asked_at NULLS FIRST, l.pid"
)
_HOLDS = Sql(
    f"SELECT 1 FROM pg_locks l WHERE {_HERE} AND l.pid = :pid AND l.granted"
    f" AND {_SIGNED.format('classid')} = :kind AND {_SIGNED.format('objid')} = :object"
)
_END_SESSIONS = Sql(  # who may not end a session must not fail over it: the server finds out by itself, a little later
    "SELECT CASE WHEN pg_has_role(usesysid, 'USAGE')"
    " AND (NOT r.rolsuper OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))"
    " THEN pg_terminate_backend(pid) END FROM pg_stat_activity JOIN pg_roles r ON r.oid = usesysid"
    " WHERE datname = current_database() AND application_name ~ ('^gristmill lock [0-9]+[.][0-9]+[.]' || :worker || ' ')"
)
_DROP_OF_WORKER = Sql("DELETE FROM gm_lock WHERE worker_id = :worker")
_WORKERS = Sql("SELECT id, host FROM gm_worker WHERE id {in ids}")
_ROWS = Sql(
    "SELECT id, kind, object, name, job_id, worker_id, host, pid, born, asked_at, held_at, lease_until < {now} AS over"
    " FROM gm_lock ORDER BY id"
)


def label(who: Who, name: str) -> tuple[bytes, bytes]:
    """What a session is called: whose it is, and what it wants. In between comes since when."""
    what = name.replace("\0", "?").encode("ascii", "replace")
    return f"gristmill lock {who.job}.{who.attempt}.{who.worker} ".encode(), what


def holds_session(tx: Tx, key: LockKey, pid: int) -> bool:
    return tx.one(_HOLDS, pid=pid, kind=key.kind, object=key.object) is not None


def end_locks(tx: Tx, worker: int) -> None:
    """Whatever a lost worker's children hold or wait for, they do not any more."""
    if tx.dialect == "sqlite":
        tx.run(_DROP_OF_WORKER, worker=worker)
    else:
        tx.all(_END_SESSIONS, worker=str(worker))


# ---- reading


class _Entry(NamedTuple):
    kind: int
    object: int
    name: str | None  # None: nobody says
    held: bool
    user: LockUser


def held_locks(tx: Tx) -> list[Lock]:
    """The locks that are held, the oldest first, with those who wait for each, in their order."""
    entries = list(_of_rows(tx) if tx.dialect == "sqlite" else _of_sessions(tx))
    by_resource: dict[tuple[int, int], list[_Entry]] = {}
    for entry in entries:
        by_resource.setdefault((entry.kind, entry.object), []).append(entry)
    return [_lock(resource, found) for resource, found in by_resource.items() if any(entry.held for entry in found)]


def _lock(resource: tuple[int, int], entries: Collection[_Entry]) -> Lock:
    holder = next(entry.user for entry in entries if entry.held)
    names = [entry.name for entry in entries if entry.name]
    waiters = tuple(entry.user for entry in entries if not entry.held)
    return Lock(names[0] if names else f"{resource[0]}/{resource[1]}", *resource, holder, waiters)


def _of_rows(tx: Tx) -> Iterable[_Entry]:
    for row in tx.all(_ROWS):
        if not _dead(row):
            since = to_datetime(row.asked_at if row.held_at is None else row.held_at)
            user = LockUser(row.job_id, row.worker_id, row.host, row.pid, None, since)
            yield _Entry(row.kind, row.object, row.name, row.held_at is not None, user)


def _of_sessions(tx: Tx) -> Iterable[_Entry]:
    rows = [(row, _LABEL.fullmatch(row.label)) for row in tx.all(_SESSIONS)]
    numbers = sorted({int(found[3]) for _, found in rows if found})
    hosts = {row.id: row.host for row in tx.all(_WORKERS, ids=numbers)} if numbers else {}
    for row, found in rows:
        if found is None:  # somebody else's: psql, or another program that knows the same numbers
            user = LockUser(None, None, None, row.pid, row.label or None, to_datetime(row.asked_at))
            yield _Entry(row.kind, row.object, None, row.granted, user)
            continue
        job, pid, worker, since = (int(word) for word in found.groups()[:4])
        at = to_datetime(since * SECOND)
        user = LockUser(job or None, worker or None, hosts.get(worker), row.pid if job else pid, None, at)
        yield _Entry(row.kind, row.object, found[5], row.granted, user)
