"""Workers without children, many in a process: `python -m chaos.claimers '{"url": …, "workers": 20, "folder": …, …}'`.

Each has connections of its own, registers, and from then on writes and claims as a worker's turn does. What it took it
holds for a while, as if it were at work. It writes down how long each turn took, and which jobs it got.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import Any

from chaos.record import note
from gristmill.bookkeeping import write
from gristmill.clock import micros
from gristmill.ledger import workers
from gristmill.ledger.claim import Lane, Taken, Want
from gristmill.ledger.exchange import Batch
from gristmill.ledger.store import Ledger
from tests.ledger.play import plain

LEASE = 30.0  # as a worker has unless told otherwise


def claim_away(order: dict[str, Any], number: int) -> None:
    """One worker: connects when all do, and is gone when the time is over."""
    dice = random.Random(order["seed"] * 1000 + number)
    ledger = Ledger(order["url"])
    time.sleep(max(0.0, order["begin"] - time.monotonic()))
    began = time.monotonic()
    who = workers.Registration("chaos", os.getpid(), "never", [], order["jobs"], "chaos")
    me = ledger.do(workers.register, who, micros(LEASE))
    note(order["folder"], "connected", time.monotonic() - began)
    wants = [Want(0, order["jobs"], (Lane(order["queue"], 0),))]
    batch, until, beat = Batch(), order["begin"] + order["seconds"], time.monotonic() + LEASE / 3
    while (at := time.monotonic()) < until:
        if at > beat:
            ledger.do(workers.heartbeat, me, micros(LEASE))
            beat, at = at + LEASE / 3, time.monotonic()
        taken = write(ledger, me, batch, wants, {0: order["jobs"]}).taken
        assert taken is not None
        note(order["folder"], "claimed", me, time.monotonic() - at, at - order["begin"], [job.id for job in taken.jobs])
        batch = _done(taken)
        time.sleep(order["hold"] * dice.uniform(0.5, 1.5))
    write(ledger, me, batch)
    ledger.do(workers.leave, me)
    ledger.close()


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
