"""SAQ over Redis and over PostgreSQL."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from saq import Queue

from bench.peers import common
from bench.peers.waiting import AT_ONCE, AsyncPeer

_CONCURRENCY = 10  # its default

ABOUT = {
    "version": version("saq"),
    "settings": f"one `saq` with 2 processes, {_CONCURRENCY} coroutines each (default); jobs kept for 600 s (default)",
    "row_per_job": True,
    "acks": "after; a job of a killed worker is aborted when it is swept, unless it has retries (default: none)",
    "isolation": "coroutines of 2 processes",
    "fan_in": "map(): a parent waits, and asks for the children twice a second; it starts anew or is lost with its worker",
    "bulk": f"has no call for it: {AT_ONCE} calls at once",
}
VARIANTS = {
    "redis": {"durability": "Redis: with appendfsync everysec the last second can be lost"},
    "postgres": {"durability": "PostgreSQL: every commit"},
}


def make_queue() -> Queue:
    order = common.order()
    return Queue.from_url(order.postgres if order.variant == "postgres" else order.redis)


async def job(context: dict[str, Any], *, number: int) -> None:
    await common.job_async(number)


async def parent(context: dict[str, Any], *, count: int) -> None:
    await context["worker"].queue.map("job", [{"number": number} for number in range(count)], return_exceptions=True)
    common.callback()


def settings() -> dict[str, Any]:
    """What `saq` asks a worker's module for."""
    order = common.order()
    concurrency = order.at_once // order.workers if order.scenario == "io" else _CONCURRENCY
    return {"queue": make_queue(), "functions": [job, parent], "concurrency": concurrency}


class Peer(AsyncPeer):
    def worker_commands(self) -> list[list[str]]:
        return [[sys.executable, "-m", "saq", "bench.peers.saq.settings", "--workers", str(self.order.workers), "--quiet"]]

    async def open(self) -> None:
        self.queue = make_queue()
        await self.queue.connect()

    async def send(self, number: int) -> None:
        await self.queue.enqueue("job", number=number)

    async def start_fan(self, count: int) -> None:
        await self.queue.enqueue("parent", count=count, timeout=0)


if __name__ == "__main__":
    common.main("bench.peers.saq")
