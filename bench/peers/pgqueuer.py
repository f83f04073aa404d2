"""PgQueuer over PostgreSQL, with batches of 10 or of 100."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version

import asyncpg
import uvloop
from pgqueuer import PgQueuer, run
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers import common
from bench.peers.waiting import AsyncPeer

_LOT = 10_000  # rows of one INSERT
_SETTINGS = "2 processes as of `pgq run`, asyncpg and uvloop, tables logged (durable, default), batches of {}"

ABOUT = {
    "version": version("pgqueuer"),
    "durability": "PostgreSQL: every commit; what has finished is written in batches too, after a moment",
    "row_per_job": True,
    "acks": "after; jobs of a killed worker are run again after 30 s (default)",
    "isolation": "coroutines of 2 processes",
    "fan_in": "CompletionWatcher: a parent waits, told by NOTIFY; it starts anew with its worker's end, children and all",
    "bulk": f"enqueue() of lists: one INSERT of {_LOT:,} rows",
}
VARIANTS = {
    "10": {"settings": _SETTINGS.format("10 (default)")},
    "100": {"settings": _SETTINGS.format("100")},
}


async def connect() -> AsyncpgDriver:
    return AsyncpgDriver(await asyncpg.connect(common.order().postgres))


async def enqueue(queries: Queries, numbers: Sequence[int]) -> list[int]:
    payloads = [b"%d" % number for number in numbers]
    return [int(job) for job in await queries.enqueue(["job"] * len(numbers), payloads, [0] * len(numbers))]


@contextlib.asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    """The entry points of a worker, as `pgq run` asks for them."""
    queuer = PgQueuer(await connect())

    @queuer.entrypoint("job")
    async def job(job: Job) -> None:
        assert job.payload is not None
        await common.job_async(int(job.payload))

    @queuer.entrypoint("parent")
    async def parent(job: Job) -> None:
        assert job.payload is not None
        driver = await connect()  # a connection of its own: the worker's is busy
        queries = Queries(driver)
        async with CompletionWatcher(driver, queries=queries) as watcher:
            children = await enqueue(queries, range(int(job.payload)))
            await asyncio.gather(*map(watcher.wait_for, children))
        common.callback()

    yield queuer


def work() -> None:
    """What a worker process runs. This is what `pgq run` does; its own options fail with the typer of today."""
    order = common.order()
    most = order.at_once // order.workers if order.scenario == "io" else None  # default: no limit
    uvloop.run(run(main, batch_size=int(order.variant or 10), max_concurrent_tasks=most))


class Peer(AsyncPeer):
    def new_loop(self) -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop()

    def worker_commands(self) -> list[list[str]]:
        return [[sys.executable, "-c", "from bench.peers import pgqueuer; pgqueuer.work()"]] * self.order.workers

    async def open(self) -> None:
        self.queries = Queries(await connect())
        await self.queries.install()

    async def send(self, number: int) -> None:
        await self.queries.enqueue("job", b"%d" % number)

    async def send_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), _LOT):
            await enqueue(self.queries, numbers[first : first + _LOT])

    async def start_fan(self, count: int) -> None:
        await self.queries.enqueue("parent", b"%d" % count)


if __name__ == "__main__":
    common.main("bench.peers.pgqueuer")
