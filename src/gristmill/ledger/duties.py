"""Is there anything to do that any worker does for all? One statement: every worker asks, as often as it polls."""

from __future__ import annotations

from typing import NamedTuple

from gristmill.ledger import bulk, chores, events, limits, names, parts, queues, stop, workers
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx


class Duties(NamedTuple):
    due: int | None  # microseconds until the next delayed job is
    classes: bool  # there are new ones; and so on: there is at least one such row
    expired: bool
    stopping: bool
    ending: bool
    unfinished: bool
    orders: bool
    removals: bool
    limits: bool
    events: bool


_LOOKS = {
    "classes": names.CLASSES,
    "expired": workers.EXPIRED,
    "stopping": stop.STOPPING,
    "ending": parts.ENDING,
    "unfinished": chores.PENDING,
    "orders": bulk.LEFT_ALONE,
    "removals": Sql("SELECT 1 FROM gm_removal"),
    "limits": limits.MAY_GO_ON,
    "events": events.NEW,
}
DUTIES = Sql(
    f"SELECT ({queues.NEXT_DUE.text}) AS due, "
    + ", ".join(f"EXISTS ({look.text}) AS {name}" for name, look in _LOOKS.items())
)


def duties(tx: Tx, known: int, quiet: int) -> Duties:
    """`known`: the last class that the worker knows; `quiet`: for how many microseconds an order has been left alone."""
    row = tx.one(DUTIES, known=known, quiet=quiet)
    assert row is not None
    return Duties(row.due, *(bool(getattr(row, name)) for name in _LOOKS))
