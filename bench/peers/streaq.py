"""streaq over Redis."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from streaq import Worker

from bench.peers import common
from bench.peers.waiting import AsyncPeer

_CONCURRENCY = 16  # its default
_LOT = 10_000  # jobs of one call: all of a call are kept in memory

ABOUT = {
    "version": version("streaq"),
    "settings": f"one `streaq run` with 2 processes, {_CONCURRENCY} coroutines and as many jobs fetched ahead (default)",
    "durability": "Redis: with appendfsync everysec the last second can be lost",
    "row_per_job": False,
    "acks": "after; jobs of a killed worker are run again after 60 s (default)",
    "isolation": "coroutines of 2 processes",
    "fan_in": "start(after=[…]): a job that waits in Redis for others; one that fails makes it fail too",
    "bulk": "enqueue_many(): one pipeline",
}


def make_worker() -> Worker[None]:
    order = common.order()
    concurrency = order.at_once // order.workers if order.scenario == "io" else _CONCURRENCY
    return Worker(redis_url=order.redis, concurrency=concurrency)


worker = make_worker()


@worker.task(silent=True)
async def job(number: int) -> None:
    await common.job_async(number)


@worker.task(silent=True)
async def callback() -> None:
    common.callback()


class Peer(AsyncPeer):
    def worker_commands(self) -> list[list[str]]:
        return [[sys.executable, "-m", "streaq", "run", "bench.peers.streaq:worker", "--workers", str(self.order.workers)]]

    async def open(self) -> None:
        await worker.__aenter__()

    async def send(self, number: int) -> None:
        await job.enqueue(number)

    async def send_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), _LOT):
            await worker.enqueue_many([job.enqueue(number) for number in numbers[first : first + _LOT]])

    async def start_fan(self, count: int) -> None:
        children = [job.enqueue(number) for number in range(count)]
        await worker.enqueue_many(children)
        await callback.enqueue().start(after=[child.id for child in children])


if __name__ == "__main__":
    common.main("bench.peers.streaq")
