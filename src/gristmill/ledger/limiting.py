"""What people see of limits and set: numbers that count more than what an application declares, and closed circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gristmill.clock import to_datetime
from gristmill.errors import NotFound, Refused, did_you_mean, quoted
from gristmill.ledger import limits
from gristmill.ledger.names import queues
from gristmill.ledger.read import claimed_ids
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import audit
from gristmill.ledger.tx import DELAYED, Tx
from gristmill.ledger.whose import ALL, Whose, of
from gristmill.limit import OF_QUEUES, Breaker, Numbers
from gristmill.model import LimitState, Repair
from gristmill.states import State

Given = Mapping[str, Any]  # numbers by name; None: no limit

# Jobs in progress with each limit that counts them: their own, and their queue's.
_RUNNING = (
    "gm_job j JOIN gm_queue q ON q.id = j.queue_id JOIN gm_limit k ON k.id IN (j.limit_id, q.limit_id)"
    f" WHERE j.id {{in ids}} AND j.state = {State.IN_PROGRESS:d}"
)
_FIND = Sql("SELECT id, chosen FROM gm_limit WHERE name = :name AND key = :key {lock}")
_NAMES = Sql("SELECT DISTINCT name FROM gm_limit ORDER BY name")
_SET = Sql("UPDATE gm_limit SET chosen = :chosen WHERE id = :id")
_CLOSE = Sql("UPDATE gm_limit SET failures = 0, open_until = NULL WHERE id = :id AND open_until IS NOT NULL")
_ADD_FOR_QUEUE = Sql("INSERT INTO gm_limit (name, key) VALUES (:name, :key) ON CONFLICT DO NOTHING")
_LIMIT_QUEUE = Sql("UPDATE gm_queue SET limit_id = :id WHERE name = :queue")
_COUNT = Sql(
    f"INSERT INTO gm_permit (limit_id, job_id, in_line) SELECT k.id, j.id, {{false}} FROM {_RUNNING} ON CONFLICT DO NOTHING"
)
_IN_USE = Sql("SELECT DISTINCT p.limit_id FROM gm_permit p JOIN gm_limit k ON k.id = p.limit_id WHERE k.name = :name")
_COUNTED = (
    f"SELECT {limits.NUMBERS}, k.failures,"
    " k.open_until, {now} AS at, coalesce(p.line, 0) AS line, coalesce(p.running, 0) AS running, coalesce(w.n, 0) AS waiting"
    f" FROM {limits.WITH_RULE}"
    f" LEFT JOIN (SELECT p.limit_id, count(j.ready) AS line, count(CASE WHEN j.state = {State.IN_PROGRESS:d} THEN 1 END)"
    " AS running"
    " FROM gm_permit p JOIN gm_job j ON j.id = p.job_id GROUP BY p.limit_id) p ON p.limit_id = k.id"
    " LEFT JOIN (SELECT limit_id, count(*) AS n FROM gm_job WHERE run_at = {waiting} GROUP BY limit_id) w"
    " ON w.limit_id = k.id"
)
_LIST = Sql(
    f"{_COUNTED} WHERE (CAST(:name AS text) IS NULL OR k.name = :name) AND (CAST(:key AS text) IS NULL OR k.key = :key)"
    f" AND (k.name = '{OF_QUEUES}' OR k.key = '' OR :key IS NOT NULL OR k.chosen IS NOT NULL OR k.open_until IS NOT NULL"
    " OR coalesce(p.line, 0) + coalesce(p.running, 0) + coalesce(w.n, 0) > 0)"
    " ORDER BY k.name, CASE WHEN k.key = '' THEN 0 WHEN k.open_until IS NOT NULL THEN 1 ELSE 2 END, coalesce(w.n, 0) DESC,"
    " k.key LIMIT :most"
)
_OPEN = Sql(  # nearly always none: each is counted by itself
    f"SELECT {limits.NUMBERS}, k.failures, k.open_until, {{now}} AS at,"
    " (SELECT count(j.ready) FROM gm_permit p JOIN gm_job j ON j.id = p.job_id WHERE p.limit_id = k.id) AS line,"
    " (SELECT count(*) FROM gm_permit p JOIN gm_job j ON j.id = p.job_id WHERE p.limit_id = k.id"
    f" AND j.state = {State.IN_PROGRESS:d}) AS running,"
    " (SELECT count(*) FROM gm_job w WHERE w.run_at = {waiting} AND w.limit_id = k.id) AS waiting"
    f" FROM {limits.WITH_RULE} WHERE k.open_until > {{now}} ORDER BY k.name, k.key"
)


def open_circuits(tx: Tx) -> list[LimitState]:
    return [_state(row) for row in tx.all(_OPEN)]


def all_limits(tx: Tx, name: str | None = None, key: str | None = None, most: int = 1000) -> list[LimitState]:
    """Limits, and of each those keys that somebody works on, waits for, has set or must leave alone."""
    if name is not None:
        _check(tx, name)
    return [_state(row) for row in tx.all(_LIST, name=name, key=key, most=most)]


def _state(row: Any) -> LimitState:
    numbers = Numbers.of(row.declared, row.chosen, row.own)
    return LimitState(
        name=row.name,
        key=row.key,
        **numbers._asdict(),
        set_by="operator" if row.own or row.chosen else "application",
        running=row.running,
        ready=row.line,
        waiting=row.waiting,
        circuit=None if numbers.breaker is None else Breaker(row.failures, row.open_until).state(row.at),
        failures=row.failures,
        open_until=to_datetime(row.open_until),
    )


def _check(tx: Tx, name: str) -> None:
    names = [row.name for row in tx.all(_NAMES)]
    if name not in names:
        hint = did_you_mean(name, names) or "; a limit is there once a job of a task that declares it was asked for"
        raise NotFound(f"there is no limit {quoted(name)}{hint}")


def set_limit(tx: Tx, name: str, key: str, given: Given | None, *, by: str) -> None:
    """Sets numbers of a limit, or of one key of it (''-key: the limit); None: as the application says."""
    if name == OF_QUEUES:
        raise Refused(f"limits of queues are set with: queue set {key or 'QUEUE'}")
    _check(tx, name)
    if key:
        limits.keys_of(tx, tx.one(_FIND, name=name, key="").id, [key])
    row = tx.one(_FIND, name=name, key=key)
    chosen = None if given is None else _merged(row.chosen, given)
    tx.run(_SET, id=row.id, chosen=chosen)
    audit(tx, by, "limit.set", f"limit {name}{' ' + key if key else ''}", **(given or {"default": True}))
    tx.poke(row.id)
    for used in () if key else tx.all(_IN_USE, name=name):
        tx.poke(used.limit_id)
    tx.ring(DELAYED)  # keys of which everything waits are found by whoever keeps house


def _merged(chosen: str | None, given: Given) -> str:
    return orjson.dumps({**(orjson.loads(chosen) if chosen else {}), **given}).decode()


def close_circuit(tx: Tx, name: str, key: str, *, by: str) -> None:
    """Lets the jobs of a key go on that were held back after failures."""
    _check(tx, name)
    row = tx.one(_FIND, name=name, key=key)
    if row is None:
        raise NotFound(f"limit {quoted(name)} has no key {quoted(key)}; limit list {name} shows those in use")
    if not tx.run(_CLOSE, id=row.id):
        raise Refused(f"the circuit of {name} {key!r} is closed already")
    audit(tx, by, "limit.close", f"limit {name} {key}")
    tx.poke(row.id)


def limit_queue(tx: Tx, queue: str, given: Given, *, by: str) -> None:
    """Sets how many jobs of a queue may be in progress, or start per second. What is in progress counts; what is just
    being claimed is counted by its worker, when that sees the limit."""
    known = queues(tx)
    if queue not in known:
        raise NotFound(f"there is no queue {quoted(queue)}{did_you_mean(queue, known)}")
    tx.run(_ADD_FOR_QUEUE, name=OF_QUEUES, key=queue)
    row = tx.one(_FIND, name=OF_QUEUES, key=queue)
    chosen = _merged(row.chosen, given)
    tx.run(_SET, id=row.id, chosen=chosen)
    numbers = Numbers.of(chosen)
    limited = numbers.at_once is not None or numbers.per_second is not None
    tx.run(_LIMIT_QUEUE, queue=queue, id=row.id if limited else None)
    if limited:
        count_running(tx)
    audit(tx, by, "queue.set", f"queue {queue}", **given)
    tx.ring(known[queue])


def count_running(tx: Tx) -> None:
    """Counts jobs in progress that a limit does not know: their queue had none when they were claimed."""
    if ids := claimed_ids(tx):
        tx.run(_COUNT, ids=ids)


# ---- finding and mending what should not be

_UNKNOWN = (
    "NOT EXISTS (SELECT 1 FROM gm_permit p WHERE p.limit_id = k.id AND p.job_id = j.id)"
    f" AND {of('j.run_id')} ORDER BY j.id LIMIT :most"
)
_IN_LINE_WITHOUT = Sql(
    f"SELECT j.id, j.limit_id FROM gm_job j JOIN gm_limit k ON k.id = j.limit_id WHERE j.ready IS NOT NULL AND {_UNKNOWN}"
)
_RUNNING_WITHOUT = Sql(f"SELECT j.id, j.limit_id FROM {_RUNNING} AND {_UNKNOWN}")


def repair_permits(tx: Tx, mend: bool, quiet: int = 0, most: int = 1000, whose: Whose = ALL) -> list[Repair]:
    """Jobs in the line, or in progress, that their limit does not count."""
    in_line: Sequence[Any] = tx.all(_IN_LINE_WITHOUT, most=most, **whose._asdict())
    ids = claimed_ids(tx)
    running: Sequence[Any] = tx.all(_RUNNING_WITHOUT, ids=ids, most=most, **whose._asdict()) if ids else []
    if mend and in_line:
        tx.run(limits.STEP_BACK, ids=[row.id for row in in_line])
    if mend and running:
        tx.run(_COUNT, ids=[row.id for row in running])
    for limit in {row.limit_id for row in (*in_line, *running)} if mend else ():
        tx.poke(limit)  # their own; that of a queue is looked at by who claims
    found = [Repair("step back", f"job {row.id}", "in the line, but its limit does not know") for row in in_line]
    return found + [Repair("count", f"job {row.id}", "in progress, but its limit does not know") for row in running]
