"""What `doctor` looks at: whether the database and the machine are fit, each with what mends it.

Everything here is quick on a big ledger: statistics that the databases keep anyway, and looks that an index answers.
"""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.clock import SECOND, to_datetime
from gristmill.demand import Demand, all_of, least_lacking, options, pool_of
from gristmill.errors import DatabaseError
from gristmill.ledger import names, schedules
from gristmill.ledger.columns import REVISION
from gristmill.ledger.engines import sqlite_module
from gristmill.ledger.grants import purpose_of
from gristmill.ledger.locks import held_locks
from gristmill.ledger.serving import Worker, offers
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Ledger, Tx
from gristmill.model import Diagnosis
from gristmill.states import WorkerState

_SKEW = 2.0  # seconds
_LONG = 600  # seconds that a transaction may take
_DEAD = 100_000  # rows that are gone but not vacuumed, from which on it matters
_LATELY = 150  # seconds; enqueuers say every minute what their delivery is
_FREE = 256 << 20  # bytes that a disk must have left
_WAL = 1 << 30  # bytes of a write-ahead log that nobody could fold back
_LOOKED = 20_000  # failed jobs that are looked at: with more of them, these say enough

_NOW = Sql("SELECT {now}")
_WORKERS = Sql(
    "SELECT id, host, queues, delivery, slots, own_slots, labels, memory, lease_until < {now} AS silent,"
    " heartbeat_at - {now} AS ahead FROM gm_worker"
    f" WHERE state = {WorkerState.ACTIVE:d} ORDER BY id"
)
_WITH_JOBS = (
    "SELECT q.id, q.name FROM gm_queue q WHERE %s AND (EXISTS (SELECT 1 FROM gm_job WHERE ready IS NOT NULL"
    " AND queue_id = q.id) OR EXISTS (SELECT 1 FROM gm_job WHERE run_at <= {now} AND queue_id = q.id)) ORDER BY q.name"
)
_WAITING = Sql(_WITH_JOBS % "NOT q.paused")
_PAUSED = Sql(_WITH_JOBS % "q.paused")
_WAITING_IN = Sql("SELECT 1 FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool {in pools} LIMIT 1")
_OPEN_CIRCUITS = Sql(  # a key that nobody uses any more stays half open for ever, and nobody minds
    "SELECT name, key, failures FROM gm_limit l WHERE open_until IS NOT NULL AND (open_until > {now} OR EXISTS"
    " (SELECT 1 FROM gm_job WHERE limit_id = l.id AND run_at = {waiting})) ORDER BY name, key LIMIT 5"
)
# Who told workers of jobs last, and who did within some minutes: who has stopped does not matter any more.
_RINGERS = Sql(
    "SELECT q.name, r.delivery FROM gm_ringer r JOIN gm_queue q ON q.id = r.queue_id WHERE r.at >= {now} - :lately"
    " OR r.at = (SELECT max(at) FROM gm_ringer WHERE queue_id = r.queue_id) ORDER BY q.name, r.delivery"
)
_PARKED = Sql(
    "SELECT count(*) FROM (SELECT error_class FROM gm_job WHERE fingerprint IS NOT NULL LIMIT :most) AS failed"
    " WHERE error_class IN ('crash', 'memory', 'worker_lost')"
)
_MISSED = Sql(
    "SELECT m.job_id, m.error FROM gm_missed m JOIN gm_job j ON j.id = m.job_id AND j.finished_at = m.at"
    " ORDER BY m.job_id LIMIT :most"
)
_TRANSACTIONS = Sql(
    "SELECT pid, coalesce(application_name, '') AS name, extract(epoch FROM now() - xact_start)::bigint AS seconds"
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND xact_start < now() - :long * interval '1 second' ORDER BY xact_start LIMIT 5"
)
_PREPARED = Sql(
    "SELECT gid, extract(epoch FROM now() - prepared)::bigint AS seconds FROM pg_prepared_xacts"
    " WHERE database = current_database() AND prepared < now() - :long * interval '1 second' ORDER BY prepared LIMIT 5"
)
_TABLES = Sql(
    "SELECT relname, n_dead_tup AS dead, n_live_tup AS live FROM pg_stat_user_tables"
    " WHERE schemaname = current_schema() AND relname LIKE 'gm!_%' ESCAPE '!'"
    " AND n_dead_tup > :dead AND n_dead_tup > n_live_tup ORDER BY n_dead_tup DESC"
)
_AUTOVACUUM = Sql("SELECT setting FROM pg_settings WHERE name = 'autovacuum'")
_CONNECTIONS = Sql(
    "SELECT count(*) AS used, current_setting('max_connections')::bigint AS most FROM pg_stat_activity"
    " WHERE backend_type = 'client backend'"
)


def examine(ledger: Ledger) -> list[Diagnosis]:
    """Everything that was looked at, well or not, in the order in which it should be mended."""
    schema = _schema(ledger)
    found = [schema]
    if ledger.is_sqlite:
        found += _files(ledger)
    found += _disks(ledger)
    if not schema.ok:
        return found  # the rest is asked of its tables
    with ledger.reading() as tx:
        tx.by_key()  # a queue without jobs is found empty by an index, not by reading all jobs that there are
        found += _sqlite(tx, ledger) if ledger.is_sqlite else _postgres(tx)
        found += _ledger(tx, "this host's" if ledger.is_sqlite else "the database's")
        found += _schedules(tx)
    return found


def _schema(ledger: Ledger) -> Diagnosis:
    try:
        ledger.check_schema()
    except DatabaseError as error:
        newer = (ledger.revision() or "") > REVISION
        mend = ("pip", "install", "--upgrade", "gristmill") if newer else ("gristmill", "db", "upgrade")
        return Diagnosis("schema", False, str(error).partition("; ")[0], mend)
    return Diagnosis("schema", True, f"{ledger.revision()}; this code is made for {REVISION}")


# ---- what both have


def _ledger(tx: Tx, whose_clock: str) -> Iterator[Diagnosis]:
    workers = tx.all(_WORKERS)
    ahead = [worker for worker in workers if worker.ahead > _SKEW * SECOND]
    if ahead:
        first = ahead[0]
        said = f"worker {first.id} was heard of {first.ahead / SECOND:.0f} s in the future: {whose_clock} clock was set back"
        yield Diagnosis("heartbeats", False, said, ("timedatectl", "set-ntp", "true"))
    silent = [worker.id for worker in workers if worker.silent]
    said = (
        f"the lease of {_some(silent, 'worker')} is over, and nobody took its jobs" if silent else _count(workers, "worker")
    )
    yield Diagnosis("workers", not silent, said, ("gristmill", "reconcile") if silent else ())
    alive = [Worker.of(worker) for worker in workers if not worker.silent]
    classes = names.classes(tx)
    for row in tx.all(_WAITING):
        if not any(offers(alive, row.name, 0)):
            serve = ("work", "-q", row.name) if alive else ("up",)
            yield Diagnosis("queues", False, f"{row.name} has jobs, and no worker", ("gristmill", *serve))
        else:
            yield from _unfit(tx, row, alive, classes)
    for row in tx.all(_PAUSED):
        said = f"{row.name} is paused, and has jobs"
        yield Diagnosis("queues", False, said, ("gristmill", "queue", "resume", row.name))
    yield from _locks(tx)
    for row in tx.all(_OPEN_CIRCUITS):
        said = f"the circuit of {row.name} {row.key} is open after {row.failures} failures in a row: its jobs wait"
        yield Diagnosis("limits", False, said, ("gristmill", "limit", "list", row.name))
    yield from _delivery(tx, [worker for worker in workers if not worker.silent])
    parked: int = tx.value(_PARKED, most=_LOOKED)
    if parked:
        said = f"{parked:,} failed {'job has' if parked == 1 else 'jobs have'} killed the process, or the worker, too often"
        yield Diagnosis("crashes", False, said, ("gristmill", "error", "list"))
    if missed := tx.all(_MISSED, most=_LOOKED):
        many = "1 job" if len(missed) == 1 else f"{len(missed):,} jobs"
        said = f"an application's SQL failed when {many} ended; for job {missed[0].job_id}: {missed[0].error}"
        yield Diagnosis("on_terminal", False, said, ("gristmill", "reconcile"))


def _locks(tx: Tx) -> Iterator[Diagnosis]:
    """Somebody waits for very long: its holder hangs, perhaps."""
    before = to_datetime(tx.value(_NOW) - _LONG * SECOND)
    for lock in held_locks(tx):
        waiting = [user for user in lock.waiters if before is not None and user.since is not None and user.since < before]
        if waiting:
            who = f"{waiting[0].words} waits for the lock {lock.resource} for more than {_LONG // 60} min"
            yield Diagnosis("locks", False, f"{who}: {lock.holder.words} has it", ("gristmill", "lock", "list"))


def _unfit(tx: Tx, queue: Any, alive: Sequence[Worker], classes: Mapping[int, Demand]) -> Iterator[Diagnosis]:
    """Jobs of a queue that need what none of its workers has."""
    for number, demand in classes.items():
        pools = [pool_of(number), pool_of(number, True)]
        lacks = least_lacking(offers(alive, queue.name, pools[0]), demand)
        if lacks and tx.one(_WAITING_IN, queue=queue.id, pools=pools) is not None:
            said = f"{queue.name} has jobs, and no worker with {all_of(demand, lacks)}"
            yield Diagnosis("needs", False, said, ("gristmill", "work", "-q", queue.name, *options(demand)))


def _schedules(tx: Tx) -> Iterator[Diagnosis]:
    known = schedules.entries(tx)
    at = to_datetime(tx.value(_NOW))
    for entry in known:
        late = (at - entry.next_at).total_seconds() if at and entry.next_at else 0.0
        if entry.problem:
            yield Diagnosis("schedules", False, entry.problem, ("gristmill", "schedule", "list"))
        elif entry.late:
            target = f"task {entry.spec['task']}" if entry.spec["task"] else f"pipeline {entry.spec['pipeline']}"
            said = f"{entry.name} is overdue by {late / 60:.0f} min: no worker that knows {target} fires schedules"
            yield Diagnosis("schedules", False, said, ("gristmill", "up"))


def _delivery(tx: Tx, workers: list[Any]) -> Iterator[Diagnosis]:
    """Who rings one bell and listens to another is found only by polling."""
    for row in tx.all(_RINGERS, lately=_LATELY * SECOND):
        for worker in workers:
            if worker.delivery != row.delivery and any(offers([Worker.of(worker)], row.name, 0)):
                said = f"jobs in {row.name} are told of by {row.delivery}, worker {worker.id} listens to {worker.delivery}"
                said = f"{said}: stop that, or those who enqueue, and start them with the same"
                yield Diagnosis("delivery", False, said, ("gristmill", "work", "--delivery", row.delivery))
                return


def _some(numbers: list[int], what: str) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (" …" if len(numbers) > 5 else "")
    return f"{what}{'' if len(numbers) == 1 else 's'} {shown}"


def _count(rows: list[Any], what: str) -> str:
    return f"{len(rows)} {what}{'' if len(rows) == 1 else 's'} alive" if rows else f"no {what} is alive"


def _disks(ledger: Ledger) -> Iterator[Diagnosis]:
    """PostgreSQL does not tell what its disk has left; this host's matters all the same, to jobs."""
    folders = {"temporary files": Path(tempfile.gettempdir())}
    if ledger.is_sqlite:
        folders = {"the database": ledger.path.parent} | folders
    for what, folder in folders.items():
        free = shutil.disk_usage(folder).free
        said = f"{free / (1 << 30):,.1f} GiB left for {what} in {folder}"
        yield Diagnosis("disk", free >= _FREE, said, () if free >= _FREE else ("df", "-h", str(folder)))


# ---- SQLite


def _sqlite(tx: Tx, ledger: Ledger) -> Iterator[Diagnosis]:
    yield Diagnosis("sqlite", True, f"SQLite {sqlite_module().sqlite_version}")
    pages, free, size = (
        tx.value(Sql(f"SELECT {name} FROM pragma_{name}")) for name in ("page_count", "freelist_count", "page_size")
    )
    ok = free * size < _FREE or free * 2 < pages
    said = f"{free * size / (1 << 20):,.0f} of {pages * size / (1 << 20):,.0f} MiB of the file are empty"
    yield Diagnosis("bloat", ok, said, () if ok else ("sqlite3", str(ledger.path), "VACUUM"))
    wal = Path(f"{ledger.path}-wal")
    grown = wal.stat().st_size if wal.exists() else 0
    if grown > _WAL:
        said = f"the write-ahead log has {grown / (1 << 30):,.1f} GiB: some process reads for a long time"
        yield Diagnosis("transactions", False, said, ("fuser", "-v", str(wal)))


def _files(ledger: Ledger) -> Iterator[Diagnosis]:
    """Everyone who writes needs the folder and all files beside the database."""
    path = ledger.path
    wrong = [path.parent] if not os.access(path.parent, os.W_OK | os.X_OK) else []
    beside = [path, *(Path(f"{path}-{end}") for end in ("wal", "shm", "gate", "turn", "bells", "reconcile", "schedules"))]
    wrong += [file for file in beside if file.exists() and not os.access(file, os.R_OK | os.W_OK)]
    if wrong:
        names = [str(file) for file in wrong]
        yield Diagnosis(
            "permissions",
            False,
            f"{getpass.getuser()} may not write {', '.join(names)}",
            ("chown", getpass.getuser(), *names),
        )
    else:
        yield Diagnosis("permissions", True, f"{getpass.getuser()} may read and write {path} and what is beside it")


# ---- PostgreSQL


def _postgres(tx: Tx) -> Iterator[Diagnosis]:
    yield _clock(tx)
    purpose, lacks = purpose_of(tx)
    role = tx.value(Sql("SELECT current_user"))
    said = f"role {role} may {_MAY[purpose]}" if purpose else f"role {role} lacks {', '.join(lacks[:3])}"
    yield Diagnosis("permissions", purpose is not None, said, () if purpose else ("gristmill", "db", "grants", str(role)))
    yield from _vacuum(tx)
    used, most = tx.tuples(_CONNECTIONS)[0]
    ok = used < most * 0.9
    said = f"{used} of {most} connections are in use"
    yield Diagnosis("connections", ok, said, () if ok else ("psql", "-c", "TABLE pg_stat_activity"))


_MAY = {
    "worker": "work",
    "hand": "work, but remove no runs and jobs",
    "api": "start and change work, but not work itself",
    "reader": "read only",
}


def _clock(tx: Tx) -> Diagnosis:
    before = time.time()
    there = tx.value(Sql("SELECT extract(epoch FROM clock_timestamp())::float8"))
    after = time.time()
    skew = (before + after) / 2 - there
    ok = abs(skew) <= _SKEW + (after - before)
    said = f"this host's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the database's"
    return Diagnosis("clock", ok, said, () if ok else ("timedatectl", "set-ntp", "true"))


def _vacuum(tx: Tx) -> Iterator[Diagnosis]:
    """What keeps dead rows: with them every claim gets slower."""
    held = [
        (f"connection {row.pid} ({row.name or 'unnamed'})", row.seconds, f"SELECT pg_terminate_backend({row.pid})")
        for row in tx.all(_TRANSACTIONS, long=_LONG)
    ]
    held += [
        (f"prepared transaction {row.gid}", row.seconds, f"ROLLBACK PREPARED '{row.gid}'")
        for row in tx.all(_PREPARED, long=_LONG)
    ]
    for who, seconds, mend in held:
        said = f"{who} is in a transaction for {seconds // 60} min, which holds back vacuum"
        yield Diagnosis("transactions", False, said, ("psql", "-c", mend))
    if not held:
        yield Diagnosis("transactions", True, f"none is longer than {_LONG // 60} min")
    if tx.value(_AUTOVACUUM) != "on":
        said = "autovacuum is off: tables only grow"
        yield Diagnosis("bloat", False, said, ("psql", "-c", "ALTER SYSTEM SET autovacuum = on"))
    bloated = tx.all(_TABLES, dead=_DEAD)
    for row in bloated:
        said = f"{row.relname} has {row.dead:,} dead rows, and {row.live:,} live ones"
        yield Diagnosis("bloat", False, said, ("psql", "-c", f"VACUUM (ANALYZE) {row.relname}"))
    if not bloated:
        yield Diagnosis("bloat", True, "no table has more dead rows than live ones")
