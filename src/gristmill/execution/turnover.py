"""How fast an event loop goes through its jobs, and how many it may therefore hold in advance; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp

_LATELY = (0.05, 1.0)  # seconds that the rate is taken from: two jobs' time, so that those in step make no waves
_RECENT = 50  # jobs; what earlier ones took counts for as much as so many
_OVERDUE = 0.1  # seconds and half its time that a job may be over it, and still be expected to end any moment


class Turnover:
    """One event loop's, as its supervisor has seen it lately. Times are those of the monotonic clock."""

    def __init__(self) -> None:
        self.rate = 0.0  # jobs that end per second; of earlier ones the less, the longer ago
        self.takes = 0.0  # seconds that a job takes; 0 while nothing is known
        self.ended_at = 0.0  # when the last end was heard of

    def ended(self, jobs: int, seconds: float, now: float) -> None:
        """So many have ended, which took so long on average."""
        self.takes += (seconds - self.takes) * (jobs / (jobs + _RECENT) if self.takes else 1.0)
        shortest, longest = _LATELY
        lately = min(max(shortest, 2 * self.takes), longest)
        self.rate = self.rate * exp((self.ended_at - now) / lately) + jobs / lately
        self.ended_at = now

    def forget(self) -> None:
        """What was held in advance came back: others take longer than was thought. Nothing is known until one ends."""
        self.rate = self.takes = 0.0

    def ahead(self, begun: Iterable[float], at_work: int, depth: float, soon: float, now: float) -> int:
        """How many jobs may wait there: as many as end within `depth` seconds. Those at work began at `begun`, the first
        one first; where they take longer than `soon`, not more than will be through with theirs by then."""
        if self.takes <= soon:
            return int(self.rate * depth)
        most = int(at_work / self.takes * depth)
        latest, earliest = now + soon - self.takes, now - 1.5 * self.takes - _OVERDUE
        due = 0
        for at in begun:
            if at > latest or due == most:
                break
            due += at > earliest
        return due

    def due_at(self, first: float, soon: float) -> float:
        """When the job that began first makes room soon enough for others to be fetched."""
        return first + self.takes - soon / 2
