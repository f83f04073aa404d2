"""The yardstick: the least that a loop over the same tables must do to add, claim and finish jobs, in one process.

One transaction per batch finishes the last batch, counts nothing else, and claims the next. No children, no checks.
Jobs are added by one COPY or executemany, all in one transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from gristmill.ledger.engines import sqlite_module
from gristmill.ledger.store import Ledger

BATCH = 500

_PICK = (
    "SELECT id FROM gm_job WHERE ready IS NOT NULL AND queue_id = {q} AND pool = 0 AND priority = 1 ORDER BY ready LIMIT {n}"
)
_SQLITE_CLAIM = (
    "UPDATE gm_job SET state = 1, ready = NULL, attempt = attempt + 1, worker_id = 1, started_at = 1 WHERE id IN ("
    + _PICK
    + ") RETURNING id, attempt, args"
)
_SQLITE_FINISH = (
    "UPDATE gm_job SET state = 2, result = '1', worker_id = NULL, finished_at = 1 WHERE id = ? AND attempt = ? AND state = 1"
)
_PG_CLAIM = (
    "UPDATE gm_job SET state = 1, ready = NULL, attempt = attempt + 1, worker_id = 1, started_at = 1 WHERE id = ANY(ARRAY("
    + _PICK
    + " FOR UPDATE SKIP LOCKED)) RETURNING id, attempt, args"
)
_PG_FINISH = (
    "UPDATE gm_job SET state = 2, result = f.result, worker_id = NULL, finished_at = 1"
    " FROM unnest(%s::bigint[], %s::int[], %s::text[]) AS f(job, attempt, result)"
    " WHERE gm_job.id = f.job AND gm_job.attempt = f.attempt AND state = 1"
)


def drain(ledger: Ledger, queue: int) -> float:
    """Jobs per second."""
    return _drain_sqlite(ledger, queue) if ledger.is_sqlite else _drain_postgres(ledger, queue)


def _drain_sqlite(ledger: Ledger, queue: int) -> float:
    connection = sqlite_module().connect(str(ledger.path), isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    claim = _SQLITE_CLAIM.format(q=queue, n=BATCH)
    jobs: list[Any] = []
    done, begun = 0, time.perf_counter()
    while True:
        connection.execute("BEGIN IMMEDIATE")
        if jobs:
            done += connection.executemany(_SQLITE_FINISH, [job[:2] for job in jobs]).rowcount
        jobs = connection.execute(claim).fetchall()
        connection.execute("COMMIT")
        if not jobs:
            break
    rate = done / (time.perf_counter() - begun)
    connection.close()
    return rate


def _drain_postgres(ledger: Ledger, queue: int) -> float:
    import psycopg

    url = ledger.url.set(drivername="postgresql").render_as_string(hide_password=False)
    claim = _PG_CLAIM.format(q=queue, n=BATCH)
    done = 0
    with psycopg.connect(url) as connection:
        connection.execute("SET enable_seqscan = off")
        connection.commit()
        jobs: list[Any] = []
        begun = time.perf_counter()
        while True:
            if jobs:
                columns = ([j[0] for j in jobs], [j[1] for j in jobs], ["1"] * len(jobs))
                done += connection.execute(_PG_FINISH, columns).rowcount
            jobs = connection.execute(claim).fetchall()
            connection.commit()
            if not jobs:
                break
        return done / (time.perf_counter() - begun)


# ---- adding ------------------------------------------------------------------------------------------------------

_COLUMNS = "task_id, queue_id, pool, priority, state, ready, created_at, args"


def fill(ledger: Ledger, task: int, queue: int, numbers: Sequence[int]) -> float:
    """Jobs per second, with the encoding of their arguments."""
    adding = _adding_sqlite if ledger.is_sqlite else _adding_postgres

    def rows(numbers: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        return ((task, queue, 0, 1, 0, number, 1, orjson.dumps({"number": number}).decode()) for number in numbers)

    with adding(ledger) as add:
        add(rows(range(10)))  # the connection and its statements are there, as they are for whom it is compared with
        begun = time.perf_counter()
        add(rows(numbers))
        return len(numbers) / (time.perf_counter() - begun)


Add = Callable[[Iterator[tuple[Any, ...]]], None]


@contextlib.contextmanager
def _adding_sqlite(ledger: Ledger) -> Iterator[Add]:
    connection = sqlite_module().connect(str(ledger.path), isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")

    def add(rows: Iterator[tuple[Any, ...]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(f"INSERT INTO gm_job ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")

    yield add
    connection.close()


@contextlib.contextmanager
def _adding_postgres(ledger: Ledger) -> Iterator[Add]:
    import psycopg

    url = ledger.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:

        def add(rows: Iterator[tuple[Any, ...]]) -> None:
            with connection.cursor().copy(f"COPY gm_job ({_COLUMNS}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            connection.commit()

        yield add
