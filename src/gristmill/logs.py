"""What is logged, as lines of JSON: of workers, and of the functions in their children, with the job that they are on.

A line is written at once and in one piece, by whichever process has something to say: no line waits in a process that may
be killed, and none is torn by another. Nothing here ever fails a job.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

About = Callable[[], Mapping[str, Any]]

LONGEST = 4000  # bytes of a line: up to 4096, Linux writes it into a pipe in one piece. `job show` has the whole traceback
_ENDS = (("traceback", -1500), ("message", 1000), ("traceback", -300), ("message", 200))  # what is cut, until it fits
_ORDINARY = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `message`; what `about` says; what was given as `extra`."""

    def __init__(self, about: About = dict) -> None:
        super().__init__()
        self._about = about

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **self._about(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _ORDINARY and name not in entry}
        if record.exc_info and record.exc_info[1] is not None:
            entry["error"] = f"{type(record.exc_info[1]).__name__}: {_text(record.exc_info[1])}"[:500]
            entry["traceback"] = self.formatException(record.exc_info)
        return _line(entry).decode()


class Descriptor(logging.Handler):
    """Writes each line in one piece to a file descriptor. What cannot be written is lost, and nobody waits for it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a reader that is gone; an `extra` whose __str__ raises
            os.write(self._descriptor, self.format(record).encode() + b"\n")


def json_lines_to(descriptor: int, about: About = dict) -> logging.Handler:
    handler = Descriptor(descriptor)
    handler.setFormatter(JsonLines(about))
    return handler


def _line(entry: dict[str, Any]) -> bytes:
    line = _dumps(entry)
    for name, most in _ENDS:
        if len(line) <= LONGEST:
            return line
        if isinstance(said := entry.get(name), str):
            entry[name] = said[most:] if most < 0 else said[:most]
            line = _dumps(entry)
    if len(line) > LONGEST:
        line = _dumps({name: _short(value) for name, value in list(entry.items())[:20]})
    return line


def _short(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | float) else str(value)[:80]


def _dumps(entry: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(entry, default=_text, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a character, an integer beyond 64 bits, a list in a list in a list…
        return orjson.dumps({name: _whole(_text(value)) for name, value in entry.items()})


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as problem:
        return f"(its text cannot be had: {type(problem).__name__})"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a wrong number of arguments is no reason to lose the line
        return f"{_text(record.msg)} {_text(record.args)}"
