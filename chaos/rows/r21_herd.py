"""A long line of jobs, and many workers that connect at the same moment.

They are workers without children (`chaos.claimers`), twenty in a process: two hundred with their children do not fit into
a machine that also has the database on it. What they write and claim, and how, is the same. Together they claim a hundred
times a second, which is about half of what two processors can do. The bound is for all claims, also those that were made
while others still connected; how long the first ones took is told beside it, since that is what the processors allow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from chaos import oracle
from chaos.play import ROOT, Play, Violation
from chaos.record import noted

TITLE = "many workers connect at once to a long line"
DATABASES = ("PostgreSQL",)
BOUND = 0.1  # seconds: the slowest claim but one of a hundred
TOGETHER = 20  # workers in a process
JOBS = 10  # that each takes at once
PACE = 100  # claims a second of all of them
BATCH = 10_000


def play(play: Play) -> str:
    oracle.watch(play.mill)
    queued, workers, seconds = play.pick(50_000, 1_000_000), play.pick(20, 200), play.pick(15, 300)
    for _ in range(queued // BATCH):
        play.mill.enqueue_many("one", [{"folder": str(play.folder)}] * BATCH)
    ((queue,),) = oracle.rows(play.mill, "SELECT queue_id FROM gm_job LIMIT 1")
    _let_loose(play, queue, workers, seconds)
    claims = list(noted(play.folder, "claimed"))
    times = Counter(job for *_, jobs in claims for job in jobs)
    if twice := [job for job, count in times.items() if count > 1]:
        raise Violation(f"{len(twice)} jobs were claimed twice, such as {twice[:5]}")
    oracle.check(play)
    ((done,),) = oracle.rows(play.mill, "SELECT count(*) FROM gm_job WHERE state = 2")
    if done != len(times) or len({who for who, *_ in claims}) != workers:
        raise Violation(f"{len(times)} jobs were claimed and {done} are completed, of {workers} workers")
    p50, p99, worst = _figures([took for _, took, *_ in claims])
    herd = _figures([took for took, *_ in {who: (took, at) for who, took, at, _ in reversed(claims)}.values()])
    said = (
        f"{queued} queued, {workers} workers (without children) connected at once: {len(claims)} claims of up to {JOBS},"
        f" p50 {p50:.0f} ms, p99 {p99:.0f} ms, worst {worst:.0f} ms; the first claim of each p50 {herd[0]:.0f} ms,"
        f" p99 {herd[1]:.0f} ms; {len(times)} jobs, none of them twice"
    )
    play.reach(p99 <= BOUND * 1000, f"p99 {p99:.0f} ms is over {BOUND * 1000:.0f}")
    return said


def _let_loose(play: Play, queue: int, workers: int, seconds: float) -> None:
    order: dict[str, Any] = {
        "url": play.url,
        "folder": str(play.folder),
        "seed": play.seed,
        "queue": queue,
        "seconds": seconds,
    }
    begin = time.monotonic() + 3.0 + workers / 40  # until then all processes have started
    order |= {"workers": min(TOGETHER, workers // 4), "jobs": JOBS, "hold": workers / PACE, "begin": begin}
    herd = [
        subprocess.Popen([sys.executable, "-m", "chaos.claimers", json.dumps({**order, "first": first})], cwd=ROOT)
        for first in range(0, workers, order["workers"])
    ]
    for each in herd:
        play.stack.callback(each.wait)
        play.stack.callback(each.kill)
    if any(each.wait(seconds + 120) for each in herd):
        raise Violation("a worker failed; it said why")


def _figures(took: list[float]) -> tuple[float, float, float]:
    """Half of them, all but one of a hundred, the slowest; milliseconds."""
    took = sorted(took)
    return took[len(took) // 2] * 1000, took[int(len(took) * 0.99)] * 1000, took[-1] * 1000
