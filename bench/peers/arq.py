"""Arq over Redis."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings

from bench.peers import common
from bench.peers.waiting import AT_ONCE, AsyncPeer

_CONCURRENCY = 10  # its default

ABOUT = {
    "version": version("arq"),
    "settings": f"2 `arq`, {_CONCURRENCY} coroutines each, a look at the queue every 0.5 s (defaults)",
    "durability": "Redis: with appendfsync everysec the last second can be lost",
    "row_per_job": False,
    "acks": "after; jobs of a killed worker are run again when their timeout of 300 s (default) is over",
    "isolation": "coroutines of 2 processes",
    "fan_in": "none",
    "bulk": f"has no call for it: {AT_ONCE} calls at once",
}


async def job(context: dict[str, Any], number: int) -> None:
    await common.job_async(number)


class WorkerSettings:
    """What `arq` asks a worker's module for."""

    functions = (job,)
    redis_settings = RedisSettings.from_dsn(common.order().redis)
    max_jobs = common.order().at_once // common.order().workers if common.order().scenario == "io" else _CONCURRENCY


class Peer(AsyncPeer):
    no_fan = "no fan-in"

    def worker_commands(self) -> list[list[str]]:
        return [[sys.executable, "-m", "arq", "bench.peers.arq.WorkerSettings"]] * self.order.workers

    async def open(self) -> None:
        self.pool = await create_pool(WorkerSettings.redis_settings)

    async def send(self, number: int) -> None:
        await self.pool.enqueue_job("job", number)


if __name__ == "__main__":
    common.main("bench.peers.arq")
