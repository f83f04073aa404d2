"""Workers without children, many in a process: `python -m chaos.claimers '{"url": …, "workers": 20, "folder": …, …}'`.

Each has connections of its own, registers, and from then on writes and claims as a worker's turn does; where the database
is away it tries again as a worker does. What it took it holds for a while, as if it were at work. It writes down how long
each turn took, and which jobs it got.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from chaos.record import note
from gristmill.bookkeeping import write
from gristmill.clock import micros
from gristmill.errors import Unavailable
from gristmill.ledger import workers
from gristmill.ledger.claim import Lane, Taken, Want
from gristmill.ledger.exchange import Batch
from gristmill.ledger.store import Ledger
from gristmill.worker import backoff
from tests.ledger.play import plain

T = TypeVar("T")

LEASE = 30.0  # as a worker has unless told otherwise


def claim_away(order: dict[str, Any], number: int) -> None:
    """One worker: begins when all do, and is gone when the time is over."""
    dice = random.Random(order["seed"] * 1000 + number)
    ledger = Ledger(order["url"])
    who = workers.Registration("chaos", os.getpid(), "never", [], order["jobs"], "chaos")
    me = patiently(partial(ledger.do, workers.register, who, micros(LEASE)))
    time.sleep(max(0.0, order["begin"] - time.monotonic()))
    wants = [Want(0, order["jobs"], (Lane(order["queue"], 0),))]
    batch, until, beat = Batch(), order["begin"] + order["seconds"], time.monotonic() + LEASE / 3
    lost = False  # is a claim possible that this worker does not know of?
    while (at := time.monotonic()) < until:
        if at > beat or lost:
            patiently(partial(ledger.do, workers.release_strays_of, me, {row[0] for row in batch.completed.rows}))
            patiently(partial(ledger.do, workers.heartbeat, me, micros(LEASE)))
            beat, at, lost = time.monotonic() + LEASE / 3, time.monotonic(), False
        try:
            taken = write(ledger, me, batch, wants, {0: order["jobs"]}).taken
        except Unavailable:
            lost = True
            continue
        assert taken is not None
        note(order["folder"], "claimed", me, time.monotonic() - at, at, [job.id for job in taken.jobs])
        batch = _done(taken)
        time.sleep(order["hold"] * dice.uniform(0.5, 1.5))
    write(ledger, me, batch)
    ledger.do(workers.leave, me)
    ledger.close()


def patiently(act: Callable[[], T]) -> T:
    for failures in itertools.count():
        try:
            return act()
        except Unavailable:
            time.sleep(backoff(failures))
    raise AssertionError


def _done(taken: Taken) -> Batch:
    return Batch(completed=plain(*taken.jobs), ended_claims=[] if taken.claim is None else [taken.claim])


def main(order: dict[str, Any]) -> None:
    numbers = range(order["first"], order["first"] + order["workers"])
    threads = [threading.Thread(target=claim_away, args=(order, number)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
