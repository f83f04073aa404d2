"""A long line of jobs, and many workers that all lose the database at the same moment, and come back when it does.

They are workers without children (`chaos.claimers`), twenty in a process: two hundred with their children do not fit into
a machine that also has the database on it. What they write and claim, and how, is the same. Together they claim a hundred
times a second, which is about half of what two processors can do. The bound is for the claims of the seconds after the
server's return, while all of them come back; those of the whole time are told beside it.
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
from gristmill.ledger.migrate import upgrade
from tests import servers
from tests.own_server import own_server

TITLE = "many workers come back at once to a long line"
DATABASES = ("none",)
BOUND = 0.1  # seconds: the slowest claim but one of a hundred
TOGETHER = 20  # workers in a process
JOBS = 10  # that each takes at once
PACE = 100  # claims a second of all of them
BATCH = 10_000
AWAY = 2.0  # seconds that the server is not there
RETURN = 10.0  # seconds after its return in which all of them come back


def play(play: Play) -> str:
    queued, workers = play.pick(50_000, 1_000_000), play.pick(20, 200)
    with own_server() as server:
        play.url = servers.create_database(server.url)
        upgrade(play.url)
        oracle.watch(play.mill)
        for _ in range(queued // BATCH):
            play.mill.enqueue_many("one", [{"folder": str(play.folder)}] * BATCH)
        ((queue,),) = oracle.rows(play.mill, "SELECT queue_id FROM gm_job LIMIT 1")
        herd = _herd(play, queue, workers, play.pick(20, 300))
        play.eventually(lambda: len({who for who, *_ in noted(play.folder, "claimed")}) == workers, "all claim", 120)
        time.sleep(5.0)
        server.kill()
        time.sleep(AWAY)
        server.start()
        back = time.monotonic()
        if any(each.wait(600) for each in herd):
            raise Violation("a worker failed; it said why")
        play.mill.ledger.engine.dispose()
        return _judged(play, workers, queued, back)


def _judged(play: Play, workers: int, queued: int, back: float) -> str:
    claims = list(noted(play.folder, "claimed"))
    times = Counter(job for *_, jobs in claims for job in jobs)
    if twice := [job for job, count in times.items() if count > 1]:
        raise Violation(f"{len(twice)} jobs were claimed twice, such as {twice[:5]}")
    oracle.check(play)
    ((done,),) = oracle.rows(play.mill, "SELECT count(*) FROM gm_job WHERE state = 2")
    if done != len(times):
        raise Violation(f"{len(times)} jobs were claimed and {done} are completed")
    after = [(who, took) for who, took, at, _ in claims if back <= at <= back + RETURN]
    missing = workers - len({who for who, _ in after})
    if missing:
        raise Violation(f"{missing} of {workers} workers did not claim within {RETURN:g} s of the server's return")
    p50, p99, worst = _figures([took for _, took in after])
    whole = _figures([took for _, took, *_ in claims])
    first = _figures(list(dict(reversed(after)).values()))
    play.reach(p99 <= BOUND * 1000, f"p99 {p99:.0f} ms is over {BOUND * 1000:.0f}")
    return (
        f"{queued} queued, {workers} workers (without children) came back at once after {AWAY:g} s: of {len(after)} claims"
        f" of up to {JOBS} in {RETURN:g} s p50 {p50:.0f} ms, p99 {p99:.0f} ms, worst {worst:.0f} ms (the first of each p99"
        f" {first[1]:.0f} ms); of all {len(claims)} p99 {whole[1]:.0f} ms; {len(times)} jobs, none of them twice"
    )


def _herd(play: Play, queue: int, workers: int, seconds: float) -> list[subprocess.Popen[bytes]]:
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
    return herd


def _figures(took: list[float]) -> tuple[float, float, float]:
    """Half of them, all but one of a hundred, the slowest; milliseconds."""
    took = sorted(took)
    return took[len(took) // 2] * 1000, took[int(len(took) * 0.99)] * 1000, took[-1] * 1000
