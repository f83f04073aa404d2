"""RQ over Redis: a process forked for each job (its default), or all of them in the worker's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from redis import Redis
from rq import Queue
from rq.job import Dependency

from bench.peers import common

_LOT = 1000  # jobs of one pipeline
_SETTINGS = "2 `rq worker`{}, results kept for 500 s (default)"

ABOUT = {
    "version": version("rq"),
    "durability": "Redis: with appendfsync everysec the last second can be lost",
    "row_per_job": False,
    "acks": "before running: it is taken from the list; given up as abandoned when its worker is missed, not run again",
    "fan_in": "depends_on: a job that waits in Redis for others (here with allow_failure, which is not the default)",
    "bulk": f"enqueue_many(): one pipeline of {_LOT}",
}
VARIANTS = {
    "fork": {"settings": _SETTINGS.format(""), "isolation": "a process per job"},
    "simple": {"settings": _SETTINGS.format(" -w SimpleWorker"), "isolation": "none: in the worker's own process"},
}


def job(number: int) -> None:
    common.job(number)


def callback() -> None:
    common.callback()


class Peer(common.Peer):
    def prepare(self) -> None:
        if self.order.scenario == "io":
            raise common.Unsupported("runs one job at a time in each process")
        self.queue = Queue(connection=Redis.from_url(self.order.redis))

    def worker_commands(self) -> list[list[str]]:
        command = [sys.executable, "-m", "rq.cli", "worker", "--url", self.order.redis, "--quiet"]
        if self.order.variant == "simple":
            command += ["--worker-class", "rq.worker.SimpleWorker"]
        return [command] * self.order.workers

    def enqueue(self, number: int) -> None:
        self.queue.enqueue(job, number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), _LOT):
            self.queue.enqueue_many([Queue.prepare_data(job, (number,)) for number in numbers[first : first + _LOT]])

    def fan(self, count: int) -> None:
        children = []
        for first in range(0, count, _LOT):
            numbers = range(first, min(first + _LOT, count))
            children += self.queue.enqueue_many([Queue.prepare_data(job, (number,)) for number in numbers])
        self.queue.enqueue(callback, depends_on=Dependency(jobs=children, allow_failure=True))


if __name__ == "__main__":
    common.main("bench.peers.rq")
