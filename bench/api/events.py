"""200 who follow the events of one process: does each get all of them, in order, how soon, and what does that cost?"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil

from bench.api.app import ALL
from bench.api.filling import Place
from bench.api.serving import p95, serving
from bench.core import Figure
from gristmill import Mill
from tests.api.server import Served

CLIENTS = 200
_NAME, _EVERY = "bench.tick", 0.05  # seconds between two events
REACH_MS = 1000.0  # a page is to show a change within two seconds, and has to ask for it still


@dataclass
class Follower:
    """What one client was sent."""

    numbers: list[int] = field(default_factory=list)
    late: list[float] = field(default_factory=list)  # milliseconds after it was asked to be told

    def take(self, line: bytes) -> None:
        if line.startswith(b"data: {"):
            data = json.loads(line[6:])["data"]
            self.numbers.append(data["number"])
            self.late.append((time.time_ns() - data["at"]) / 1e6)


def measure(place: Place, quick: bool) -> Iterator[Figure]:
    count = 40 if quick else 400
    with serving(place.url) as served:
        with served.client() as client:
            client.get("/api/overview").raise_for_status()
        process = psutil.Process(served.process.pid)
        before, used = process.memory_info().rss, sum(process.cpu_times()[:2])
        began = time.monotonic()
        followers = asyncio.run(_follow(served, place.url, count))
        share = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)
        more = (process.memory_info().rss - before) / CLIENTS / 1024
        memory = process.memory_info().rss >> 20
    whole = sum(follower.numbers == list(range(count)) for follower in followers)
    told = f"{whole} of {CLIENTS} got all {count} in order; {memory} MiB ({more:.0f} KiB for each), {share:.0%} of a core"
    yield Figure(f"{CLIENTS} follow {1 / _EVERY:.0f} events/s", "PostgreSQL", told, "all", whole == CLIENTS)
    late = [ms for follower in followers for ms in follower.late]
    told = f"p50 {statistics.median(late):.0f} ms, p95 {p95(late):.0f} ms, at most {max(late):.0f} ms"
    yield Figure("from the commit to each of them", "PostgreSQL", told, f"p95 ≤ {REACH_MS:.0f} ms", p95(late) <= REACH_MS)


async def _follow(served: Served, url: str, count: int) -> list[Follower]:
    followers = [Follower() for _ in range(CLIENTS)]
    ready = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(_one(served.address, follower, ready, count)) for follower in followers]
    for _ in tasks:
        await ready.acquire()
    await asyncio.sleep(1)  # until the server's own look has found where the events are now
    await asyncio.to_thread(_tell, url, count)
    await asyncio.wait(tasks, timeout=20)
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    return followers


async def _one(address: str, follower: Follower, ready: asyncio.Semaphore, count: int) -> None:
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"GET /api/events?name={_NAME} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    try:
        while not (line := await reader.readline()).startswith(b"retry:"):
            assert line, "the server closed the stream"
        ready.release()
        while len(follower.numbers) < count and (line := await reader.readline()):
            follower.take(line)
    finally:
        writer.close()


def _tell(url: str, count: int) -> None:
    with Mill.open(url, *ALL) as mill:
        for number in range(count):
            mill.event(_NAME, {"number": number, "at": time.time_ns()})
            time.sleep(_EVERY)
