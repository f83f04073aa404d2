"""Huey over SQLite and over Redis."""

from __future__ import annotations

import sys
from importlib.metadata import version

from huey import Huey, RedisHuey, SqliteHuey, chord

from bench.peers import common

ABOUT = {
    "version": version("huey"),
    "row_per_job": False,
    "acks": "before running: it is taken from the queue, and lost with its worker",
    "isolation": "2 processes",
    "fan_in": "chord: a count beside the queue; the callback gets the errors too",
    "bulk": "has no call for it: one by one",
}
VARIANTS = {
    "sqlite": {
        "settings": "one `huey_consumer` with 2 processes, an empty queue looked at after 0.1 s, then less often (default)",
        "durability": "SQLite: every commit (its defaults: WAL, synchronous FULL)",
    },
    "redis": {
        "settings": "one `huey_consumer` with 2 processes, blocking reads (default)",
        "durability": "Redis: with appendfsync everysec the last second can be lost",
    },
}


def make_huey() -> Huey:
    order = common.order()
    results = order.scenario == "fan"  # nothing else needs them
    if order.variant == "redis":
        return RedisHuey("bench", url=order.redis, results=results)
    return SqliteHuey("bench", filename=f"{order.folder}/huey.db", results=results)


huey = make_huey()


@huey.task()
def job(number: int) -> None:
    common.job(number)


@huey.task()
def callback(results: object) -> None:
    common.callback()


class Peer(common.Peer):
    def prepare(self) -> None:
        if self.order.scenario == "io":
            raise common.Unsupported("no coroutines")

    def worker_commands(self) -> list[list[str]]:
        command = [sys.executable, "-m", "huey.bin.huey_consumer", "bench.peers.huey.huey", "--quiet"]
        return [[*command, "--workers", str(self.order.workers), "--worker-type", "process"]]

    def enqueue(self, number: int) -> None:
        job(number)

    def fan(self, count: int) -> None:
        huey.enqueue(chord([job.s(number) for number in range(count)], callback.s()))


if __name__ == "__main__":
    common.main("bench.peers.huey")
