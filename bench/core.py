"""`./run bench-core`: the engine against the raw loop over the same tables, on SQLite and PostgreSQL, in one run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from bench import apps, raw
from gristmill import Mill
from gristmill.ledger import claim, workers
from gristmill.ledger.claim import Lane, Want
from gristmill.ledger.migrate import upgrade
from gristmill.ledger.sql import Sql
from tests.servers import create_database, drop_database, postgres_server

ROOT = Path(__file__).parent.parent


@dataclass
class Figure:
    """One line of the table."""

    name: str
    database: str
    measured: str
    reach: str
    holds: bool


class Databases:
    """Fresh databases of both kinds."""

    def __init__(self, server: str, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.made = 0

    @contextlib.contextmanager
    def fresh(self, kind: str) -> Iterator[str]:
        self.made += 1
        if kind == "SQLite":
            yield f"sqlite:///{self.folder}/bench{self.made}.db"
            for path in self.folder.glob(f"bench{self.made}.db*"):
                if path.is_file():
                    path.unlink()
            return
        url = create_database(self.server)
        upgrade(url)
        yield url
        drop_database(url)


def open_mill(url: str) -> Mill:
    return Mill.open(url, apps.nothing, apps.some_work, *apps.KEYED, apps.stamp, apps.fan)


_WORKER = """
import sys
from bench import apps
from gristmill import Mill
with Mill.open(sys.argv[1], apps.nothing, apps.some_work, *apps.KEYED, apps.stamp, apps.fan) as mill:
    mill.work(until=sys.argv[2] or None, slots=int(sys.argv[3]))
"""


def worker(url: str, until: str = "idle", slots: int = 2) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _WORKER, url, until, str(slots)], cwd=ROOT)


_SPAN = Sql("SELECT count(*), max(finished_at) - min(started_at) FROM gm_job WHERE state = 2 AND id > :after")
_LAST = Sql("SELECT coalesce(max(id), 0) FROM gm_job")
_WAITING = Sql(
    "SELECT count(*) FROM (SELECT 1 FROM gm_job WHERE ready IS NOT NULL AND queue_id IN (SELECT id FROM gm_queue) LIMIT 1) w"
)
_HELD = Sql("SELECT (SELECT count(*) FROM gm_claim) + (SELECT count(*) FROM gm_run WHERE finished_at IS NULL)")
_LEFT = Sql("SELECT count(*) FROM gm_job WHERE state < 2")


def ask(mill: Mill, sql: Sql, **values: int) -> Any:
    with mill.ledger.reading() as tx:
        tx.by_key()
        return tx.one(sql, **values)


def rate(mill: Mill, after: int = 0) -> float:
    """Jobs per second, from the first start to the last end, as the rows say."""
    jobs, span = ask(mill, _SPAN, after=after)
    return float(jobs) / max(int(span), 1) * 1e6


@contextlib.contextmanager
def warm_workers(mill: Mill, url: str, count: int = 1, slots: int = 2) -> Iterator[None]:
    """Workers whose children have started and know what these jobs take."""
    processes = [worker(url, until="", slots=slots) for _ in range(count)]
    for n in range(4):
        mill.enqueue_many(apps.nothing, ({"n": n} for n in range(1000 * count)))
        for m in range(2 * count):
            mill.start("fan", f"warm {n} {m}", args={"items": 20})
        wait_until_done(mill)
    yield
    for process in processes:
        process.terminate()
        process.wait()


def wait_until_done(mill: Mill) -> None:
    """Looks seldom and cheaply, since it takes time from what is measured."""
    while ask(mill, _WAITING)[0] or ask(mill, _HELD)[0] or ask(mill, _LEFT)[0]:
        time.sleep(0.2)


def drained(url: str, jobs: int, count: int = 1, slots: int = 2) -> float:
    """The rate at which `count` workers drain this many jobs on their own, which appear all at once."""
    with open_mill(url) as mill, warm_workers(mill, url, count, slots):
        before = ask(mill, _LAST)[0]
        mill.enqueue_many(apps.nothing, ({"n": n} for n in range(jobs)))
        wait_until_done(mill)
        return rate(mill, before)


def raw_rate(url: str, jobs: int) -> float:
    with open_mill(url) as mill:
        mill.enqueue_many(apps.nothing, ({"n": n} for n in range(jobs)))
        return raw.drain(mill.ledger, mill._queue_id("bench"))


def drain(bases: Databases, kind: str, quick: bool) -> Iterator[Figure]:
    jobs = 10_000 if quick else 50_000
    ours, theirs = [], []
    for _ in range(1 if quick else 5):
        with bases.fresh(kind) as url:
            theirs.append(raw_rate(url, jobs))
        with bases.fresh(kind) as url:
            ours.append(drained(url, jobs))
    mine, loop = statistics.median(ours), statistics.median(theirs)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))  # of rounds: both saw the same machine
    reach = 0.5 if kind == "SQLite" else 0.6
    told = f"{mine:,.0f}/s = {ratio:.0%} of the raw loop's {loop:,.0f}/s (rounds {spread(ours)} against {spread(theirs)})"
    yield Figure(f"drain of {jobs:,}, 2 children", kind, told, f"≥ {reach:.0%}", ratio >= reach)
    if kind != "SQLite":
        with bases.fresh(kind) as url:
            two = drained(url, jobs, count=2, slots=1)
        yield Figure(f"drain of {jobs:,}, 2 workers", kind, f"{two:,.0f}/s = {two / mine:.2f} × one worker", "shown", True)


def spread(values: list[float]) -> str:
    return "–".join(f"{v / 1000:.1f}k" for v in (min(values), max(values)))


def fan(bases: Databases, kind: str, quick: bool) -> Iterator[Figure]:
    items = 10_000
    ratios = []
    for _ in range(1 if quick else 9):  # a round takes a fifth of a second: one alone says little
        with bases.fresh(kind) as url:
            plain = drained(url, items)
        with bases.fresh(kind) as url, open_mill(url) as mill, warm_workers(mill, url):
            before = ask(mill, _LAST)[0]
            run = mill.start("fan", "one", args={"items": items})
            wait_until_done(mill)
            assert mill.run(run.id).result("join") == items
            ratios.append(rate(mill, before) / plain)
    ratio = statistics.median(ratios)
    told = f"{ratio:.0%} (rounds {', '.join(f'{r:.0%}' for r in ratios)})"
    yield Figure("fan-out and fan-in of 10,000, of the plain drain's rate", kind, told, "≥ 70%", ratio >= 0.7)


def many_runs(bases: Databases, kind: str, quick: bool) -> Iterator[Figure]:
    runs, items, count = (100, 100, 6) if quick else (500, 100, 6)
    with bases.fresh(kind) as url, open_mill(url) as mill, warm_workers(mill, url, count, slots=1):
        before = ask(mill, _LAST)[0]
        mill.start("fan", "one", args={"items": runs * items})
        wait_until_done(mill)
        one = rate(mill, before)
    with bases.fresh(kind) as url, open_mill(url) as mill, warm_workers(mill, url, count, slots=1):
        before = ask(mill, _LAST)[0]
        mill.pause("bench")
        for n in range(runs):
            mill.start("fan", f"subject {n}", args={"items": items})
        mill.resume("bench")
        wait_until_done(mill)
        many = rate(mill, before)
        states = {run.state for run in mill.runs(limit=runs)}  # the newest: not those that warmed it up
    told = f"{many:,.0f}/s = {many / one:.0%} of one stage's {one:,.0f}/s; all {', '.join(states)}"
    fine = states == {"completed"} and many >= 0.5 * one
    yield Figure(f"{runs} runs of {items} items, {count} workers", kind, told, "≥ 50%", fine)


def claims(bases: Databases, kind: str, quick: bool) -> Iterator[Figure]:
    large = 100_000 if quick else 1_000_000
    with bases.fresh(kind) as url, open_mill(url) as mill:
        small = claim_seconds(mill, 10_000)  # ten times as many as are claimed, so that the end does not come into it
        mill.enqueue_many(apps.nothing, ({"n": n} for n in range(large)))
        settle(mill)
        big = claim_seconds(mill)
        delay(mill, large // 5)
        settle(mill)
        delayed = claim_seconds(mill)
    worst = max(big, delayed) / small
    told = f"{big / small:.2f} × with {large:,} ready, {delayed / small:.2f} × with {large // 5:,} delayed beside"
    yield Figure("claim of 100, against 1,000s ready", kind, told, "≤ 1.3 ×", worst <= 1.3)


def settle(mill: Mill) -> None:
    """What autovacuum or a checkpoint does after a bulk load is not the cost of a claim."""
    with mill.ledger.engine.connect() as connection:
        if mill.ledger.is_sqlite:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        else:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE gm_job")


def delay(mill: Mill, jobs: int) -> None:
    """Moves the first so many ready jobs behind a date: as if they had been enqueued for later."""
    sql = Sql(
        "UPDATE gm_job SET ready = NULL, run_at = 9000000000000000 WHERE id IN"
        " (SELECT id FROM gm_job WHERE ready IS NOT NULL ORDER BY id LIMIT :jobs)"
    )
    mill.ledger.do(lambda tx: tx.run(sql, jobs=jobs))


def claim_seconds(mill: Mill, load: int = 0) -> float:
    """The median time of claiming 100 jobs."""
    if load:
        mill.enqueue_many(apps.nothing, ({"n": n} for n in range(load)))
    who = workers.Registration("bench", os.getpid(), "-", (), 1, "-")
    number = mill.ledger.do(workers.register, who, 10**12)
    want = [Want(0, 100, (Lane(mill._queue_id("bench"), 0, 1),))]
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        mill.ledger.do(claim.claim, number, want, {0: 100})
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def latency(bases: Databases, kind: str, quick: bool) -> Iterator[Figure]:
    with bases.fresh(kind) as url, open_mill(url) as mill:
        process = worker(url, until="")
        one_latency(mill)  # until it has started
        took = sorted(one_latency(mill) for _ in range(100 if quick else 400))
        process.terminate()
        process.wait()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    told = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    yield Figure("enqueue to start, idle worker", kind, told, "p50 ≤ 5, p99 ≤ 30 ms", p50 <= 5 and p99 <= 30)


def one_latency(mill: Mill) -> float:
    before = time.time_ns()
    job = mill.enqueue(apps.stamp)
    time.sleep(0.03)  # whoever looks at once takes the processor from the worker
    while (found := mill.job(job.id)).result is None:
        time.sleep(0.005)
    return float(found.result - before) / 1e6


def million(bases: Databases, kind: str, quick: bool) -> Iterator[Figure]:
    items = 100_000 if quick else 1_000_000
    with bases.fresh(kind) as url, open_mill(url) as mill:
        run = mill.start("fan", "one", args={"items": items})
        process = worker(url, slots=2)
        peak, child_peak = watch_memory(process)
        done = mill.run(run.id)
        speed = rate(mill)
    told = f"supervisor {peak} MiB, children at most {child_peak} MiB; {speed:,.0f} jobs/s; {done.state}"
    fine = done.state == "completed" and peak <= 150 and child_peak <= 150
    yield Figure(f"fan-out of {items:,}, memory", kind, told, "≤ 150 MiB each", fine)


def watch_memory(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    peak = child_peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            this = psutil.Process(process.pid)
            peak = max(peak, this.memory_info().rss >> 20)
            for child in this.children():
                child_peak = max(child_peak, child.memory_info().rss >> 20)
        time.sleep(0.2)
    return peak, child_peak


def idle(bases: Databases, kind: str, quick: bool) -> Iterator[Figure]:
    seconds = 5 if quick else 20
    with bases.fresh(kind) as url, open_mill(url) as mill:
        process = worker(url, until="")
        one_latency(mill)
        time.sleep(1)
        this = psutil.Process(process.pid)
        before = sum(this.cpu_times()[:2])
        time.sleep(seconds)
        share = (sum(this.cpu_times()[:2]) - before) / seconds
        memory = this.memory_info().rss >> 20
        process.terminate()
        process.wait()
    told = f"{memory} MiB, {share:.2%} of a core"
    yield Figure("an idle worker's supervisor", kind, told, "≤ 80 MiB, ≤ 1%", memory <= 80 and share <= 0.01)


ROWS: dict[str, Callable[[Databases, str, bool], Iterator[Figure]]] = {
    "drain": drain,
    "fan": fan,
    "many-runs": many_runs,
    "claims": claims,
    "latency": latency,
    "idle": idle,
    "million": million,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench-core", description=__doc__)
    parser.add_argument("--only", choices=ROWS, action="append", help="only these rows")
    parser.add_argument("--database", choices=["SQLite", "PostgreSQL"], help="only this one")
    parser.add_argument("--quick", action="store_true", help="smaller numbers, one round")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder, postgres_server() as server:
        bases = Databases(server, Path(folder))
        for name in options.only or ROWS:
            for kind in [options.database] if options.database else ["SQLite", "PostgreSQL"]:
                for figure in ROWS[name](bases, kind, options.quick):
                    figures.append(figure)
                    mark = "holds" if figure.holds else "FAILS"
                    print(
                        f"{mark}  {figure.name} · {figure.database}: {figure.measured}  (reach: {figure.reach})", flush=True
                    )
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(f) for f in figures], indent=1) + "\n")
    failed = sum(1 for figure in figures if not figure.holds)
    print(f"{len(figures) - failed} of {len(figures)} figures hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
