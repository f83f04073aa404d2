"""What every transaction does last, just before it commits."""

from __future__ import annotations

from gristmill.ledger import events, limits, minutes
from gristmill.ledger.tx import Tx


def settle(tx: Tx) -> None:
    """Lets go on what waited for limits, tells those who follow, counts what was done."""
    limits.settle(tx)
    events.write(tx)
    minutes.write(tx)


def settle_guest(tx: Tx) -> None:
    """The same in a caller's transaction, which may stay open for long: it locks nothing."""
    limits.tell(tx)
    events.write(tx)
    minutes.write_guest(tx)
