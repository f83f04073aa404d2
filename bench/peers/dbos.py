"""DBOS Transact over SQLite and over PostgreSQL."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig, run_dbos_database_migrations

from bench.peers import common

_QUEUE = "bench"
_LOT = 1000  # jobs of one transaction

ABOUT = {
    "version": version("dbos"),
    "settings": "2 processes with an executor_id each; one queue without limits that is polled every second (default)",
    "row_per_job": True,
    "acks": "after; a killed process runs its jobs again when it starts anew",
    "isolation": "threads of 2 processes",
    "fan_in": "a parent workflow waits for the handles of its children; what it knows is kept",
    "bulk": f"enqueue_in_transaction(): an INSERT per job, {_LOT:,} in a transaction",
}
VARIANTS = {
    "sqlite": {"durability": "SQLite: every commit (its defaults: a rollback journal, synchronous FULL)"},
    "postgres": {"durability": "PostgreSQL: every commit"},
}


def database() -> str:
    order = common.order()
    if order.variant == "postgres":
        return order.postgres
    return f"sqlite:///{order.folder}/dbos.sqlite"


@DBOS.workflow(name="job")
def job(number: int) -> None:
    common.job(number)


@DBOS.workflow(name="job_async")
async def job_async(number: int) -> None:
    await common.job_async(number)


@DBOS.workflow(name="parent")
def parent(count: int) -> None:
    for child in [DBOS.enqueue_workflow(_QUEUE, job, number) for number in range(count)]:
        with contextlib.suppress(common.Failed):
            child.get_result()
    callback()


@DBOS.step()
def callback() -> None:
    common.callback()


def work(executor: str) -> None:
    """What a worker process runs."""
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": database(),
        "executor_id": executor,
        "application_version": "1",
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    threading.Event().wait()


class Peer(common.Peer):
    def prepare(self) -> None:
        url = database()
        run_dbos_database_migrations(system_database_url=url)
        self.client = DBOSClient(system_database_url=url, application_name="bench")
        self.client.register_queue(_QUEUE)
        self.engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        name = "job_async" if self.order.scenario == "io" else "job"
        self.options: Any = {"workflow_name": name, "queue_name": _QUEUE, "app_version": "1"}

    def worker_commands(self) -> list[list[str]]:
        code = "import sys; from bench.peers import dbos; dbos.work(sys.argv[1])"
        return [[sys.executable, "-c", code, str(number)] for number in range(self.order.workers)]

    def enqueue(self, number: int) -> None:
        self.client.enqueue(self.options, number)

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), _LOT):
            with self.engine.begin() as connection:
                for number in numbers[first : first + _LOT]:
                    self.client.enqueue_in_transaction(connection, self.options, number)

    def fan(self, count: int) -> None:
        self.client.enqueue({**self.options, "workflow_name": "parent"}, count)


if __name__ == "__main__":
    common.main("bench.peers.dbos")
