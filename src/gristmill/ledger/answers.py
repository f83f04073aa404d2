"""What was asked for, as whoever asked sees it.

It is read in the transaction that writes it: once that is committed nothing can go wrong any more, and nobody asks again
for what is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gristmill.ledger import limits, read
from gristmill.ledger.tx import GuestTx, Tx
from gristmill.model import Job, Run

T = TypeVar("T")


def seen(tx: Tx, look: Callable[[Tx, Sequence[Any]], T], verb: Callable[..., Any], *args: Any) -> tuple[Any, T]:
    """A verb's answer, and what that stands for."""
    answer = verb(tx, *args)
    if not isinstance(tx, GuestTx):
        limits.settle(tx)  # the last thing that changes something, so that it is seen
    return answer, look(tx, answer)


def run(tx: Tx, answer: Sequence[Any]) -> Run:
    """Of `start.start`."""
    return read.run(tx, answer[0])


def job(tx: Tx, answer: Sequence[Any]) -> Job:
    """Of `start.enqueue`: a new job without a limit is as it was added, and need not be read. Then the names of its task
    and queue are empty: whoever asked knows them."""
    row = answer[2] if len(answer) > 2 else None
    return read.job(tx, answer[0]) if row is None or row.limit_id is not None else read.job_of(row)
