"""Procrastinate over PostgreSQL, one job at a time or ten."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from procrastinate import App, PsycopgConnector

from bench.peers import common

_LOT = 1000  # rows of one INSERT
_SETTINGS = "2 `procrastinate worker`, LISTEN and NOTIFY (default), finished jobs kept (default), concurrency {}"

ABOUT = {
    "version": version("procrastinate"),
    "durability": "PostgreSQL: every commit",
    "row_per_job": True,
    "acks": "after; jobs of a killed worker stay as they are until a task of one's own looks for them and retries them",
    "isolation": "coroutines of 2 processes",
    "fan_in": "none",
    "bulk": f"batch_defer(): one INSERT of {_LOT} rows",
}
VARIANTS = {
    "1": {"settings": _SETTINGS.format("1 (default)")},
    "10": {"settings": _SETTINGS.format("10")},
}


def concurrency() -> int:
    order = common.order()
    return order.at_once // order.workers if order.scenario == "io" else int(order.variant or 1)


def make_app() -> App:
    connections = min(concurrency(), 20) + 3  # beside the jobs: listening, fetching, heartbeats
    return App(connector=PsycopgConnector(conninfo=common.order().postgres, min_size=1, max_size=connections))


app = make_app()


@app.task(name="job")
async def job(number: int) -> None:
    await common.job_async(number)


class Peer(common.Peer):
    no_fan = "no fan-in: jobs cannot wait for others"

    """Its client is synchronous too, which is faster."""

    def prepare(self) -> None:
        app.open()
        app.schema_manager.apply_schema()

    def worker_commands(self) -> list[list[str]]:
        command = [sys.executable, "-m", "procrastinate", "--app", "bench.peers.procrastinate.app", "--log-level", "warning"]
        return [[*command, "worker", "--concurrency", str(concurrency())]] * self.order.workers

    def enqueue(self, number: int) -> None:
        job.defer(number=number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), _LOT):
            job.batch_defer(*({"number": number} for number in numbers[first : first + _LOT]))


if __name__ == "__main__":
    common.main("bench.peers.procrastinate")
