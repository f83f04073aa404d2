"""How long what has ended is kept: rules about age and number, by state, that a task or a pipeline declares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from gristmill.clock import micros
from gristmill.errors import Invalid, did_you_mean, quoted
from gristmill.states import TERMINAL, State

_WORDS = {state.word: state for state in sorted(TERMINAL)}


@dataclass(frozen=True)
class Retention:
    """Ended jobs of a task, or ended runs of a pipeline, are kept for `age` (seconds), and at most the newest `count`.

    `state`: only about those that ended so ("failed", or several); without it, about all that no other rule is about.
    """

    age: float | timedelta | None = None
    count: int | None = None
    state: str | Sequence[str] = ()


class Rule(NamedTuple):
    """A retention as the ledger applies it: what is older (microseconds), or not among the newest, goes."""

    states: tuple[int, ...]
    age: int | None
    most: int | None


Keep = Retention | Iterable[Retention] | None


def rules(keep: Keep, where: str) -> tuple[Rule, ...]:
    """The rules that `keep=` declares, or a clear error. Each state is in one of them at most."""
    if keep is None:
        return ()
    given = [keep] if isinstance(keep, Retention) else list(keep) if isinstance(keep, Iterable) else [keep]
    named: set[State] = set()
    for retention in given:
        if not isinstance(retention, Retention):
            raise Invalid(f"{where}: keep=… wants a Retention, or a list of them, not {quoted(retention)}")
        states = _states(retention, where)
        if twice := named & states:
            raise Invalid(f"{where}: two retentions are about state {min(twice).word!r}; which is meant?")
        named |= states
    others = [retention for retention in given if not retention.state]
    if len(others) > 1:
        raise Invalid(f"{where}: two retentions name no state; which is meant?")
    return tuple(_rule(retention, _states(retention, where) or TERMINAL - named, where) for retention in given)


def _states(retention: Retention, where: str) -> set[State]:
    words = [retention.state] if isinstance(retention.state, str) else retention.state
    for word in words:
        if word not in _WORDS:
            raise Invalid(f"{where}: nothing ends in state {word!r}{did_you_mean(str(word), _WORDS)}")
    return {_WORDS[word] for word in words}


def _rule(retention: Retention, states: Iterable[State], where: str) -> Rule:
    age, count = retention.age, retention.count
    if age is None and count is None:
        raise Invalid(f"{where}: a retention has an age, a count, or both: Retention(age=30 * 86400), Retention(count=1000)")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise Invalid(f"{where}: a retention's count must be a whole number, not {quoted(count)}")
    return Rule(tuple(sorted(map(int, states))), None if age is None else _age(age, where), count)


def _age(age: Any, where: str) -> int:
    seconds = age.total_seconds() if isinstance(age, timedelta) else age
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e10:
        raise Invalid(f"{where}: a retention's age must be a number of seconds, not {quoted(age)}")
    return micros(seconds)


def for_days(days: float) -> tuple[Rule, ...]:
    """The rule of a setting: everything for so many days; 0: for ever."""
    return rules(Retention(age=days * 86_400), "setting 'keep_days'") if days else ()
