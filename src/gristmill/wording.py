"""Values in words for people: counts, spans, ages; the same on the command line and in the pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.model import AuditEntry


def clean(text: str) -> str:
    """Text from a job on one line: what would steer the terminal is shown, not obeyed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\t\r" else f"\\x{ord(c):02x}" for c in text)


def first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0] if lines else ""


def short(value: Any, most: int = 200) -> str:
    """A value as JSON, cut."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def assignments(args: Mapping[str, Any] | None) -> str:
    return "  ".join(f"{name}={short(value, 100)}" for name, value in (args or {}).items())


def count(number: int) -> str:
    return f"{number:,}" if number else "0"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """`0.4 s`, `42 s`, `3 min`, `5 h`, `12 d`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    for size, unit, limit in ((1, "s", 99.5), (60, "min", 99.5 * 60), (3600, "h", 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def between(start: datetime | None, end: datetime | None) -> str:
    return span((end - start).total_seconds()) if start and end else ""


def age(at: datetime | None) -> str:
    """`3 min ago`, `in 5 min`, `just now`."""
    if at is None:
        return ""
    seconds = (datetime.now(UTC) - at).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    words = span(round(abs(seconds))).replace(".0 s", " s")
    return f"{words} ago" if seconds > 0 else f"in {words}"


def moment(at: datetime | None) -> str:
    """The age, and the time on this machine's clock."""
    return f"{age(at)}  ({at.astimezone():%Y-%m-%d %H:%M:%S})" if at else ""


_BOUNDS = ("choice", "upto", "at", "most")  # of an action on many, for whoever goes on with it


def audited(entry: AuditEntry) -> str:
    """What the record has beside who, what and to which: `reason too many, cancelled 3`."""
    told = {**entry.detail, **entry.done}
    said = {name: value for name, value in told.items() if name not in _BOUNDS and value not in (None, [], 0)}
    return ", ".join(f"{name} {span(value) if name == 'interval' else _told(value)}" for name, value in said.items())


def _told(value: Any) -> str:
    """As somebody would write it: `county=west, tier=gold`, `20`."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={_told(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_told, value))
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
