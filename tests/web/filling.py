"""A ledger with something of everything in it, for the tests of the pages and for their pictures."""

from __future__ import annotations

from gristmill import Mill
from tests.web import town

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\"'><b>bold</b>"


def mill_of(url: str) -> Mill:
    pieces = (town.minutes, town.notify, town.fail, town.fetch, town.hold, town.nightly, town.stalest)
    return Mill.open(url, *pieces)


def fill(mill: Mill) -> None:
    """Runs that ended with errors and well, failures of several kinds, hostile text, an open circuit, what waits."""
    mill.declare_schedules()
    for name, pages in (("Millbrook", 40), ("Oakfield", 25), ("Saint-Étienne-du-Vieux-Moulin", 12), (HOSTILE, 2)):
        mill.start(town.minutes, name, args={"pages": pages})
    mill.set_subject(town.minutes, "Millbrook", interval=86_400, labels={"county": "west", "tier": "gold"})
    for _ in range(3):
        mill.enqueue(town.fail, args={"text": HOSTILE})
    for _ in range(5):
        mill.enqueue(town.fetch, args={"host": "example.org"})
    mill.work(until="idle", slots=2)
    mill.run_schedule("nightly")
    mill.enqueue(town.notify, args={"to": "ann"}, delay=3600, unique=f"ann {HOSTILE}")
    mill.pause("mail", by="ann")
    mill.enqueue_many(town.notify, [{"to": str(n)} for n in range(20)])
