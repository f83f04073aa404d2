"""What everything in a simulation shares: the clock, the dice, the trace, and how the world of a seed is like."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gristmill.clock import SECOND

LEASE, POLL = 6.0, 2.0  # seconds, of every worker here
_EPOCH = 1_700_000_000 * SECOND


class Killed(BaseException):
    """Thrown through whatever a process is doing: it does not do the rest."""


class Broken(Exception):
    """Something does not hold."""


class Actor(Protocol):
    """Whoever writes to the ledger: a worker, a child, an operator."""

    name: str
    suspended: bool  # it waits in the middle of something while others go on

    @property
    def dead(self) -> bool: ...


@dataclass(frozen=True)
class Nature:
    """How things go wrong in the world of a seed: probabilities, some of them zero."""

    faults: float  # of a transaction: it fails before, within or after its commit
    pauses: float  # that others go on between two transactions of one
    deaths: float  # of a worker's or a child's process, per step
    freezes: float
    failures: float  # of a job, in one way or another
    bells: float  # lost, late or doubled
    operators: float  # per step
    retries: bool  # do operators queue again what has ended?
    reconciled: bool = False  # do operators reconcile most of the time?

    @classmethod
    def draw(cls, dice: random.Random) -> Nature:
        def some(*chances: float) -> float:
            return dice.choice(chances)

        return cls(
            faults=some(0.0, 0.02, 0.1),
            pauses=some(0.0, 0.03, 0.1),
            deaths=some(0.0, 0.01, 0.04),
            freezes=some(0.0, 0.02),
            failures=some(0.0, 0.2, 0.5),
            bells=some(0.0, 0.2, 1.0),
            operators=some(0.02, 0.08),
            retries=dice.random() < 0.4,
        )

    def with_reconcilers(self) -> Nature:
        """The same world, in which reconcilers and workers meet often, and nothing that has ended is asked for again."""
        return replace(self, pauses=0.2, freezes=max(self.freezes, 0.02), operators=0.3, retries=False, reconciled=True)


@dataclass
class World:
    """One seed's."""

    seed: int
    keep_trace: bool = False
    now: float = 1000.0  # the monotonic clock of all hosts
    calm: bool = False  # nothing goes wrong any more
    steps: int = 0
    reconciled: bool = False  # a world of reconcilers
    meetings: int = 0  # passes of a reconciler in which it met a worker in the middle of something
    commits: Counter[str] = field(default_factory=Counter)  # by who
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        drawn = Nature.draw(self.dice)
        self.nature = drawn.with_reconcilers() if self.reconciled else drawn
        self._hash = hashlib.sha256()
        self.others: Callable[[Actor], None] = lambda actor: None  # lets others go on, while this one waits

    def monotonic(self) -> float:
        return self.now

    def ledger_time(self) -> int:
        return _EPOCH + int(self.now * SECOND)

    def chance(self, probability: float) -> bool:
        """Does it go wrong? Not any more in a calm world."""
        return not self.calm and probability > 0 and self.dice.random() < probability

    def trace(self, who: str, what: str, *more: Any) -> None:
        line = f"{self.now:.6f} {who} {what} {' '.join(map(str, more))}"
        self._hash.update(line.encode() + b"\n")
        if self.keep_trace:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]
