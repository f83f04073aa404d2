"""How much was done in a minute, and how long it took: what is counted, and the bounds of the histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

MINUTE = 60_000_000  # microseconds
BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)  # seconds; the last bucket has no bound
_MICROS = [round(bound * 1_000_000) + 1 for bound in BOUNDS]

ENDS = ("completed", "completed_with_errors", "failed", "skipped", "cancelled")
# `retried`: attempts after which their job was queued again for another; `ran`, `waited`: microseconds in all; `waits`: of
# how many jobs it is known how long they waited (those that ended in their first attempt).
COUNTS = (*ENDS, "retried", "ran", "waited", "waits")
RAN = tuple(f"ran_{n}" for n in range(len(BOUNDS) + 1))
WAITED = tuple(f"waited_{n}" for n in range(len(BOUNDS) + 1))
BUCKETS = (*RAN, *WAITED)
UNKNOWN = -1  # how long a job waited, if this is not its first attempt


def spread(times: Iterable[int]) -> list[int]:
    """How many of these times (microseconds) are in each bucket. Sorted first: a batch's are nearly so already."""
    ordered = sorted(times)
    if not ordered:
        return [0] * (len(BOUNDS) + 1)
    first = bisect_left(ordered, 0)  # those before it are not known
    upto = [bisect_left(ordered, bound, first) for bound in _MICROS] + [len(ordered)]
    return [after - before for before, after in zip([first, *upto], upto, strict=False)]


class Tallies:
    """What was done of one task in one queue."""

    __slots__ = ("completed", "ran", "retried", "waited")

    def __init__(self) -> None:
        self.completed = self.retried = 0
        self.ran: list[int] = []
        self.waited: list[int] = []

    def values(self) -> dict[str, int]:
        """By column; only those that are not 0."""
        known = [time for time in self.waited if time >= 0]
        counts = {
            "completed": self.completed,
            "retried": self.retried,
            "ran": sum(self.ran),
            "waited": sum(known),
            "waits": len(known),
        }
        buckets = dict(zip(BUCKETS, spread(self.ran) + spread(known), strict=True))
        return {name: number for name, number in (counts | buckets).items() if number}


class Done:
    """What ended in a transaction: by worker, queue and task; and the jobs whose rows tell it."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[int, int, int], Tallies] = {}
        self._jobs: dict[int, list[int]] = {}

    def completed(self, worker: int, queue: int, task: int, ran: Sequence[int], waited: Sequence[int]) -> None:
        """Plain completions."""
        tallies = self._of(worker, queue, task)
        tallies.completed += len(ran)
        tallies.ran += ran
        tallies.waited += waited

    def retried(self, worker: int, queue: int, task: int, ran: int) -> None:
        """An attempt failed, and there will be another."""
        tallies = self._of(worker, queue, task)
        tallies.retried += 1
        tallies.ran.append(ran)

    def ended(self, worker: int, jobs: Iterable[int]) -> None:
        """All other ends."""
        self._jobs.setdefault(worker, []).extend(jobs)

    def _of(self, worker: int, queue: int, task: int) -> Tallies:
        return self._tallies.setdefault((worker, queue, task), Tallies())

    def taken(self) -> dict[tuple[int, int, int], Tallies]:
        """What is to be written; nothing is left."""
        found, self._tallies = self._tallies, {}
        return found

    def jobs_taken(self) -> dict[int, list[int]]:
        found, self._jobs = self._jobs, {}
        return {worker: jobs for worker, jobs in found.items() if jobs}
