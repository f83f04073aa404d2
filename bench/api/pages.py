"""Every page and list: how long each takes to answer, read anew every time."""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx

from bench.api.addresses import Address, addresses, left_out, values
from bench.api.app import ALL
from bench.api.filling import Place
from bench.api.serving import asked, p95, serving
from bench.core import Figure
from gristmill import Mill

REACH_MS = 200.0
LOCKS = 20  # that are held meanwhile


def measure(place: Place, quick: bool, only: str = "", rounds: int | None = None) -> Iterator[Figure]:
    rounds = rounds or (3 if quick else 20)
    with serving(place.url, cold=True) as served, served.client() as client, _locks(place.url):
        if missing := left_out(client.get("/openapi.json").json()):
            raise AssertionError(f"bench/api/addresses.py says nothing of {sorted(missing)}")
        worst: list[float] = []
        for address in _all(client, place):
            if only not in address.name:
                continue
            asked(client, address.path)
            taken = [asked(client, address.path) for _ in range(rounds)]
            worst.append(p95(taken))
            yield _figure(address.name, taken)
        if worst:
            told = f"p95 of the slowest {max(worst):.0f} ms, of the one in the middle {statistics.median(worst):.0f} ms"
            yield Figure(
                f"all {len(worst)} pages and lists", "PostgreSQL", told, f"≤ {REACH_MS:.0f} ms", max(worst) <= REACH_MS
            )


def _figure(name: str, taken: list[float]) -> Figure:
    told = f"p95 {p95(taken):.1f} ms (p50 {statistics.median(taken):.1f})"
    return Figure(name, "PostgreSQL", told, f"≤ {REACH_MS:.0f} ms", p95(taken) <= REACH_MS)


def _all(client: httpx.Client, place: Place) -> Iterator[Address]:
    now = datetime.now(UTC)
    hour, day = ((now - timedelta(hours=n)).isoformat() for n in (1, 24))
    job = client.get(f"/api/jobs?run={place.failed}&state=failed").json()["items"][0]
    for address in addresses(values(place, job["id"], job["fingerprint"], hour, day)):
        yield address
        following = client.get(address.path).json()["next"] if address.goes_on else None
        if following:
            yield Address(f"{address.name}, next page", f"{address.path}&cursor={following}")


@contextlib.contextmanager
def _locks(url: str) -> Iterator[None]:
    """Each is held by somebody of its own."""
    held, over = threading.Barrier(LOCKS + 1), threading.Event()

    def hold(mill: Mill, number: int) -> None:
        with mill.lock("edition", number):
            held.wait()
            over.wait()

    with Mill.open(url, *ALL) as mill, ThreadPoolExecutor(LOCKS) as threads:
        holding = [threads.submit(hold, mill, number) for number in range(LOCKS)]
        held.wait()
        try:
            yield
        finally:
            over.set()
        for one in holding:
            one.result()
