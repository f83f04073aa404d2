"""One thing that was said: as a line of JSON for programs, and as words for people."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from clerk.masking import MASK, is_secret

FIELDS: Final = ("subdomain", "run_id", "stage", "job_id")
_AS_THE_ENGINE_SAYS: Final = {"subdomain": "subject", "run_id": "run", "job_id": "job"}
ABOUT: ContextVar[Mapping[str, Any] | None] = ContextVar("about", default=None)

_ORDINARY = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "fields"}
_LONGEST = 20_000  # characters of one value: a traceback of thousands of calls says no more than its ends
_DEEPEST = 5

Mask = Callable[[str], str]


def about_now() -> Mapping[str, Any]:
    return ABOUT.get() or {}


class Lines(logging.Formatter):
    """JSON, with the same fields first in every line."""

    def __init__(self, mask: Mask, worker: str | None = None) -> None:
        super().__init__()
        self.mask = mask
        self.worker = worker

    def format(self, record: logging.LogRecord) -> str:
        return _dumps(entry_of(record, self.mask, self.worker))


class Words(logging.Formatter):
    """For a terminal, and for what is kept with a failed attempt."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask

    def format(self, record: logging.LogRecord) -> str:
        return words(entry_of(record, self.mask))


@dataclass(frozen=True)
class Entry:
    """A line that another process wrote."""

    at: int  # nanoseconds since 1970
    level: str
    values: Mapping[str, Any]

    def words(self) -> str:
        return words(self.values)


def read(line: str) -> Entry:
    values = orjson.loads(line)
    at = datetime.fromisoformat(values["timestamp"])
    return Entry(int(at.timestamp() * 1e6) * 1000, str(values["level"]), values)


def entry_of(record: logging.LogRecord, mask: Mask, worker: str | None = None) -> dict[str, Any]:
    given = {**about_now(), **_extra(record)}
    if str(record.name).startswith("gristmill"):
        given |= {ours: given.pop(theirs) for ours, theirs in _AS_THE_ENGINE_SAYS.items() if theirs in given}
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
    entry: dict[str, Any] = {"timestamp": when, "level": record.levelname, "message": mask(_message(record))[:_LONGEST]}
    for name in FIELDS:
        entry[name] = _clean(given.pop(name, None), mask)
    if worker:
        entry["worker"] = worker
    entry["logger"] = record.name
    for name, value in given.items():
        if name not in entry:
            entry[name] = MASK if is_secret(name) and value else _clean(value, mask)
    if record.exc_info and record.exc_info[1] is not None:
        entry["error"] = mask(f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}")[:_LONGEST]
        entry["traceback"] = _ends(mask(logging.Formatter().formatException(record.exc_info)))
    return entry


def words(entry: Mapping[str, Any]) -> str:
    level = "" if entry["level"] == "INFO" else f"{entry['level'].lower()}: "
    about = " ".join(f"{name}={entry[name]}" for name in FIELDS if entry.get(name) is not None)
    rest = [str(entry[name]) for name in ("error", "traceback") if entry.get(name)][-1:]
    text = f"{entry['timestamp'][11:19]} {level}{entry['message']}{f'  [{about}]' if about else ''}"
    return "\n".join([text, *rest])


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a wrong number of arguments is no reason to lose the line, or a job
        return f"{record.msg} {record.args}"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    named = {name: value for name, value in vars(record).items() if name not in _ORDINARY}
    return {**named, **getattr(record, "fields", {})}


def _clean(value: Any, mask: Mask, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {
            str(name): MASK if is_secret(str(name)) and each else _clean(each, mask, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
        return [_clean(each, mask, depth + 1) for each in value]
    return _ends(mask(str(value)))


def _ends(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}\n…\n{text[-half:]}"


def _dumps(entry: dict[str, Any]) -> str:
    try:
        return orjson.dumps(entry).decode()
    except TypeError:  # half a character, from a file name that is not UTF-8; an integer beyond 64 bits
        return json.dumps(entry).encode("utf-8", "replace").decode()
