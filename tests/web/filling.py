"""A ledger with something of everything in it, for the tests of the pages and for their pictures."""

from __future__ import annotations

import time

from gristmill import Mill
from gristmill.clock import SECOND, Clock
from tests.web import town

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\"'><b>bold</b>"


def mill_of(url: str, clock: Clock | None = None) -> Mill:
    pieces = (town.minutes, town.notify, town.fail, town.fetch, town.hold, town.nightly, town.stalest)
    return Mill.open(url, *pieces, clock=clock)


def busy_hour(url: str) -> None:
    """What was done in the last hour, for a chart of it."""
    for ago in range(57, 1, -2):

        def then(ago: int = ago) -> int:
            return time.time_ns() // 1000 - ago * 60 * SECOND

        with mill_of(url, clock=then) as mill:
            mill.enqueue_many(town.notify, [{"to": "x"}] * (40 + 37 * ago % 61))
            for n in range(ago * 7 % 5):
                mill.enqueue(town.fail, args={"text": f"mailbox {n} is full"})
            mill.work(until="idle", slots=1)


def fill(mill: Mill, hostile: bool = True) -> None:
    """Runs that ended with errors and well, failures of several kinds, hostile text, an open circuit, what waits."""
    text = HOSTILE if hostile else "Fairview"
    mill.declare_schedules()
    for name, pages in (("Millbrook", 40), ("Oakfield", 25), ("Saint-Étienne-du-Vieux-Moulin", 12), (text, 2)):
        mill.start(town.minutes, name, args={"pages": pages})
    mill.set_subject(town.minutes, "Millbrook", interval=86_400, labels={"county": "west", "tier": "gold"})
    for _ in range(3):
        mill.enqueue(town.fail, args={"text": text})
    for _ in range(5):
        mill.enqueue(town.fetch, args={"host": "example.org"})
    mill.work(until="idle", slots=2)
    mill.run_schedule("nightly")
    mill.enqueue(town.notify, args={"to": "ann"}, delay=3600, unique=f"ann {text}")
    mill.pause("mail", by="ann")
    mill.enqueue_many(town.notify, [{"to": str(n)} for n in range(20)])
