"""`python -m bench.retention`: how much a worker loses while retention removes old jobs beside its claims.

Turns of a worker (100 jobs finished, 100 claimed, one commit), without and with the pruner's ticks between them, in windows
of a second that take turns. Reach: at least 90% of the rate without it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.core import Databases, Figure
from gristmill import Context, Mill, Retention, task
from gristmill.ledger import workers
from gristmill.ledger.claim import Claimed, Lane, Want
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.finish import Completed
from gristmill.ledger.workers import Registration
from gristmill.pruner import Pruner
from tests.servers import postgres_server

REACH = 0.9
TURN = 100  # jobs
HOUR = 3_600_000_000


@task(keep=Retention(age=60), queue="old")
def old(ctx: Context) -> None: ...


@task
def new(ctx: Context) -> None: ...


class Turns:
    """A worker's turns, as fast as they go, and what retention does between them."""

    def __init__(self, mill: Mill, queue: int) -> None:
        self.ledger = mill.ledger
        self.worker: int = self.ledger.do(workers.register, Registration("bench", 1, "never", (), 1, "bench"), HOUR)
        self.want = [Want(0, TURN, (Lane(queue, 0, 1),))]
        self.held: list[Claimed] = []
        self.claims: list[int] = []

    def turn(self) -> int:
        rows = [(job.id, job.attempt, None, 0) for job in self.held]
        batch = Batch(completed=Completed(rows, [job.kind.origin for job in self.held]), ended_claims=self.claims)
        done = self.ledger.do(exchange, self.worker, batch, self.want, {0: TURN})
        assert done.taken is not None
        self.held, self.claims = done.taken.jobs, [done.taken.claim] if done.taken.claim is not None else []
        assert self.held, "nothing left to claim: fill in more"
        return len(rows)

    def window(self, seconds: float, pruner: Pruner | None = None) -> float:
        """Jobs per second."""
        began, done, due = time.monotonic(), 0, 0.0
        while (now := time.monotonic()) < began + seconds:
            if pruner is not None and now >= due:
                due = now + pruner.tick(now)
            done += self.turn()
        return done / (time.monotonic() - began)


def fill(mill: Mill, jobs: int) -> None:
    """More than two windows take."""
    for _ in range(jobs // 5000):
        mill.enqueue_many(new, [{}] * 5000)


def figures(bases: Databases, kind: str, count: int, pairs: int) -> Iterator[Figure]:
    with bases.fresh(kind) as url, Mill.open(url, old, new) as mill:
        for _ in range(count // 5000):
            mill.enqueue_many(old, [{}] * 5000)
        with mill.ledger.engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE gm_job SET state = 2, ready = NULL, finished_at = created_at - {HOUR}")
            connection.exec_driver_sql(f"UPDATE gm_job SET created_at = created_at - {HOUR}")
        fill(mill, 200_000)
        turns = Turns(mill, mill._queue_id("default"))
        turns.window(1.0)
        pruner = mill.pruner()
        shares = []
        for pair in range(pairs):
            fill(mill, 300_000)
            beside = [None, pruner] if pair % 2 else [pruner, None]  # what filling left to do hits either as often
            rates = {each: turns.window(1.0, each) for each in beside}
            without, with_it = rates[None], rates[pruner]
            shares.append(with_it / without)
            print(f"   {kind}: {without:,.0f} → {with_it:,.0f} jobs/s, {pruner.record.jobs:,} removed", flush=True)
        share = statistics.median(shares)
        yield Figure("rate beside retention", kind, f"{share:.0%}", f"≥ {REACH:.0%}", share >= REACH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="old jobs")
    parser.add_argument("--pairs", type=int, default=9, help="windows without and with it")
    parser.add_argument("--only", choices=["SQLite", "PostgreSQL"])
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        bases = Databases(server, Path(folder))
        for kind in [options.only] if options.only else ["SQLite", "PostgreSQL"]:
            for figure in figures(bases, kind, options.count, options.pairs):
                missed += not figure.holds
                print(f"{'  ' if figure.holds else '✗ '}{figure.database:<11}{figure.name:<30}{figure.measured}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
