"""Values as people type them: durations, moments, numbers of runs and jobs, arguments."""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import click

from gristmill.errors import Invalid, did_you_mean
from gristmill.states import State

if TYPE_CHECKING:
    from gristmill.pipeline import Pipeline, Task

_UNITS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_MOST_SECONDS = 3_650 * 86_400  # ten years: what is longer is a typing error, and dates would overflow
_MOST_ID = 2**63 - 1


def seconds(text: str) -> float | None:
    """`90`, `90s`, `10m`, `2h`, `1d`, `1h30m` as seconds; None: not a duration."""
    total, at = 0.0, 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _UNITS:
            return None
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return total if text and total <= _MOST_SECONDS else None


def duration(text: str) -> float:
    """Seconds, from `90`, `10m`, `2h`, `1d`."""
    found = seconds(text.strip().lower())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90, 10m, 2h or 1d")
    return found


def since(text: str) -> datetime:
    """The moment that was so long ago."""
    return datetime.now(UTC) - timedelta(seconds=duration(text))


def moment(text: str) -> datetime:
    """A date and time; without a zone it is this machine's."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is not a time; write 2027-01-31T14:30 (add +01:00 or Z for a zone)") from None


def number(lowest: int = 1, highest: int = _MOST_ID) -> Callable[[Any], int]:
    """A whole number, of what the database can hold."""

    def whole(value: Any) -> int:
        text = str(value).strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,40}", text) or not lowest <= int(text) <= highest:
            raise click.BadParameter(f"{text!r} is not a whole number from {lowest} to {highest:,}")
        return int(text)

    return whole


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise click.BadParameter(f"{text!r} is not a number above 0")
    return value


def one_of(what: str, words: Sequence[str]) -> Callable[[str], str]:
    """One of a few words; a mistyped one is answered with the nearest."""

    def word(text: str) -> str:
        if text not in words:
            raise click.BadParameter(f"unknown {what} {text!r}{did_you_mean(text, words)}")
        return text

    return word


JOB_STATE = one_of("state", [state.word for state in State if state is not State.WAITING])
RUN_STATE = one_of("state", [state.word for state in State if state is not State.SKIPPED])
PRIORITY = one_of("priority", ["high", "normal", "low"])


# ---- --arg k=v


def run_arguments(pairs: Sequence[str], pipeline: Pipeline) -> dict[str, Any]:
    hints: dict[str, list[Any]] = {}
    for stage in pipeline.ordered():
        for name, parameter in stage.parameters.by_name.items():
            hints.setdefault(name, []).append(parameter.hint)
    return _arguments(pairs, hints)


def job_arguments(pairs: Sequence[str], task: Task[Any, Any] | None) -> dict[str, Any]:
    known = {} if task is None else task.parameters.by_name
    return _arguments(pairs, {name: [p.hint] for name, p in known.items()})


def _arguments(pairs: Sequence[str], hints: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise Invalid(f"--arg {_short(pair)} must be NAME=VALUE")
        if name in values:
            raise Invalid(f"--arg {name}=… is given twice")
        values[name] = _value(text, hints.get(name, ()))
    return values


def _value(text: str, hints: Sequence[Any]) -> Any:
    """JSON, else text; a parameter that wants text gets it as it was typed: 007 stays 007."""
    if any(map(wants_text, hints)) and not (text == "null" and any(map(_takes_none, hints))):
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def wants_text(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        return wants_text(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        return all(isinstance(choice, str) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(wants_text(kind) for kind in typing.get_args(hint) if kind is not type(None))
    return isinstance(hint, type) and issubclass(hint, str | PurePath)


def _takes_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
