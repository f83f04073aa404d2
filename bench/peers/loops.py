"""What is the most there is to reach: raw loops over Gristmill's own tables, and a bare asyncio.gather. No queue."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bench import raw
from bench.peers import common, gristmill, scenarios
from gristmill.ledger.migrate import upgrade
from gristmill.ledger.sql import Sql

ABOUT = {
    "version": "",
    "settings": f"one process, batches of {raw.BATCH}; one executemany or COPY; one asyncio.gather",
    "durability": "every commit",
    "row_per_job": True,
    "acks": "",
    "isolation": "none",
    "fan_in": "",
    "bulk": "",
}
_NUMBERS = Sql("SELECT task_id, queue_id FROM gm_job LIMIT 1")


def drain(order: common.Order) -> dict[str, Any]:
    with gristmill.open_mill() as mill:
        mill.enqueue_many(gristmill.job, ({"number": number} for number in range(order.count)))
        return {"rate": raw.drain(mill.ledger, mill._queue_id("bench")), "count": order.count}


def bulk(order: common.Order) -> dict[str, Any]:
    with gristmill.open_mill() as mill:
        mill.enqueue(gristmill.job, args={"number": 0})
        with mill.ledger.reading() as tx:
            task, queue = tx.one(_NUMBERS)
        return {"rate": raw.fill(mill.ledger, task, queue, range(order.count)), "count": order.count}


def io(order: common.Order) -> dict[str, Any]:
    """As many coroutines as run at once, each with its share of the jobs; by the marks, as everybody's is."""

    async def share(first: int) -> None:
        for number in range(first, order.count, order.at_once):
            await common.job_async(number)

    async def gather() -> None:
        await asyncio.gather(*(share(first) for first in range(order.at_once)))

    asyncio.run(gather())
    times = [when for _, when in common.marks(order.folder)]
    return {"rate": scenarios.rate(times), "steady": scenarios.steady(times), "count": order.count}


SCENARIOS = {"drain": drain, "bulk": bulk, "io": io}


def main() -> None:
    order = common.order()
    if order.scenario == "about":
        result: dict[str, Any] = ABOUT
    elif order.scenario in SCENARIOS:
        upgrade(gristmill.database())
        result = SCENARIOS[order.scenario](order)
    else:
        result = {"unsupported": "a loop is no queue"}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
