"""How a worker shares its starts among several queues: by weight, or strictly in order. Pure.

Stride scheduling: every queue has a virtual time that grows by 1/weight with each start; the one that is
furthest behind goes next. Shares are exact over any window, and no queue with work ever starves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Shares:
    """Virtual time per queue. `sequence` proposes whose turn it is, `charge` books what really started."""

    def __init__(self) -> None:
        self._time: dict[int, float] = {}
        self._now = 0.0  # the virtual time of the queue that was furthest behind when something last started

    def sequence(self, weights: Mapping[int, float], starts: int) -> Iterator[int]:
        """Whose turn it is for the next `starts` starts, among the queues in `weights`; most askers stop early."""
        time = self._caught_up(weights)
        for _ in range(starts if time else 0):
            queue = min(time, key=lambda q: (time[q], q))
            time[queue] += 1 / weights[queue]
            yield queue

    def charge(self, weights: Mapping[int, float], started: Mapping[int, int]) -> None:
        """Books so many starts per queue."""
        self._time.update(self._caught_up(weights))
        for queue, starts in started.items():
            self._time[queue] += starts / weights[queue]
        self._now = min((self._time[q] for q in weights), default=self._now)

    def refund(self, weights: Mapping[int, float], returned: Mapping[int, int]) -> None:
        """Takes back starts that were booked and did not happen; as if just now, for a queue that had no work since."""
        self._time = {queue: max(time, self._now) for queue, time in self._time.items()}
        for queue, starts in returned.items():
            if queue in weights and queue in self._time:
                self._time[queue] -= starts / weights[queue]
                self._now = min(self._now, self._time[queue])

    def _caught_up(self, weights: Mapping[int, float]) -> dict[int, float]:
        """A queue that had no work gets no credit for that: it joins at the present virtual time."""
        return {q: max(self._time.get(q, self._now), self._now) for q in weights}
