"""How much slower a worker drains while 20 people watch: rounds with them and without, in turn, on the same ledger."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.api.app import ALL
from bench.api.filling import Place
from bench.api.serving import ROOT, serving
from bench.apps import fan, nothing
from bench.core import Figure, ask, rate
from gristmill import Mill
from gristmill.ledger.sql import Sql

REACH = 0.05
PEOPLE = {
    "/": 8,
    "/runs": 2,
    "/runs/{run}": 3,
    "/jobs?q=state%3Afailed": 2,
    "/jobs": 1,
    "/queues": 2,
    "/errors": 1,
    "/workers": 1,
}
_WORK = """
import sys
from bench.api.app import ALL
from bench.apps import fan
from gristmill import Mill
with Mill.open(sys.argv[1], *ALL, fan) as mill:
    mill.work(queues=["bench"], slots=2)
"""
_LAST = Sql("SELECT coalesce(max(id), 0) FROM gm_job")
_LEFT = Sql(
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue LIMIT 1) AS line)"
    " + (SELECT count(*) FROM gm_claim WHERE worker_id > 1020)"
    " + (SELECT count(*) FROM gm_run WHERE state < 2 AND id > :runs)"
)  # the workers of the filling, 1 to 1,020, are nobody's


def measure(place: Place, quick: bool) -> Iterator[Figure]:
    jobs, rounds = (3_000, 2) if quick else (40_000, 7)
    alone, watched, seen = list[float](), list[float](), list[dict[str, float]]()
    paths = [path.format(run=place.runs) for path, people in PEOPLE.items() for _ in range(people)]
    with serving(place.url) as served, Mill.open(place.url, *ALL, fan) as mill, _worker(place.url):
        for _ in range(2):
            drained(mill, place, jobs // 2)  # until its children know what these jobs take
        for number in range(rounds):
            for people in (False, True) if number % 2 else (True, False):
                with _watchers(served.address, paths if people else [], seen):
                    (watched if people else alone).append(drained(mill, place, jobs))
    slower = statistics.median(1 - a / b for a, b in zip(watched, alone, strict=True))
    refreshes, late = sum(one["refreshes"] for one in seen), max(one["p95"] or 0 for one in seen)
    told = (
        f"{slower:.1%} slower: {statistics.median(watched):,.0f} jobs/s against {statistics.median(alone):,.0f};"
        f" {refreshes:,.0f} refreshes, p95 {late * 1000:.0f} ms (rounds {', '.join(_rounds(watched, alone))})"
    )
    yield Figure(f"draining while {len(paths)} people watch", "PostgreSQL", told, f"< {REACH:.0%} slower", slower < REACH)


def _rounds(watched: list[float], alone: list[float]) -> Iterator[str]:
    return (f"{1 - a / b:.1%}" for a, b in zip(watched, alone, strict=True))


def drained(mill: Mill, place: Place, jobs: int) -> float:
    """Jobs per second: half of them on their own, half items of runs, whose changes are told."""
    before, queue = ask(mill, _LAST)[0], mill._queue_id("bench")
    runs = max(1, jobs // 4000)
    for number in range(runs):
        mill.start(fan, f"watched {time.time_ns()} {number}", args={"items": jobs // 2 // runs})
    mill.enqueue_many(nothing, ({"n": n} for n in range(jobs // 2)))
    while ask(mill, _LEFT, queue=queue, runs=place.runs)[0]:
        time.sleep(0.1)
    return rate(mill, before)


@contextlib.contextmanager
def _worker(url: str) -> Iterator[None]:
    with _process(["-c", _WORK, url]):
        yield


@contextlib.contextmanager
def _watchers(address: str, paths: list[str], seen: list[dict[str, float]]) -> Iterator[None]:
    if not paths:
        yield
        return
    with _process(["-m", "bench.api.watchers", address, *paths]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        time.sleep(2)  # until each has its page
        yield
        process.terminate()
        seen.append(json.loads(process.stdout.readline()))


@contextlib.contextmanager
def _process(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)
