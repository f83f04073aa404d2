"""Dramatiq over Redis."""

from __future__ import annotations

import sys
from importlib.metadata import version

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO, GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

from bench.peers import common

_THREADS = 8  # its default

ABOUT = {
    "version": version("dramatiq"),
    "settings": f"one `dramatiq` with 2 processes, {_THREADS} threads each (default); async: a thread for each job at once",
    "durability": "Redis: with appendfsync everysec the last second can be lost",
    "row_per_job": False,
    "acks": "after; jobs of a killed worker are run again when it was silent for 60 s, found by chance (default)",
    "isolation": "threads of 2 processes",
    "fan_in": "group with a completion callback: a count in Redis; one child that fails keeps it from ever running",
    "bulk": "has no call for it: one by one",
}


def make_broker() -> RedisBroker:
    order = common.order()
    broker = RedisBroker(url=order.redis)
    if order.scenario == "fan":
        broker.add_middleware(GroupCallbacks(RedisBackend(url=order.redis)))
    if order.scenario == "io":
        broker.add_middleware(AsyncIO())
    dramatiq.set_broker(broker)
    return broker


broker = make_broker()


@dramatiq.actor(max_retries=0)
def job(number: int) -> None:
    common.job(number)


@dramatiq.actor
def callback() -> None:
    common.callback()


if common.order().scenario == "io":  # without its middleware an actor may not be a coroutine

    @dramatiq.actor(max_retries=0)
    async def job_async(number: int) -> None:
        await common.job_async(number)


class Peer(common.Peer):
    def worker_commands(self) -> list[list[str]]:
        order = self.order
        threads = order.at_once // order.workers if order.scenario == "io" else _THREADS
        command = [sys.executable, "-m", "dramatiq", "bench.peers.dramatiq:broker", "--skip-logging"]
        return [[*command, "--processes", str(order.workers), "--threads", str(threads)]]

    def enqueue(self, number: int) -> None:
        (job_async if self.order.scenario == "io" else job).send(number)

    def fan(self, count: int) -> None:
        group = dramatiq.group(job.message(number) for number in range(count))
        group.add_completion_callback(callback.message())
        group.run()


if __name__ == "__main__":
    common.main("bench.peers.dramatiq")
