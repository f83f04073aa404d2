"""`python -m bench.subjects`: pages of subjects out of 100,000, by every filter, on SQLite and PostgreSQL.

A page of 50, at the beginning, and where the filter finds next to nothing. Reach: 100 ms each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.core import Databases, Figure
from gristmill import Context, Mill, Pipeline
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from tests.servers import postgres_server

REACH_MS = 100.0
NOW = time.time_ns() // 1000
HOUR = 3_600_000_000

site = Pipeline("site")


@site.stage
def work(ctx: Context) -> None: ...


_SUBJECTS = Sql(
    'INSERT INTO gm_subject (id, pipeline, name, created_at, "interval", last_run_id, last_state, last_run_at,'
    " last_good_run_id, last_good_at) SELECT f.id, f.pipeline, f.name, f.at, f.gap, f.id, f.state, f.ended, f.good,"
    " f.good_at FROM {rows f: id bigint, pipeline text, name text, at bigint, gap bigint, state smallint, ended bigint,"
    " good bigint, good_at bigint} WHERE true"
)
_RUNS = Sql(
    "INSERT INTO gm_run (id, subject_id, pipeline, priority, state, args, created_at, finished_at)"
    " SELECT f.id, f.subject, f.pipeline, 1, f.state, '{}', f.at, f.ended"
    " FROM {rows f: id bigint, subject bigint, pipeline text, state smallint, at bigint, ended bigint} WHERE true"
)
_LABELS = Sql(
    "INSERT INTO gm_label (subject_id, key, value) SELECT f.id, f.key, f.value"
    " FROM {rows f: id bigint, key text, value text} WHERE true"
)


def fill(tx: Tx, first: int, last: int, count: int) -> None:
    """One in 100 failed, one in 1,000 is active, the last five are rare in every way; ages spread over 1,000 hours."""
    subjects, labels = [], []
    runs: list[tuple[int, int, str, int, int, int | None]] = []
    for n in range(first, last):
        rare = n > count - 5
        state = 4 if n % 100 == 0 else 2
        ended = NOW - (n * 7919 % 1000 + (10_000 if rare else 0)) * HOUR
        pipeline = "rare" if rare else "site" if n % 2 else "other"
        subjects.append((n, pipeline, f"subject {n:06}", ended, None, state, ended, n, ended))
        runs.append((n, n, pipeline, state, ended, ended))
        if n % 1000 == 0:
            runs.append((count + n, n, pipeline, 1, ended, None))
        labels += [(n, "tier", "gold" if n % 2 else "silver"), (n, "town", f"town {n % 500}")]
        if rare:
            labels.append((n, "rare", "yes"))
    tx.run(_SUBJECTS, f=subjects)
    tx.run(_RUNS, f=runs)
    tx.run(_LABELS, f=labels)


def queries(mill: Mill, count: int) -> dict[str, Callable[[], list[Any]]]:
    return {
        "first page": lambda: mill.subjects(),
        "a page in the middle": lambda: mill.subjects(after=count // 2),
        "one of two pipelines": lambda: mill.subjects(pipeline="other"),
        "a rare pipeline": lambda: mill.subjects(pipeline="rare"),
        "a label of half of them": lambda: mill.subjects(label="tier=gold"),
        "the same, a page in the middle": lambda: mill.subjects(label="tier=gold", after=count // 2),
        "a label of one in 500": lambda: mill.subjects(label="town=town 7"),
        "a rare label": lambda: mill.subjects(label="rare"),
        "two labels": lambda: mill.subjects(label=["tier=gold", "town=town 7"]),
        "stale for 500 h": lambda: mill.subjects(stale_for=500 * 3600),
        "stale for 10,000 h (few)": lambda: mill.subjects(stale_for=10_000 * 3600),
        "failed last": lambda: mill.subjects(state="failed"),
        "cancelled last (none)": lambda: mill.subjects(state="cancelled"),
        "in progress": lambda: mill.subjects(state="in_progress"),
        "stale, failed, pipeline, label": lambda: mill.subjects(
            stale_for=500 * 3600, state="failed", pipeline="other", label="tier=silver"
        ),
        "stale, failed, rare label": lambda: mill.subjects(stale_for=500 * 3600, state="failed", label="rare"),
    }


def figures(bases: Databases, kind: str, count: int) -> Iterator[Figure]:
    with bases.fresh(kind) as url, Mill.open(url, site) as mill:
        for first in range(1, count + 1, 10_000):
            mill.ledger.do(fill, first, min(first + 10_000, count + 1), count)
        if kind == "PostgreSQL":  # which does it by itself after a while; SQLite never does
            with mill.ledger.engine.connect() as connection:
                connection.exec_driver_sql("ANALYZE")
                connection.commit()
        for name, query in queries(mill, count).items():
            rows = len(query())
            taken = [timed(query) for _ in range(9)]
            middle, worst = statistics.median(taken), max(taken)
            yield Figure(
                f"{name} ({rows})", kind, f"{middle:.1f} ms (to {worst:.1f})", f"{REACH_MS:.0f} ms", middle <= REACH_MS
            )


def timed(query: Callable[[], object]) -> float:
    began = time.perf_counter()
    query()
    return (time.perf_counter() - began) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--only", choices=["SQLite", "PostgreSQL"])
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        bases = Databases(server, Path(folder))
        for kind in [options.only] if options.only else ["SQLite", "PostgreSQL"]:
            for figure in figures(bases, kind, options.count):
                missed += not figure.holds
                print(f"{'  ' if figure.holds else '✗ '}{figure.database:<11}{figure.name:<42}{figure.measured}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
