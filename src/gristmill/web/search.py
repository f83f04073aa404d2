"""What people write into the search box: `state:failed queue:ocr key:2024-*`, and plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gristmill.errors import Invalid, did_you_mean

_WORD = re.compile(r'(?:(?P<name>[A-Za-z_]+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>\S+))')
_NUMBERS = {"run", "part_of", "worker"}
JOBS = ("state", "queue", "task", "key", "error", "run", "pipeline", "subject", "stage", "part_of", "worker", "since", "is")
RUNS = ("state", "pipeline", "subject", "stage", "error", "since", "is")
AUDIT = ("who", "verb", "target", "since")
SUBJECTS = ("state", "pipeline", "label", "stale", "name")
STUCK = {"stuck": True}  # what a search for `is:stuck` finds, which stands alone
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = 10_000 * 86_400  # 27 years; for what is much longer, a calendar has no year


def words_of(text: str, known: tuple[str, ...]) -> tuple[dict[str, list[str]], list[str]]:
    """What was said by name, and the words without one."""
    named, plain = dict[str, list[str]](), list[str]()
    for found in _WORD.finditer(text[:2000].replace("\0", "")):
        value = re.sub(r"\\(.)", r"\1", found["quoted"]) if found["quoted"] is not None else found["plain"]
        name = found["name"]
        if name is None:
            plain.append(value)
        elif name not in known and value.startswith("//"):  # an address: many a subject is one
            plain.append(found[0])
        elif name in known:
            named.setdefault(name, []).append(value)
        else:
            quoted = f'quotes make it a plain word: "{found[0][:60]}"'
            raise Invalid(f"there is no qualifier {name!r}{did_you_mean(name, known)}; {quoted}")
    return named, plain


def jobs(text: str, now: datetime | None = None) -> dict[str, Any]:
    """What the mill's functions on jobs take. A plain word is a part of a key. `now`: what times ago are counted from."""
    named, plain = words_of(text, JOBS)
    found = _single(named, "state", "since", "is") | _states_and_time(named, now)
    for value in named.get("is", ()):
        if value != "archived":
            raise Invalid(f"is:{value} is not known; there is is:archived")
        found["archived"] = True
    return found | _holding("key", plain, found)


def runs(text: str, now: datetime | None = None) -> dict[str, Any]:
    """A plain word is a part of a subject's name."""
    named, plain = words_of(text, RUNS)
    if "is" in named:
        if named != {"is": ["stuck"]} or plain:
            raise Invalid("there is is:stuck, alone: runs with no job left that could move them on")
        return STUCK
    found = _single(named, "state", "since") | _states_and_time(named, now)
    return found | _holding("subject", plain, found)


def subjects(text: str, now: datetime | None = None) -> dict[str, Any]:
    """A plain word is a part of a name; `label` may be there several times. (How stale they are, the ledger tells.)"""
    named, plain = words_of(text, SUBJECTS)
    found = _single(named, "state", "label", "stale")
    if "state" in named:
        found["state"] = named["state"][-1]
    if "label" in named:
        found["label"] = named["label"]
    if "stale" in named:
        found["stale_for"] = seconds(named["stale"][-1])
    return found | _holding("name", plain, found)


def audit(text: str) -> dict[str, Any]:
    """A part of each will do, unless somebody writes a pattern; a plain word is a part of what something was done to."""
    named, plain = words_of(text, AUDIT)
    found = {name: _part(value) for name, value in _single(named, "since").items()}
    return found | _states_and_time(named) | _holding("target", plain, found)


def _part(text: str) -> str:
    return text if "*" in text or "?" in text else f"*{text}*"


def _states_and_time(named: Mapping[str, list[str]], now: datetime | None = None) -> dict[str, Any]:
    """`state:failed,cancelled` and `since:1d`, as lists of jobs and of runs take them."""
    found: dict[str, Any] = {}
    if "state" in named:
        found["state"] = states(named["state"])
    if "since" in named:
        found["since"] = (now or datetime.now(UTC)) - timedelta(seconds=seconds(named["since"][-1]))
    return found


def _holding(what: str, plain: list[str], found: Mapping[str, Any]) -> dict[str, str]:
    """The pattern of what holds all plain words, in their order."""
    if plain and what in found:
        raise Invalid(
            f"plain words are looked for in each {what}, and there is {what}:… already; give one of both, in quotes if it"
            " has spaces"
        )
    return {what: f"*{'*'.join(plain)}*"} if plain else {}


def states(values: list[str]) -> list[str]:
    return [state for value in values for state in value.split(",") if state]


def seconds(text: str) -> float:
    """`90m`, `2h`, `1d`."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise Invalid(f"{text[:60]!r} is no time; write 30m, 2h or 1d")
    number = float(found[1]) * _SECONDS[found[2]]
    if number > _LONGEST:
        raise Invalid(f"{text[:60]!r} is longer than any time here; write 10000d at most")
    return number


def _single(named: Mapping[str, list[str]], *others: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in named.items():
        if name in others:
            continue
        if len(values) > 1:
            raise Invalid(f"{name}: is there twice; only state: may be")
        found[name] = _number(name, values[0]) if name in _NUMBERS else values[0]
    return found


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise Invalid(f"{name}: wants a number, not {text[:60]!r}")
    return int(text)


def written(named: Mapping[str, str]) -> str:
    """The text that finds it."""
    return " ".join(f"{name}:{_quoted(value)}" for name, value in named.items())


def _quoted(value: str) -> str:
    if value and not re.search(r'[\s"\\]', value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
