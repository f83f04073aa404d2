"""Where to look at a line from, while PostgreSQL's index still holds entries of jobs that were taken."""

from __future__ import annotations

import time
from typing import NamedTuple

from gristmill.ledger.claim import Lane, find_floor
from gristmill.ledger.store import Ledger

_EVERY, _AFTER = 0.05, 200  # seconds and claimed jobs before it is worth looking how far a line was cleared
_WHOLE = 1.0  # seconds, at least, between looks at a whole line, dead entries included
_SHARE, _LATEST = 200, 3.0  # and times as long as the last such look took, up to so many seconds


class _Floor(NamedTuple):
    """Where to look from, when that was found, after how many claimed jobs, and until when it only rises."""

    ready: int
    moved: float
    taken: int
    rising: float


class Floors:
    """Of the lines (queue, pool, priority) that a worker serves.

    The index keeps entries of jobs that were taken as long as a statement is under way which began before, as those do that
    wait for a run that others are writing to. A look at the whole line reads all of them. Each of many workers does, so the
    longer a look takes, the rarer it becomes: what was committed late waits for it. A line that seems empty from its floor
    on is looked at as a whole by whoever has nothing else to do.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[tuple[int, int, int], _Floor] = {}

    def of(self, line: tuple[int, int, int], now: float, taken: int) -> int:
        """All below it is gone, but for what was committed late. `taken`: jobs that the worker has claimed so far."""
        floor = self._known.get(line) or _Floor(0, now, taken, now + _WHOLE)
        if now > floor.rising:
            began = time.monotonic()
            lowest = self._find(line, 0)
            pause = _SHARE * (time.monotonic() - began)
            floor = _Floor(lowest, now, taken, now + min(max(_WHOLE, pause), _LATEST))
        elif now - floor.moved > _EVERY and taken - floor.taken > _AFTER:
            floor = floor._replace(ready=self._find(line, floor.ready), moved=now, taken=taken)
        self._known[line] = floor
        return floor.ready

    def _find(self, line: tuple[int, int, int], above: int) -> int:
        with self._ledger.reading() as tx:
            return find_floor(tx, Lane(*line, above))
