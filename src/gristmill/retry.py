"""When a failed job is tried again: declared by the task, stored with it, decided here without any I/O.

Attempt and budget are two things. The attempt only ever grows and fences writes. The budget is four counters
on the job, one per way to fail; each has a limit in the policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gristmill.errors import Invalid, quoted


class Failure(StrEnum):
    """The ways to fail; each spends its own counter on the job."""

    ERROR = "errors"  #: the function raised
    CRASH = "crashes"  #: its process died: segfault, os._exit, out of memory
    TIMEOUT = "timeouts"  #: it was stopped at its time limit
    LOSS = "losses"  #: its worker was lost


def error_name(kind: type[BaseException] | str) -> str:
    """The name that policies and attempts use for an error type: `ValueError`, `httpx.ReadTimeout`."""
    if isinstance(kind, str):
        return kind
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class Retries:
    """`Retries(3, delays=[1, 5, 15])`: three retries after the first attempt; the last delay repeats.

    `crashes`, `timeouts` and `losses` limit the retries after those (timeouts: as many as errors, unless given).
    `by_error` gives some error types a policy of their own, looked up along the error's base classes:
    `Retries(3, by_error={ConnectionError: Retries(10, delays=[60]), ValueError: Retries(0)})`.
    """

    times: int = 0
    delays: Sequence[float] = (1.0, 5.0, 15.0, 60.0)
    jitter: float = 0.0  # a share of the delay, added or taken away at random
    crashes: int = 2  # a poison job is parked after three runs
    timeouts: int | None = None
    losses: int = 3
    by_error: Mapping[type[BaseException] | str, Retries] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = {"times": self.times, "crashes": self.crashes, "timeouts": self.timeouts or 0, "losses": self.losses}
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 10_000:
                raise Invalid(f"Retries({name}=…) wants a whole number from 0 to 10,000, not {quoted(count)}")
        delays: object = self.delays
        if isinstance(delays, str) or not isinstance(delays, Sequence):
            raise Invalid(f"Retries(delays=…) wants a list of seconds, not {quoted(self.delays)}")
        by_name = {error_name(kind): policy for kind, policy in self.by_error.items()}
        object.__setattr__(self, "by_error", by_name)
        if not self.delays or any(not isinstance(d, int | float) or not 0 <= d < 1e9 for d in self.delays):
            raise Invalid(
                f"Retries(delays=…) wants at least one number of seconds, none negative, not {quoted(self.delays)}"
            )
        if not 0 <= self.jitter <= 1:
            raise Invalid(f"Retries(jitter=…) wants a share from 0 to 1, not {quoted(self.jitter)}")

    @classmethod
    def exponential(
        cls, times: int, first: float = 1.0, factor: float = 2.0, longest: float = 3600.0, jitter: float = 0.1
    ) -> Retries:
        """Delays of `first`, `first × factor`, …, never over `longest`, with jitter."""
        delays = [min(longest, first * factor**n) for n in range(min(max(times, 1), 64))]
        return cls(times, delays=delays, jitter=jitter)

    def to_json(self) -> dict[str, Any]:
        return {
            "times": self.times,
            "delays": list(self.delays),
            "jitter": self.jitter,
            "crashes": self.crashes,
            "timeouts": self.timeouts,
            "losses": self.losses,
            "by_error": {str(kind): policy.to_json() for kind, policy in self.by_error.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Retries:
        by_error = {name: cls.from_json(policy) for name, policy in data.get("by_error", {}).items()}
        return cls(**{**data, "by_error": by_error})

    def limit(self, failure: Failure) -> int:
        if failure is Failure.ERROR:
            return self.times
        if failure is Failure.TIMEOUT:
            return self.times if self.timeouts is None else self.timeouts
        return self.crashes if failure is Failure.CRASH else self.losses


def delay_after(
    policy: Retries,
    failure: Failure,
    spent: int,
    error_types: Sequence[str] = (),
    rng: Callable[[], float] = random.random,
) -> float | None:
    """Seconds until the next try, or None when the budget is spent. `spent` counts this failure too."""
    for name in error_types:
        if name in policy.by_error:
            policy = policy.by_error[name]
            break
    if spent > policy.limit(failure):
        return None
    if failure is Failure.LOSS:
        return 0.0  # the job did nothing wrong
    delay = policy.delays[min(spent, len(policy.delays)) - 1]
    return max(0.0, delay * (1 + policy.jitter * (2 * rng() - 1)))
