"""`python -m bench.scale`: what a second worker adds, with the database's own delivery on PostgreSQL.

One worker with one child against two of them, in rounds that take turns, so that both see the same machine. Jobs that do
some work of their own, as real ones do, and jobs that do nothing. On two cores the server shares them with the workers:
jobs that do nothing keep it and one supervisor busy most of the time. On a machine that others use: `chrt -f 50`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import apps
from bench.core import _LAST, Databases, Figure, ask, open_mill, rate, spread, wait_until_done, warm_workers
from gristmill.pipeline import Task
from tests.servers import postgres_server

REACH = 1.5


def drained(bases: Databases, task: Task[..., object], jobs: int, workers: int) -> float:
    """Jobs per second of so many workers with a child each."""
    with bases.fresh("PostgreSQL") as url, open_mill(url) as mill, warm_workers(mill, url, workers, slots=1):
        mill.enqueue_many(task, ({"n": n} for n in range(100 * workers)))
        wait_until_done(mill)
        before = ask(mill, _LAST)[0]
        mill.enqueue_many(task, ({"n": n} for n in range(jobs)))
        wait_until_done(mill)
        return rate(mill, before)


def figures(bases: Databases, rounds: int) -> Iterator[Figure]:
    for task, jobs, what, reach in (
        (apps.some_work, 2000, "jobs of 2 ms of work", REACH),
        (apps.nothing, 50_000, "jobs that do nothing", None),
    ):
        one, two = [], []
        for _ in range(rounds):
            one.append(drained(bases, task, jobs, 1))
            two.append(drained(bases, task, jobs, 2))
            print(f"   {what}: {one[-1]:,.0f} → {two[-1]:,.0f} jobs/s", flush=True)
        ratio = statistics.median(b / a for a, b in zip(one, two, strict=True))
        told = f"{ratio:.2f} × ({spread(one)} → {spread(two)}/s)"
        wanted = f"≥ {reach}" if reach else "shown"
        yield Figure(f"2 workers, {what}", "PostgreSQL", told, wanted, not reach or ratio >= reach)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        for figure in figures(Databases(server, Path(folder)), options.rounds):
            missed += not figure.holds
            print(f"{'  ' if figure.holds else '✗ '}{figure.name:<34}{figure.measured:<44}{figure.reach}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
