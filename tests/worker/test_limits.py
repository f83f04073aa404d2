"""Limits with real workers: never one too many, and nobody idle who need not be."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gristmill import Mill
from gristmill.delivery.protocol import Heard
from gristmill.housekeeping import Seen
from gristmill.ledger.tx import DELAYED
from tests.apps import crawl
from tests.ledger import invariants
from tests.worker.helpers import drain, eventually, lines, run_ends, worker_process, working
from tests.worker.program import open_mill


def intervals(folder: Path) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for line in lines(folder / "times"):
        key, began, ended, _ = line.split()
        found.setdefault(key, []).append((int(began), int(ended)))
    return found


def most_at_once(times: list[tuple[int, int]]) -> int:
    running = most = 0
    for _, change in sorted([(began, 1) for began, _ in times] + [(ended, -1) for _, ended in times]):
        running += change
        most = max(most, running)
    return most


def test_six_workers_never_run_a_third_of_a_key(database_url: str, folder: Path, tmp_path: Path) -> None:
    with open_mill(database_url, "crawl") as mill, ExitStack() as stack:
        jobs = [{"host": f"h{n % 40}", "folder": str(folder), "fails": n % 50 == 0} for n in range(400)]
        jobs += [{"host": f"slow{n % 3}", "folder": str(folder), "seconds": 0.02} for n in range(30)]
        jobs += [{"host": "pair", "folder": str(folder), "meets": 2}] * 2
        mill.enqueue_many(crawl.fetch, jobs)
        for n in range(6):
            log = tmp_path / f"worker{n}.log"
            stack.enter_context(worker_process(database_url, "crawl", log=log, slots=2, poll=0.5))
        eventually(lambda: mill.ledger.glance(lambda tx: not mill.jobs(state="queued", limit=1)), within=60)
        eventually(lambda: not mill.jobs(state="in_progress", limit=1))
        times = intervals(folder)
        assert sum(map(len, times.values())) >= 432
        assert max(map(most_at_once, times.values())) == 2
        invariants.check(mill.ledger)


def test_items_of_a_pipeline_have_the_keys_that_their_arguments_give(database_url: str, folder: Path) -> None:
    with open_mill(database_url, "crawl") as mill:
        run = mill.start("crawl", "s", args={"folder": str(folder)})
        drain(mill, slots=3)
        assert run_ends(mill, run.id).state == "completed"
        times = intervals(folder)
        assert {key: len(found) for key, found in times.items()} == {"h0": 20, "h1": 20, "h2": 20}
        assert max(map(most_at_once, times.values())) == 1


def test_a_rate_is_kept_and_used(database_url: str, folder: Path) -> None:
    with open_mill(database_url, "crawl") as mill:
        before = time.monotonic_ns()
        mill.enqueue_many(crawl.paced, [{"folder": str(folder)}] * 30)
        drain(mill, slots=2, poll=5, lease=15)
    starts = sorted(began for began, _ in intervals(folder)["-"])
    assert len(starts) == 30
    for n, at in enumerate(starts, 1):  # 20 per second, of which two may come together
        assert n <= 2 + 20 * (at - before) / 1e9 + 1


def test_async_jobs_keep_to_their_limits_and_share_them_with_others(lite_crawl: Mill, folder: Path) -> None:
    lite_crawl.enqueue_many(crawl.fetch_async, [{"host": "a", "folder": str(folder)}] * 20)
    lite_crawl.enqueue_many(crawl.fetch, [{"host": "a", "folder": str(folder)}] * 20)
    drain(lite_crawl, slots=2)
    times = intervals(folder)["a"]
    assert len(times) == 40
    assert most_at_once(times) <= 2


def test_a_limited_queue_lets_the_next_worker_take_over_at_once(database_url: str, folder: Path) -> None:
    """Two workers; one permit. Who waits for it is told when it is free, and does not look only now and then."""
    with open_mill(database_url, "crawl") as mill:
        mill.set_queue("default", create=True, limits={"at_once": 1})
        with working(mill, slots=1, poll=20, lease=60), working(mill, slots=1, poll=20, lease=60):
            mill.enqueue_many(crawl.free, [{"folder": str(folder)}] * 40)
            eventually(lambda: len(lines(folder / "times")) == 40)
    assert most_at_once(intervals(folder)["queue"]) == 1


def test_a_storm_of_retries_does_not_make_a_worker_keep_house_all_the_time(
    lite_crawl: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them rings; what the bell says within a moment is one look."""
    worker = lite_crawl.worker(slots=1, poll=10.0, lease=60.0)
    worker._start()
    try:
        looked: list[float] = []
        tick, now = worker.house.tick, time.monotonic()

        def look(at: float, *given: Any) -> Seen:
            looked.append(at)
            return tick(at, *given)

        monkeypatch.setattr(worker.house, "tick", look)
        assert worker._bell is not None
        monkeypatch.setattr(worker._bell, "heard", lambda: Heard(frozenset([DELAYED])))
        for n in range(100):
            worker._heard()
            worker.tick(now + n / 1000)
        assert looked == [now, now + 0.05]
        worker._heard()
        assert worker.tick(now + 0.09) < 0.02
        worker.tick(now + 1)
        assert looked[2:] == [now + 1]
    finally:
        worker._finish()
