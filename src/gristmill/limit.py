"""Limits: how many jobs of a key (a host, a tenant) at once, how many per second, and when to leave it alone. Pure.

`Limit` is what an application declares. `Numbers` are what counts in the end, `Bucket` and `Breaker` what they mean: starts
that are due as time goes by, and a circuit that opens after failures in a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from gristmill.binding import check_key
from gristmill.clock import SECOND
from gristmill.errors import Invalid, did_you_mean, quoted
from gristmill.settings import NAME_LIMIT

OF_QUEUES = "queue"  # the name of the limits that queues have; their keys are the queues' names
COOLDOWN = 60.0  # seconds that an open circuit stays so
_TOGETHER = 0.1  # so many seconds' worth of starts may come together, if there were none before; one at least
_SOON = 0.01  # seconds between two looks at what is due: faster rates go in small groups
_AT_LEAST = 4  # jobs of a key that stand in line, if it has so many and may


class Numbers(NamedTuple):
    """What holds for a key. None: no limit."""

    at_once: int | None = None
    per_second: float | None = None
    breaker: int | None = None  # failures in a row after which its circuit opens
    cooldown: float = COOLDOWN

    @classmethod
    def of(cls, *given: str | None) -> Numbers:
        """From what was said about it, as JSON: what comes later counts more, number by number."""
        return _numbers(given)

    def words(self) -> str:
        """`2 at once, 5 per second`"""
        said = [] if self.at_once is None else [f"{self.at_once} at once"]
        said += [] if self.per_second is None else [f"{self.per_second:g} per second"]
        said += [] if self.breaker is None else [f"opens after {self.breaker} failures for {self.cooldown:g} s"]
        return ", ".join(said) or "no limit"


@lru_cache(maxsize=1000)
def _numbers(given: tuple[str | None, ...]) -> Numbers:
    merged: dict[str, Any] = {}
    for text in given:
        merged.update(orjson.loads(text) if text else {})
    return Numbers(**{name: value for name, value in merged.items() if name in Numbers._fields})


def check_numbers(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Numbers as they may be stored, or a clear error."""
    for name, value in given.items():
        if name not in Numbers._fields:
            raise Invalid(f"{where}: there is no {name!r} in a limit{did_you_mean(name, Numbers._fields)}")
        whole = name in ("at_once", "breaker")
        if value is None and name != "cooldown":
            continue
        right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not right or not (1 if whole else 0.001) <= value <= 1e9:
            kind = "a whole number from 1 on" if whole else "a number from 0.001 on"
            raise Invalid(f"{where}: {name} must be {kind}, not {quoted(value)}")
    return dict(given)


class Limit:
    """What a task or stage says about its jobs: which of them belong together, and what these may do together.

    `per`: the argument that is the key, by name; or a function of arguments that gives it. Without it, all have one key.
    `breaker`: failures in a row after which a key is left alone for `cooldown` seconds. Without any number, keys only take
    turns. What an operator sets (`gristmill limit set`) counts more than what is said here.
    """

    def __init__(
        self,
        name: str,
        per: str | Callable[..., object] | None = None,
        *,
        at_once: int | None = None,
        per_second: float | None = None,
        breaker: int | None = None,
        cooldown: float = COOLDOWN,
    ) -> None:
        where = f"limit {name!r}"
        if not isinstance(name, str) or not name.isidentifier() or len(name) > NAME_LIMIT or name == OF_QUEUES:
            raise Invalid(f"{where}: its name must be letters, digits and '_', and not {OF_QUEUES!r}: Limit('host', …)")
        self.name = name
        self.per = per
        given = {"at_once": at_once, "per_second": per_second, "breaker": breaker, "cooldown": cooldown}
        self.numbers = check_numbers(given, where)
        self._takes = self._names(per)

    def __repr__(self) -> str:
        return f"<limit {self.name!r}: {Numbers(**self.numbers).words()}>"

    def _names(self, per: Any) -> tuple[str, ...] | None:
        """The arguments that `per` asks for; None: all."""
        if per is None:
            return ()
        if isinstance(per, str):
            return (per,)
        if not callable(per) or inspect.iscoroutinefunction(per):
            raise Invalid(
                f"limit {self.name!r}: per=… wants the name of an argument, or a plain function, not {quoted(per)}"
            )
        parameters = inspect.signature(per).parameters.values()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return None
        if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters):
            raise Invalid(f"limit {self.name!r}: the parameters of per=… are given by name, as arguments are")
        return tuple(p.name for p in parameters)

    def key(self, *given: Mapping[str, Any]) -> str:
        """The key of a job with these arguments; the first that has a name counts."""
        if self.per is None:
            return ""
        values: dict[str, Any] = {}
        for arguments in reversed(given):
            values.update(arguments)
        names = values.keys() if self._takes is None else [name for name in self._takes if name in values]
        try:
            key = values[self.per] if isinstance(self.per, str) else self.per(**{name: values[name] for name in names})
        except Exception as error:
            said = f"it has no argument {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            raise Invalid(f"limit {self.name!r}: the key of a job with {_short(values)} cannot be had: {said}") from error
        if not isinstance(key, str | int):
            raise Invalid(
                f"limit {self.name!r}: the key of a job with {_short(values)} is {key!r}; per=… must give text or a number"
            )
        return check_key(str(key) if isinstance(key, int) else key, f"the key of limit {self.name!r}")

    def stored(self) -> str:
        return orjson.dumps(self.numbers).decode()


def _short(values: Mapping[str, Any]) -> str:
    text = repr(dict(values))
    return text if len(text) <= 100 else text[:97] + "…"


class Bucket(NamedTuple):
    """Starts that are due and were not taken, at a moment (microseconds). What stands in line has been taken."""

    tokens: float
    at: int

    def after(self, rate: float, now: int, started: Iterable[int], in_line: int, back: int = 0) -> Bucket:
        """The same now. `started`: when those began that stood in line; `in_line`: how many still do; `back`: how many
        left the line without having begun.

        What stands in line counts as not taken while the bucket fills: else a line that nobody served for a while would
        be let through together with as much again.
        """
        now = max(now, self.at)  # who waited for the lock has read the clock before
        most = max(1.0, rate * _TOGETHER)
        times = sorted(started)
        full, at = self.tokens + in_line + len(times) + back, self.at
        if not self.at:
            full, at = most + len(times), now  # never looked at before
        for time in times:
            begun = min(max(time, at), now)
            full, at = min(most, full + (begun - at) / SECOND * rate) - 1, begun
        full = min(most, full + max(0, now - at) / SECOND * rate)
        return Bucket(full - in_line, now)

    def next_at(self, rate: float) -> int:
        """When there will be one more."""
        return self.at + int(max(_SOON, (1 - self.tokens) / rate) * SECOND) + 1


class Breaker(NamedTuple):
    """A circuit: closed, open until a moment, and after that half open: one at a time may try."""

    failures: int = 0
    open_until: int | None = None

    def after(self, numbers: Numbers, now: int, ends: Iterable[bool]) -> Breaker:
        """The same after some jobs ended well (True) or not."""
        if numbers.breaker is None:
            return Breaker()
        failures, until = self
        for well in ends:
            if well:
                failures, until = 0, None
                continue
            failures += 1
            if (until is None and failures >= numbers.breaker) or (until is not None and until <= now):
                until = now + int(numbers.cooldown * SECOND)
        return Breaker(failures, until)

    def state(self, now: int) -> str:
        return "closed" if self.open_until is None else "open" if now < self.open_until else "half-open"


class Room(NamedTuple):
    """How many more of a key may go on; below 0: so many that stand in line must step back."""

    free: int
    due_at: int | None = None  # when there will be more, if there are none
    more: bool = False  # it is only the length of its line that keeps the others


def room(numbers: Numbers, state: Breaker, bucket: Bucket, now: int, running: int, in_line: int, ended: int = 0) -> Room:
    """What a key may do, given what runs, what stands in line, and what has just ended.

    Of a key twice as many stand in line as are worked on, and a few at least: so those of another stand right behind
    these, however many the one has; and one that is alone keeps everybody busy.
    """
    held = running + in_line
    if state.open_until is not None and now < state.open_until:
        return Room(-in_line, state.open_until)
    most = 1 if state.open_until is not None else numbers.at_once
    if most is not None and held >= most:
        return Room(max(most - held, -in_line))
    window = max(0, max(_AT_LEAST, 2 * (running + ended)) - in_line)
    free = window if most is None else min(most - held, window)
    more = most is None or most - held > window
    if numbers.per_second is not None and (due := max(0, int(bucket.tokens + 1e-9))) < free:
        return Room(due, Bucket(bucket.tokens - due, bucket.at).next_at(numbers.per_second))
    return Room(free, None, more)
