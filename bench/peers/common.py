"""What the programs of the peers have in common: the order they get, the job they run, and how jobs are counted.

`python -m bench.peers.NAME ORDER` (JSON) prints one line of JSON. A program has `ABOUT` (a dict: version, settings,
durability, row_per_job, acks, isolation, fan_in; `VARIANTS` has what differs, by `order.variant`, where a peer is
measured in several ways, such as "redis" and "postgres"), a class `Peer` that derives from the one here, the functions
that its workers run, and ends with:

    if __name__ == "__main__":
        common.main("bench.peers.NAME")

which imports it once more by that name, so that client and workers know the same functions. What is measured, and how,
is in scenarios.py and the same for all. Only the standard library here: every peer's environment imports this.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ORDER_VARIABLE = "GRISTMILL_BENCH_ORDER"  # workers and their children find the order there
CALLBACK = 2**32 - 1  # the number that a fan-in's callback marks
ENDED = 2**31  # added to a job's number when it has ended, where begin and end are told apart
SLOW = 0.02  # seconds that a job of the scenario "kill" takes
AWAIT = 0.01  # seconds of each await of the scenario "io"
_MARK = struct.Struct("<IQ")


class Unsupported(Exception):
    """This peer cannot do that; says why."""


class Failed(Exception):
    """What a child raises that is meant to fail."""


@dataclass(frozen=True)
class Order:
    """What to do, with which servers. The database and the folder are empty and nobody else's."""

    scenario: str
    folder: str  # marks and logs; a peer that keeps files may keep them here too
    variant: str = ""
    count: int = 1000
    seconds: float = 10.0  # measure for at most so long
    workers: int = 2  # processes
    redis: str = ""  # redis://127.0.0.1:PORT/0
    postgres: str = ""  # postgresql://USER@127.0.0.1:PORT/NAME
    fail: float = 0.0  # of the children of a fan-out, so many
    rate: float = 0.0  # jobs per second that the peer has drained, for half of it as load
    awaits: int = 10  # of 10 ms, one after the other, in a job of the scenario "io"
    at_once: int = 1000  # jobs of that scenario, in all processes together

    @classmethod
    def read(cls, text: str) -> Order:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))


@functools.cache
def order() -> Order:
    """The order, in a worker: imported functions have nobody else to ask. In the program itself: while it is imported."""
    return Order.read(os.environ.get(ORDER_VARIABLE) or sys.argv[1])


class Peer:
    """What a program must be able to do for the scenarios; all of it synchronous, whatever is behind it."""

    no_fan = ""  # why it has no fan-in

    def __init__(self, order: Order) -> None:
        self.order = order

    def prepare(self) -> None:
        """Makes tables and the like; called once, before anything else, and not measured."""

    def worker_commands(self) -> list[list[str]]:
        """The commands that start the workers: `order.workers` processes in all. For the scenario "io" they must take
        `order.at_once` jobs at once, together."""
        raise NotImplementedError

    def enqueue(self, number: int) -> None:
        """One job: `job(number)`, in a call of its own, as a program does that has one job to enqueue. For the scenario
        "io": `job_async(number)`."""
        raise NotImplementedError

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Many of them, by the fastest way that the peer documents."""
        raise Unsupported("no way to enqueue many jobs at once")

    def fan(self, count: int) -> None:
        """Starts a fan-out of `count` jobs (`job(number)`, none of which is tried again) and what runs after the last of
        them: `callback()`. Returns at once."""
        raise NotImplementedError


# ---- what the peers' jobs call -----------------------------------------------------------------------------------


def job(number: int) -> None:
    """What every peer's job does: it says that it ran. By the scenario it takes a little time, or fails."""
    this = order()
    if this.scenario == "kill":
        mark(this.folder, number)
        time.sleep(SLOW)
        mark(this.folder, number + ENDED)
        return
    if fails(number, this.fail):
        raise Failed(f"child {number} was meant to fail")
    mark(this.folder, number)


async def job_async(number: int) -> None:
    """The same for peers whose jobs are coroutines, and the job of the scenario "io" for those that can have both."""
    this = order()
    if this.scenario == "kill":
        mark(this.folder, number)
        await asyncio.sleep(SLOW)
        mark(this.folder, number + ENDED)
        return
    if this.scenario == "io":
        for _ in range(this.awaits):
            await asyncio.sleep(AWAIT)
    elif fails(number, this.fail):
        raise Failed(f"child {number} was meant to fail")
    mark(this.folder, number)


def callback() -> None:
    """What runs when a fan-out's children have ended."""
    mark(order().folder, CALLBACK)


def fails(number: int, share: float) -> bool:
    """Spread evenly, the same ones for everybody."""
    return int((number + 1) * share) > int(number * share)


_files: dict[tuple[str, int], int] = {}


def mark(folder: str, number: int) -> None:
    """This number, now. One write to a file of this process, so that it is there also after a kill -9."""
    process = os.getpid()  # not kept: some peers fork
    file = _files.get((folder, process))
    if file is None:
        file = os.open(f"{folder}/marks-{process}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        _files[folder, process] = file
    os.write(file, _MARK.pack(number, time.monotonic_ns()))


# ---- for those who count -----------------------------------------------------------------------------------------


def marked(folder: str) -> int:
    """How many marks there are; cheap."""
    return sum(path.stat().st_size for path in Path(folder).glob("marks-*")) // _MARK.size


def marks(folder: str) -> list[tuple[int, int]]:
    """(number, when in monotonic nanoseconds) of each mark, by time."""
    found: list[tuple[int, int]] = []
    for path in Path(folder).glob("marks-*"):
        data = path.read_bytes()
        found += _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size])
    return sorted(found, key=lambda mark: mark[1])


# ---- the program -------------------------------------------------------------------------------------------------


def main(module: str) -> None:
    """Does what the order says and prints the result."""
    from bench.peers import scenarios

    given = Order.read(sys.argv[1])
    os.environ[ORDER_VARIABLE] = given.text()
    program = importlib.import_module(module)
    result: dict[str, Any]
    if given.scenario == "about":
        result = {**program.ABOUT, **getattr(program, "VARIANTS", {}).get(given.variant, {})}
    else:
        try:
            result = scenarios.run(program.Peer(given))
        except Unsupported as why:
            result = {"unsupported": str(why)}
    print(json.dumps(result), flush=True)
    os._exit(0)  # no client library's threads keep it from ending
