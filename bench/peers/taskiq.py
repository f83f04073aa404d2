"""taskiq over Redis: a list, from which a job is gone when it is read, or a stream, on which it is acknowledged."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version

import uvloop
from taskiq import AsyncBroker, gather
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from bench.peers import common
from bench.peers.waiting import AT_ONCE, AsyncPeer

_SETTINGS = "one `taskiq worker` with 2 processes and uvloop, 100 coroutines each (default), orjson"
_STREAM = "{} RedisStreamBroker; what is not acknowledged is taken over after 10 minutes (default)"

ABOUT = {
    "version": f"{version('taskiq')}, taskiq-redis {version('taskiq-redis')}",
    "durability": "Redis: with appendfsync everysec the last second can be lost",
    "row_per_job": False,
    "isolation": "coroutines of 2 processes",
    "fan_in": "gather(): a parent waits, and asks for every child's result ten times a second; lost with its worker",
    "bulk": f"has no call for it: {AT_ONCE} calls at once",
}
VARIANTS = {
    "list": {"settings": f"{_SETTINGS}; ListQueueBroker", "acks": "before running: it is taken from the list"},
    "stream": {"settings": _STREAM.format(_SETTINGS + ";"), "acks": "after"},
}


def make_broker() -> AsyncBroker:
    order = common.order()
    broker: AsyncBroker = (RedisStreamBroker if order.variant == "stream" else ListQueueBroker)(order.redis)
    if order.scenario == "fan":  # nothing else needs results
        broker = broker.with_result_backend(RedisAsyncResultBackend(order.redis, result_ex_time=600))
    return broker.with_serializer(ORJSONSerializer())


broker = make_broker()


@broker.task
async def job(number: int) -> None:
    await common.job_async(number)


@broker.task
async def parent(count: int) -> None:
    await gather(*[await job.kiq(number) for number in range(count)])
    common.callback()


class Peer(AsyncPeer):
    def new_loop(self) -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop()

    def worker_commands(self) -> list[list[str]]:
        order = self.order
        command = [sys.executable, "-m", "taskiq", "worker", "bench.peers.taskiq:broker", "--log-level", "WARNING"]
        command += ["--workers", str(order.workers)]
        if order.scenario == "io":
            command += ["--max-async-tasks", str(order.at_once // order.workers)]
        return [command]

    async def open(self) -> None:
        await broker.startup()

    async def send(self, number: int) -> None:
        await job.kiq(number)

    async def start_fan(self, count: int) -> None:
        await parent.kiq(count)


if __name__ == "__main__":
    common.main("bench.peers.taskiq")
