"""Gristmill itself, over SQLite and over PostgreSQL, measured as its peers are."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from bench.peers import common
from gristmill import Context, Mill, Pipeline, task

ABOUT = {
    "version": version("gristmill"),
    "settings": "one worker with 2 child processes (default: one per core); async: one child for all",
    "row_per_job": True,
    "acks": "after; jobs of a killed worker are run again at once on the same machine, else when its lease of 30 s ends",
    "isolation": "2 child processes that can be killed; a crash is the outcome of that job alone",
    "fan_in": "a stage after an each-stage: the transaction that ends the last item starts it, with failed items too",
    "bulk": "enqueue_many(): one transaction",
}
VARIANTS = {
    "sqlite": {"durability": "SQLite: every commit (WAL, synchronous FULL); what has ended is written in batches"},
    "postgres": {"durability": "PostgreSQL: every commit; what has ended is written in batches"},
}

fan = Pipeline("fan")


@task(queue="bench")
def job(ctx: Context, number: int) -> None:
    common.job(number)


@task(queue="bench")
async def job_async(ctx: Context, number: int) -> None:
    await common.job_async(number)


@fan.stage(queue="bench")
def produce(ctx: Context, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(count):
        yield str(number), {"number": number}


@fan.stage(after=produce, each=True, queue="bench", retries=0)
def child(ctx: Context, number: int) -> None:
    common.job(number)


@fan.stage(after=child, queue="bench")
def callback(ctx: Context) -> None:
    common.callback()


def database() -> str:
    order = common.order()
    return order.postgres if order.variant == "postgres" else f"sqlite:///{order.folder}/gristmill.db"


def open_mill() -> Mill:
    return Mill.open(database(), job, job_async, fan)


def work() -> None:
    """What the worker's process runs."""
    order = common.order()
    with open_mill() as mill:
        mill.work(slots=order.workers, async_slots=order.at_once)


class Peer(common.Peer):
    def prepare(self) -> None:
        from gristmill.ledger.migrate import upgrade  # not above: workers and their children have no use for it

        upgrade(database())
        self.mill = open_mill()
        self.task = job_async if self.order.scenario == "io" else job

    def worker_commands(self) -> list[list[str]]:
        return [[sys.executable, "-c", "from bench.peers import gristmill; gristmill.work()"]]

    def enqueue(self, number: int) -> None:
        self.mill.enqueue(self.task, args={"number": number})

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        self.mill.enqueue_many(self.task, [{"number": number} for number in numbers])

    def fan(self, count: int) -> None:
        self.mill.start("fan", "one", args={"count": count})


if __name__ == "__main__":
    common.main("bench.peers.gristmill")
