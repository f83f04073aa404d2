"""What everything in a simulation shares: the clock, the dice, the trace, and how the world of a seed is like."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class World:
    """One seed's."""

    seed: int
    keep_trace: bool = False
    now: float = 1000.0  # the monotonic clock of all hosts
    calm: bool = False  # nothing goes wrong any more
    steps: int = 0
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.nature = Nature.draw(self.dice)
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
