"""How much was done in a minute, and how long it took: what is counted, and the bounds of the histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

MINUTE = 60_000_000  # microseconds
BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)  # seconds; the last bucket has no bound
_MICROS = [round(bound * 1_000_000) for bound in BOUNDS]

ENDS = ("completed", "completed_with_errors", "failed", "skipped", "cancelled")
# `retried`: attempts after which their job was queued again for another; `ran`, `waited`: microseconds in all; `waits`: of
# how many jobs it is known how long they waited (those that ended in their first attempt).
COUNTS = (*ENDS, "retried", "ran", "waited", "waits")
RAN = tuple(f"ran_{n}" for n in range(len(BOUNDS) + 1))
WAITED = tuple(f"waited_{n}" for n in range(len(BOUNDS) + 1))
BUCKETS = (*RAN, *WAITED)


def spread(times: Iterable[int]) -> list[int]:
    """How many of these times (microseconds) are in each bucket. Sorted first: a batch's are nearly so already."""
    ordered = sorted(times)
    upto = [bisect_left(ordered, bound + 1) for bound in _MICROS] + [len(ordered)]
    return [after - before for before, after in zip([0, *upto], upto, strict=False)]
