"""Celery over Redis with its process pool; acknowledged before running (its default) or after."""

from __future__ import annotations

import sys
from importlib.metadata import version

from celery import Celery, chord

from bench.peers import common

_SETTINGS = "one `celery worker` with 2 processes (prefork), 4 messages fetched ahead for each (default), JSON{}"

ABOUT = {
    "version": version("celery"),
    "durability": "Redis: with appendfsync everysec the last second can be lost",
    "row_per_job": False,
    "isolation": "2 processes; one that dies takes its job along and is replaced",
    "fan_in": "chord: a count in Redis; by default one child that fails makes the callback fail too, unrun",
    "bulk": "has no call for it: one by one",
}
VARIANTS = {
    "early": {"settings": _SETTINGS.format(""), "acks": "before running (default)"},
    "late": {
        "settings": _SETTINGS.format(", acks_late"),
        "acks": "after; what a killed worker held comes back after an hour (Redis's visibility timeout, default)",
    },
}


def make_app() -> Celery:
    order = common.order()
    app = Celery("bench", broker=order.redis, backend=order.redis if order.scenario == "fan" else None)
    app.conf.update(
        task_ignore_result=order.scenario != "fan",  # nothing else needs results
        task_acks_late=order.variant == "late",
        broker_connection_retry_on_startup=True,
    )
    return app


app = make_app()


@app.task(name="job")
def job(number: int) -> None:
    common.job(number)


@app.task(name="callback")
def callback() -> None:
    common.callback()


class Peer(common.Peer):
    def prepare(self) -> None:
        if self.order.scenario == "io":
            raise common.Unsupported("no coroutines")

    def worker_commands(self) -> list[list[str]]:
        command = [sys.executable, "-m", "celery", "--app", "bench.peers.celery:app", "worker", "--loglevel", "WARNING"]
        return [[*command, "--concurrency", str(self.order.workers)]]

    def enqueue(self, number: int) -> None:
        job.delay(number)

    def fan(self, count: int) -> None:
        chord([job.s(number) for number in range(count)])(callback.si())


if __name__ == "__main__":
    common.main("bench.peers.celery")
