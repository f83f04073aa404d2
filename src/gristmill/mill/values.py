"""What callers hand in: checked, and as the ledger wants it."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from gristmill.binding import check_key
from gristmill.clock import from_datetime, micros
from gristmill.errors import Invalid, NotFound, did_you_mean, quoted
from gristmill.pipeline import Pipeline
from gristmill.settings import LABEL_LIMIT
from gristmill.states import State

_BOUND = re.compile(r":(\w+)")


def who() -> str:
    """Who does this, for the record."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def arguments(args: Any) -> Mapping[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise Invalid(f"args must be a dict of arguments by name, not {type(args).__name__}")
    return args


def moment(at: Any, what: str = "at") -> int:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise Invalid(f"{what} must be a datetime with a time zone, not {quoted(at)}")
    return from_datetime(at)


def delay_of(delay: Any, what: str = "delay") -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e10:
        raise Invalid(f"{what} must be a number of seconds, not {quoted(delay)}")
    return micros(seconds)


def labels_of(labels: Any) -> dict[str, str | None]:
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise Invalid(f"labels must be a dict of values by key, not {type(labels).__name__}")
    return {_label_key(key): None if value is None else _label_value(value) for key, value in labels.items()}


def label_of(text: Any) -> tuple[str, str | None]:
    """`key=value`, or `key` for any value."""
    key, equals, value = check_key(text, "label").partition("=")
    return _label_key(key), _label_value(value) if equals else None


def _label_key(key: Any) -> str:
    if "=" in check_key(key, "label"):
        raise Invalid(f"the key of a label cannot hold '=': {key!r}")
    return _label_value(key)


def _label_value(value: Any) -> str:
    if len(check_key(value, "label")) > LABEL_LIMIT:
        raise Invalid(f"a label has {len(value)} characters; the limit is {LABEL_LIMIT}: {value[:60]!r}…")
    return str(value)


def checked_id(number: Any, what: str) -> int:
    """The number of a job or run. One that no database can hold is nobody's."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise Invalid(f"a {what} is given by its number, not by {quoted(number)}")
    if not 0 < number < 1 << 63:
        raise NotFound(f"there is no {what} {quoted(number)}")
    return number


def reason_of(reason: Any) -> str | None:
    """Why somebody does it: text that both databases can hold."""
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise Invalid(f"a reason is text, not {quoted(reason)}")
    if "\0" in reason:
        raise Invalid(f"a reason cannot hold a NUL character: {quoted(reason)}")
    return reason


def text_of(text: Any, what: str) -> str | None:
    """What is looked for: text that both databases can hold."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise Invalid(f"{what} must be text, not {quoted(text)}")
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise Invalid(f"{what} {quoted(text)} holds a character that no database can")
    return text


def choice(kind: Any, value: Any, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise Invalid(f"unknown {what} {quoted(value)}{did_you_mean(value, [k.value for k in kind])}") from None


def state_of(word: str | None) -> int | None:
    if word is None:
        return None
    words = {state.word: int(state) for state in State}
    if not isinstance(word, str) or word not in words:
        raise Invalid(f"unknown state {quoted(word)}{did_you_mean(word, words)}")
    return words[word]


def states_of(words: str | Iterable[str] | None) -> tuple[int, ...] | None:
    """One state or several, by their words; None: whichever."""
    given = [words] if isinstance(words, str) else words or ()
    return tuple(sorted({number for word in given if (number := state_of(word)) is not None})) or None


def filters(*conditions: tuple[str, Any]) -> dict[str, dict[str, Any]]:
    """Clauses of fixed text, each with the one value that it binds; those without a value are left out."""
    return {clause: {_BOUND.findall(clause)[0]: value} for clause, value in conditions if value is not None}


def name_of(pipeline: Pipeline | str) -> str:
    return pipeline.name if isinstance(pipeline, Pipeline) else pipeline
