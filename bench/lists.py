"""`python -m bench.lists`: status, watch and every list, with each filter, on a ledger of 1,000,000 jobs.

5,000 subjects with four runs each; filters that find much, little and nothing. Reach: 200 ms each. `--keep URL` fills a
database (or uses one that is filled) and leaves it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from bench.core import Databases, Figure
from bench.subjects import timed
from gristmill import Context, Mill, Pipeline, task
from gristmill.cli.status import Active
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from tests.servers import postgres_server

REACH_MS = 200.0
NOW = time.time_ns() // 1000
MINUTE, DAY = 60_000_000, 86_400_000_000
SUBJECTS, RUNS = 5_000, 4  # of each subject
ITEMS = 40  # of a run; with its first and its last job 42

site = Pipeline("site")


@site.stage(queue="find")
def find(ctx: Context) -> None: ...


@site.stage(after=find, each=True, queue="page")
def page(ctx: Context) -> None: ...


@site.stage(after=page, queue="total")
def total(ctx: Context) -> None: ...


@task(queue="mail")
def mail(ctx: Context) -> None: ...


@task(queue="rare")
def rare(ctx: Context) -> None: ...


_NAMES = (
    "INSERT INTO gm_queue (id, name) VALUES (1, 'find'), (2, 'page'), (3, 'total'), (4, 'mail'), (5, 'rare'), (6, 'none')",
    "INSERT INTO gm_task (id, name, spec) VALUES (1, 'site.find', '{}'), (2, 'site.page', '{}'), (3, 'site.total', '{}'),"
    " (4, 'mail', '{}'), (5, 'rare', '{}')",
)
_SUBJECTS = Sql(
    "INSERT INTO gm_subject (id, pipeline, name, created_at, last_run_id, last_state, last_run_at, last_good_at)"
    " SELECT f.id, 'site', f.name, f.at, f.run, f.state, f.at, f.at"
    " FROM {rows f: id bigint, name text, at bigint, run bigint, state smallint} WHERE true"
)
_RUNS = Sql(
    "INSERT INTO gm_run (id, subject_id, pipeline, priority, state, args, created_at, started_at, finished_at)"
    " SELECT f.id, f.subject, 'site', 1, f.state, '{}', f.at, f.at, f.ended"
    " FROM {rows f: id bigint, subject bigint, state smallint, at bigint, ended bigint} WHERE true"
)
_STAGES = Sql(
    "INSERT INTO gm_stage (id, run_id, name, position, task_id, queue_id, pool, each, gate, need_count, waiting_for, state,"
    " outcome, total, completed, failed, skipped, opened_at, closed_at)"
    " SELECT f.id, f.run, f.name, f.place, f.place, f.place, 0, f.each, {false}, 1, 0, f.state, f.outcome, f.total,"
    " f.completed, f.failed, f.skipped, f.at, f.at FROM {rows f: id bigint, run bigint, name text, place smallint,"
    " each boolean, state smallint, outcome smallint, total bigint, completed bigint, failed bigint, skipped bigint,"
    " at bigint} WHERE true"
)
_JOBS = Sql(
    "INSERT INTO gm_job (id, run_id, stage_id, key, ready, run_at, worker_id, created_at, started_at, finished_at, task_id,"
    " queue_id, attempt, pool, priority, state, errors, args, result, error, error_class, fingerprint)"
    " SELECT f.id, f.run, f.stage, f.key, f.ready, f.run_at, f.worker, f.at, f.at, f.ended, f.kind, f.kind, 1, 0, 1,"
    " f.state, 0, f.args, f.result, f.error, f.class, f.fingerprint FROM {rows f: id bigint, run bigint, stage bigint,"
    " key text, ready bigint, run_at bigint, worker bigint, at bigint, ended bigint, kind integer, state smallint,"
    " args text, result text, error text, class text, fingerprint text} WHERE true"
)
_ATTEMPTS = Sql(
    "INSERT INTO gm_attempt (job_id, attempt, outcome, error_class, error, traceback, worker_id, started_at, ended_at,"
    " fingerprint) SELECT f.job, 1, 'error', 'ValueError', f.error, f.trace, 1, f.at, f.at, f.fingerprint"
    " FROM {rows f: job bigint, error text, trace text, at bigint, fingerprint text} WHERE true"
)
_WORKERS = Sql(
    "INSERT INTO gm_worker (id, host, pid, born, queues, slots, version, state, registered_at, heartbeat_at, lease_until)"
    " SELECT f.id, 'host', f.id, '-', '[]', 4, '0', f.state, f.at, f.at, f.at + 86400000000"
    " FROM {rows f: id bigint, state smallint, at bigint} WHERE true"
)
_CLAIMS = Sql(
    "INSERT INTO gm_claim (worker_id, jobs) SELECT f.worker, f.jobs FROM {rows f: worker bigint, jobs text} WHERE true"
)
_TRACE = "Traceback\n" + "  File somewhere, line 1, in something\n" * 20
_QUEUED, _RUNNING, _DONE, _FAILED, _CANCELLED, _SKIPPED = 0, 1, 2, 4, 5, 6


class Filling:
    """Runs in the order of their numbers. The last run of every fifth subject is under way, a tenth of it failed before."""

    def __init__(self, scale: float) -> None:
        self.subjects = max(50, int(SUBJECTS * scale))
        self.runs = self.subjects * RUNS
        self.job = self.stage = self.held = 0

    def names(self, tx: Tx) -> None:
        for statement in _NAMES:
            tx.script(statement)
        tx.run(_WORKERS, f=[(n, 0 if n > 1000 else 2, NOW) for n in range(1, 1021)])
        last = self.runs - self.subjects
        rows = [
            (n, f"subject {n:05}", NOW - n * MINUTE, last + n, 4 if n % 50 == 0 else 2) for n in range(1, self.subjects + 1)
        ]
        tx.run(_SUBJECTS, f=rows)

    def batch(self, tx: Tx, first: int, last: int) -> None:
        runs, stages, jobs, attempts, claims = [], list[Any](), list[Any](), list[Any](), list[Any]()
        for run in range(first, last):
            at = NOW - (self.runs - run) * 2 * MINUTE
            active = run > self.runs - self.subjects and run % 5 == 0
            runs.append(
                (
                    run,
                    (run - 1) % self.subjects + 1,
                    _RUNNING if active else 4 if run % 50 == 1 else 2,
                    at,
                    None if active else at,
                )
            )
            failed = 2 if run % 4 == 0 else 0
            open_ = 25 if active else 0
            shape = [
                ("find", 1, False, 3, 1, 1, 0, 0),
                ("page", 2, True, 2 if active else 3, ITEMS, ITEMS - failed - open_ - 1, failed, 1),
                *([] if active else [("total", 3, False, 3, 1, 1, 0, 0)]),
            ]
            for name, place, each, state, total_, completed, failed_, skipped in shape:
                self.stage += 1
                outcome = None if state == 2 else 2
                stages.append((self.stage, run, name, place, each, state, outcome, total_, completed, failed_, skipped, at))
                for n in range(total_):
                    self.add(
                        jobs,
                        attempts,
                        claims,
                        at,
                        run,
                        self.stage,
                        f"{n:05}" if each else "",
                        place,
                        active and each,
                        n,
                        failed_,
                    )
            for n in range(50 if active else 7):
                self.add(jobs, attempts, claims, at, None, None, None, 4, False, n, 0)
        tx.run(_RUNS, f=runs)
        tx.run(_STAGES, f=stages)
        tx.run(_JOBS, f=jobs)
        tx.run(_ATTEMPTS, f=attempts) if attempts else None
        tx.run(_CLAIMS, f=claims) if claims else None

    def add(
        self,
        jobs: Any,
        attempts: Any,
        claims: Any,
        at: int,
        run: Any,
        stage: Any,
        key: Any,
        kind: int,
        active: bool,
        n: int,
        failed: int,
    ) -> None:
        self.job += 1
        ended: int | None = at + 1000
        state, ready, run_at, worker, error, print_ = _DONE, None, None, None, None, None
        if n < failed:
            state, print_ = _FAILED, f"{self.job % 97:012x}"
            error = f"ValueError: number {n}"
            attempts.append((self.job, error, _TRACE, at, print_))
        elif stage is not None and kind == 2 and n == failed:
            state = _SKIPPED
        elif active and n >= 15:
            ended = None
            if n == 39 and self.held < 80:
                self.held += 1
                state, worker = _RUNNING, 1001 + self.held % 20
                claims.append((worker, f"[{self.job}]"))
            elif n >= 35:
                state, run_at = _QUEUED, at + 365 * DAY
            else:
                state, ready = _QUEUED, self.job
        if 1000 <= self.job < 1100 and state == _DONE:  # long ago, and nothing like it since
            state, kind = _CANCELLED, kind if stage else 5
        jobs.append(
            (
                self.job,
                run,
                stage,
                key,
                ready,
                run_at,
                worker,
                at,
                ended,
                kind,
                state,
                '{"path": "a/file/somewhere.pdf"}',
                '{"pages": 12}' if state == _DONE else None,
                error,
                "ValueError" if error else None,
                print_,
            )
        )


def queries(mill: Mill, runs: int) -> dict[str, Callable[[], Any]]:
    now = datetime.now(UTC)
    common = mill.errors(limit=1)[0].fingerprint
    hour, long_ago = now - timedelta(hours=1), now - timedelta(days=3650)
    found: dict[str, Callable[[], Any]] = {
        "status": mill.status,
        "watch": Active(mill),
        "watch one": lambda: [mill.run(runs)],
        "queue list": mill.queues,
        "worker list": mill.workers,
        "worker list, all": lambda: mill.workers(every=True),
        "run list": mill.runs,
        "run list, a subject": lambda: mill.runs(subject="subject 00017"),
        "run list, no such subject": lambda: mill.runs(subject="nobody"),
        "run list, no such pipeline": lambda: mill.runs(pipeline="nothing"),
        "run list, last hour": lambda: mill.runs(since=hour),
        "job list": mill.jobs,
        "job list, limit 1000": lambda: mill.jobs(limit=1000),
        "job list, a run": lambda: mill.jobs(run=runs // 2),
        "job list, a run's failed": lambda: mill.jobs(run=runs // 4 * 4, state="failed"),
        "job list, last hour": lambda: mill.jobs(since=hour),
        "job list, last hour, failed": lambda: mill.jobs(since=hour, state="failed"),
        "job list, ten years, cancelled": lambda: mill.jobs(since=long_ago, state="cancelled"),
        "job list, a subject": lambda: mill.jobs(subject="subject 00017"),
        "job list, a subject's failed": lambda: mill.jobs(subject="subject 00020", state="failed"),
        "job list, no such subject": lambda: mill.jobs(subject="nobody"),
        "job list, no such stage": lambda: mill.jobs(stage="nothing"),
        "job list, no such task": lambda: mill.jobs(task="nothing"),
        "job list, a rare queue": lambda: mill.jobs(queue="rare"),
        "job list, an empty queue": lambda: mill.jobs(queue="none"),
        "job list, a rare task": lambda: mill.jobs(task="rare"),
        "job list, queue and failed": lambda: mill.jobs(queue="page", state="failed"),
        "job list, queue and failed (none)": lambda: mill.jobs(queue="mail", state="failed"),
        "job list, stage and cancelled": lambda: mill.jobs(stage="page", state="cancelled"),
        "subject list": mill.subjects,
        "error list": mill.errors,
        "error list, a queue": lambda: mill.errors(queue="page"),
        "error list, last hour": lambda: mill.errors(since=hour),
        "error show": lambda: [mill.error(common)],
    }
    for state in ("queued", "in_progress", "completed", "completed_with_errors", "failed", "cancelled", "skipped"):
        found[f"job list, {state}"] = partial(mill.jobs, state=state)
    for state in ("queued", "in_progress", "waiting", "completed", "completed_with_errors", "failed", "cancelled"):
        found[f"run list, {state}"] = partial(mill.runs, state=state)
    for queue in ("find", "page", "total", "mail"):
        found[f"job list, queue {queue}"] = partial(mill.jobs, queue=queue)
    for stage in ("find", "page"):
        found[f"job list, stage {stage}"] = partial(mill.jobs, stage=stage)
    for state in ("in_progress", "failed", "cancelled"):
        found[f"subject list, {state}"] = partial(mill.subjects, state=state)
    return found


def filled(mill: Mill, kind: str, scale: float) -> int:
    filling = Filling(scale)
    if mill.runs(limit=1):
        return filling.runs
    mill.ledger.do(filling.names)
    for first in range(1, filling.runs + 1, 200):
        mill.ledger.do(filling.batch, first, min(first + 200, filling.runs + 1))
    if kind == "PostgreSQL":  # which does it by itself after a while; SQLite never does
        with mill.ledger.engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
            connection.commit()
    return filling.runs


def figures(mill: Mill, kind: str, scale: float, only: str) -> Iterator[Figure]:
    runs = filled(mill, kind, scale)
    for name, query in queries(mill, runs).items():
        if only not in name:
            continue
        found = query()
        rows = len(found) if isinstance(found, list | tuple) else 1
        taken = [timed(query) for _ in range(7)]
        middle, worst = statistics.median(taken), max(taken)
        yield Figure(f"{name} ({rows})", kind, f"{middle:.1f} ms (to {worst:.1f})", f"{REACH_MS:.0f} ms", middle <= REACH_MS)


@contextlib.contextmanager
def database(kind: str, keep: str | None) -> Iterator[str]:
    if keep:
        yield keep
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_server() as server,
        Databases(server, Path(folder)).fresh(kind) as url,
    ):
        yield url


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1: 1,000,000 jobs")
    parser.add_argument("--only", choices=["SQLite", "PostgreSQL"])
    parser.add_argument("--keep", metavar="URL", help="use this database, and leave it; with --only")
    parser.add_argument("--query", default="", metavar="TEXT", help="only those whose name has this in it")
    options = parser.parse_args()
    missed = 0
    for kind in [options.only] if options.only else ["SQLite", "PostgreSQL"]:
        with database(kind, options.keep) as url, Mill.open(url, site, mail, rare) as mill:
            for figure in figures(mill, kind, options.scale, options.query):
                missed += not figure.holds
                print(f"{'  ' if figure.holds else '✗ '}{figure.database:<11}{figure.name:<46}{figure.measured}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
