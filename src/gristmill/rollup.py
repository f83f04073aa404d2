"""How much was done in a minute, and how long it took: what is counted, and the bounds of the histograms."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

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
UNKNOWN = -1  # how long a job waited, if this is not its first attempt


def spread(times: Sequence[int]) -> list[int]:
    """How many of these times (microseconds) are in each bucket. Those of a batch are nearly always all in one."""
    found = [0] * (len(BOUNDS) + 1)
    if not times:
        return found
    shortest, longest = _bucket(min(times)), _bucket(max(times))
    if shortest == longest:
        found[shortest] = len(times)
        return found
    ordered, before = sorted(times), 0
    for n in range(shortest, longest):
        upto = bisect_right(ordered, _MICROS[n], before)
        found[n], before = upto - before, upto
    found[longest] = len(ordered) - before
    return found


def _bucket(time: int) -> int:
    return bisect_left(_MICROS, time)


class Tallies:
    """What was done of one task in one queue."""

    __slots__ = ("completed", "ran", "retried", "waited")

    def __init__(self) -> None:
        self.completed = self.retried = 0
        self.ran: list[int] = []
        self.waited: list[int] = []

    def values(self) -> dict[str, int]:
        """By column; only those that are not 0."""
        known = self.waited if not self.waited or min(self.waited) >= 0 else [time for time in self.waited if time >= 0]
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
