"""A ledger that has been at work for a year: what `bench.lists` fills, and all that it leaves out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from bench.api.app import ALL
from bench.lists import NOW, Filling, filled
from gristmill import Mill, Schedule
from gristmill.ledger.migrate import upgrade
from gristmill.ledger.store import Tx
from gristmill.rollup import MINUTE
from tests.servers import create_database, drop_database, postgres_server

_HOSTS = 1_000  # keys of a limit, each with jobs that wait
_SCHEDULES, _FIRES = 50, 200  # and of each, fire times that are kept
_AUDIT, _EVENTS = 50_000, 100_000  # entries, and events: as many as are kept
_RETRIED = 40  # one of so many jobs failed once before it completed

# Attempts that failed and were followed by another, of 300 causes; a few of them are ignored.
_ATTEMPTS = (
    "INSERT INTO gm_attempt (job_id, attempt, outcome, error_class, error, traceback, log, worker_id, started_at, ended_at,"
    " fingerprint) SELECT id, 0, 'error', CASE id / {retried} % 3 WHEN 0 THEN 'TimeoutError' WHEN 1 THEN 'OSError'"
    " ELSE 'KeyError' END, 'the server said ' || id, repeat('  File somewhere, line 1, in something' || chr(10), 20),"
    " 'one line of a log', 1, created_at, created_at + 500, lpad(to_hex(id / {retried} % 300), 12, 'e')"
    " FROM gm_job WHERE id % {retried} = 0 AND state = 2;"
    "INSERT INTO gm_ignored_error (fingerprint, at, who) SELECT lpad(to_hex(n), 12, 'e'), {now}, 'anna'"
    " FROM generate_series(1, 20) n"
)
_PEOPLE = (
    "INSERT INTO gm_audit (at, who, verb, target, detail) SELECT {now} - ({audit} - n) * 60000000::bigint,"
    " (ARRAY['anna', 'bob', 'cron (api)', 'eve (web)'])[1 + n % 4],"
    " (ARRAY['run.cancel', 'job.retry', 'queue.pause', 'queue.resume', 'error.ignore'])[1 + n % 5],"
    " 'run ' || n, '{{}}' FROM generate_series(1, {audit}) n;"
    "INSERT INTO gm_event (place, at, name, run_id, data) SELECT n, {now} - ({events} - n) * 500000::bigint, 'run',"
    ' n % 20000, \'{{"state": "in_progress"}}\' FROM generate_series(1, {events}) n;'
    "INSERT INTO gm_label (subject_id, key, value) SELECT id, 'town', 'town ' || id % 500 FROM gm_subject"
    " UNION ALL SELECT id, 'region', (ARRAY['north', 'south', 'east', 'west'])[1 + id % 4] FROM gm_subject;"
    "INSERT INTO gm_recovery (subject_id, at, what, run_id, items, detail) SELECT id, {now} - id * 1000000, 'repair',"
    ' last_run_id, 1, \'[["stage", "page", "a stage was open"]]\' FROM gm_subject WHERE id % 20 = 0'
)
# Minutes of two days, hours of a year, of every queue and task; of the last ten minutes by worker.
_MINUTES = (
    "INSERT INTO gm_minute (minute, worker_id, queue_id, task_id, completed, failed, retried, ran, waited, waits, ran_0,"
    " ran_2, waited_0, waited_4) SELECT m.minute, m.worker, p.n, p.n, 90, 1, 2, 1000000, 5000000, 90, 80, 11, 70, 20"
    " FROM generate_series(1, 5) AS p(n), (SELECT {minute} - n AS minute, 0 AS worker FROM generate_series(11, 2880) n"
    " UNION ALL SELECT {minute} / 60 * 60 - n * 60, 0 FROM generate_series(49, 24 * 365) n"
    " UNION ALL SELECT {minute} - n, 1001 + w FROM generate_series(0, 10) n, generate_series(0, 19) w) AS m"
    " ON CONFLICT DO NOTHING"
)
_EDGES = (
    "INSERT INTO gm_edge (upstream_id, downstream_id) SELECT u.id, d.id FROM gm_stage u JOIN gm_stage d"
    " ON d.run_id = u.run_id AND d.position = u.position + 1"
)
# What was written with numbers of its own must not be given out again.
_NUMBERS = "SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))"
_NUMBERED = ("gm_job", "gm_run", "gm_stage", "gm_subject", "gm_queue", "gm_task", "gm_worker", "gm_event")
_PLACES = "SELECT setval('gm_line', (SELECT coalesce(max(ready), 0) + 1 FROM gm_job))"


@dataclass(frozen=True)
class Place:
    """A filled database, and what can be found in it."""

    url: str
    runs: int  #: the last of them is under way
    subjects: int

    @property
    def failed(self) -> int:
        """A run with failed items that has ended."""
        return self.runs // 2 // 4 * 4


@contextlib.contextmanager
def place(quick: bool, keep: str | None = None) -> Iterator[Place]:
    """A database of 1,000,000 jobs (`quick`: 20,000). `keep`: this one, which is filled unless it is, and left there."""
    if keep is not None:
        upgrade(keep)
        yield _filled(keep, quick)
        return
    with postgres_server() as server:
        url = create_database(server)
        upgrade(url)
        try:
            yield _filled(url, quick)
        finally:
            drop_database(url)


def _filled(url: str, quick: bool) -> Place:
    scale = 0.02 if quick else 1.0
    with Mill.open(url, *ALL) as mill:
        runs = filled(mill, "PostgreSQL", scale)
        if not mill.schedules():
            mill.ledger.do(_numbers)
            mill.ledger.do(_rest)
            _schedules(mill, 5 if quick else _SCHEDULES)
            _limits(mill, 50 if quick else _HOSTS)
            with mill.ledger.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")
    return Place(url, runs, Filling(scale).subjects)


def _rest(tx: Tx) -> None:
    for text in (_ATTEMPTS, _PEOPLE, _MINUTES, _EDGES):
        tx.script(text.format(now=NOW, minute=NOW // MINUTE, retried=_RETRIED, audit=_AUDIT, events=_EVENTS))


def _numbers(tx: Tx) -> None:
    for table in _NUMBERED:
        tx.script(_NUMBERS.format(table=table))
    tx.script(_PLACES)


def _schedules(mill: Mill, count: int) -> None:
    for n in range(count):
        mill.add_schedule(Schedule(f"mail-{n:02}", cron=f"{n} 3 * * *", task="mail"))

    def fires(tx: Tx) -> None:
        tx.script(
            "INSERT INTO gm_fire (schedule_id, fire_at, at, outcome, job_id) SELECT s.id,"
            f" {NOW} - n * 86400000000, {NOW} - n * 86400000000, 'started', n"
            f" FROM gm_schedule s, generate_series(1, {_FIRES}) n"
        )

    mill.ledger.do(fires)


def _limits(mill: Mill, hosts: int) -> None:
    """Of each host ten jobs, of which two may be in progress; the circuit of every hundredth is open."""
    mill.enqueue_many("polite", [{"host": f"{n:04}.example"} for n in range(hosts) for _ in range(10)])
    mill.ledger.do(lambda tx: tx.script(f"UPDATE gm_limit SET failures = 9, open_until = {NOW + 10**10} WHERE id % 100 = 7"))
