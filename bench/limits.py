"""`python -m bench.limits`: what limits cost where they do not bind. 1,000 keys, two at once of each, against no limits.

Rounds are interleaved, so that both see the same machine; the ratio is that of each round. Afterwards the rows say whether
a third of a key ever ran. Jobs of half a millisecond are the figure; jobs that do nothing at all, where nothing but the
ledger is measured, are shown beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import apps
from bench.core import _LAST, Databases, Figure, ask, open_mill, rate, spread, wait_until_done, warm_workers
from gristmill import Mill, Task
from gristmill.ledger.sql import Sql
from tests.servers import postgres_server

KEYS = 1000
# By the claims: a job has its permit from before its start until after its end.
_INTERVALS = Sql("SELECT limit_id, started_at, finished_at FROM gm_job WHERE id > :after AND limit_id IS NOT NULL")


def drained(url: str, jobs: int, task: Task[Any, Any], workers: int) -> tuple[float, int]:
    """The rate, and how many of one key ran at once at most."""
    with open_mill(url) as mill, warm_workers(mill, url, workers, slots=2 // workers):
        before = ask(mill, _LAST)[0]
        mill.enqueue_many(task, ({"n": n % KEYS} for n in range(jobs)))
        wait_until_done(mill)
        return rate(mill, before), at_once(mill, before)


def at_once(mill: Mill, after: int) -> int:
    events: dict[int, list[tuple[int, int]]] = {}
    with mill.ledger.reading() as tx:
        for limit, started, finished in tx.tuples(_INTERVALS, after=after):
            events.setdefault(limit, []).extend([(started, 1), (finished, -1)])
    most = 0
    for moments in events.values():
        running = 0
        for _, change in sorted(moments):
            running += change
            most = max(most, running)
    return most


def compare(bases: Databases, kind: str, jobs: int, rounds: int, workers: int, work: bool) -> Figure:
    without, within = (apps.quick, apps.quick_keyed) if work else (apps.nothing, apps.keyed)
    free, limited, most = [], [], 0
    for _ in range(rounds):
        with bases.fresh(kind) as url:
            free.append(drained(url, jobs, without, workers)[0])
        with bases.fresh(kind) as url:
            speed, ran = drained(url, jobs, within, workers)
        limited.append(speed)
        most = max(most, ran)
    ratio = statistics.median(a / b for a, b in zip(limited, free, strict=True))
    told = f"{ratio:.0%} ({spread(limited)} against {spread(free)} jobs/s), at most {most} of a key at once"
    what = "jobs of 0.5 ms" if work else "jobs that do nothing"
    name = f"{KEYS:,} keys with limits of 2, {jobs:,} {what}, {workers} worker{'s' if workers > 1 else ''}"
    reach = 0.7 if work else 0.0
    return Figure(name, kind, told, "≥ 70%, ≤ 2" if work else "shown, ≤ 2", ratio >= reach and most <= 2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--database", choices=["SQLite", "PostgreSQL"], help="only this one")
    parser.add_argument("--quick", action="store_true", help="smaller numbers, one round")
    parser.add_argument("--workers", type=int, default=1, choices=[1, 2])
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder, postgres_server() as server:
        bases = Databases(server, Path(folder))
        for kind in [options.database] if options.database else ["SQLite", "PostgreSQL"]:
            jobs, rounds = (10_000, 1) if options.quick else (20_000, 3)
            for work in (True, False):
                figure = compare(bases, kind, jobs, rounds, options.workers, work)
                failed += not figure.holds
                mark = "holds" if figure.holds else "FAILS"
                print(f"{mark}  {figure.name} · {figure.database}: {figure.measured}  (reach: {figure.reach})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
