"""Which workers could run a job: those of its queue that have what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gristmill.demand import Offer


class Worker(NamedTuple):
    """What a worker says that it serves, and has."""

    queues: Sequence[str]  # none: all
    slots: int
    own_slots: Mapping[str, int]
    labels: Sequence[str]
    memory: int

    @classmethod
    def of(cls, row: Any) -> Worker:
        queues, own, labels = map(orjson.loads, (row.queues, row.own_slots, row.labels))
        return cls(queues, row.slots, own, labels, row.memory)


def offers(workers: Iterable[Worker], queue: str, pool: int) -> Iterator[Offer]:
    """What those who serve a queue have for jobs of a pool. Async ones take no slots."""
    for worker in workers:
        if not worker.queues or queue in worker.queues:
            yield Offer(worker.labels, 1 if pool % 2 else worker.own_slots.get(queue, worker.slots), worker.memory)
