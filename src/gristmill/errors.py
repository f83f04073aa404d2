"""Every error that Gristmill raises, and every outcome that a function can choose by raising.

GristmillError                 something is wrong; the message says what, where, and what to do
├── Invalid                    the caller's input: unknown name, bad argument, not JSON, too large
│   └── NotFound               no such run, job, queue, worker
├── Refused                    right input, wrong moment: an active run, a terminal job
│   └── NotConfirmed           an action on many is about more or fewer by now than was confirmed
├── NotYours                   a late worker: the attempt is no longer its own
├── LockTimeout                a lock was not had in the time that was given for it
├── LockLost                   a lock that was held is another's, or may be, before it was given back
├── AppError                   an application that cannot be loaded
└── DatabaseError              the database
    ├── Unavailable            it cannot be reached, or went away
    └── SchemaMismatch         it is there, but its schema is not the one this code needs

Outcome                        raised by a job's function; never a programming error
├── Permanent                  failed, and trying again is pointless
├── Skip                       nothing to do, for a reason
├── Later                      again in some seconds; costs nothing
├── Unspent                    give it back and rest this worker: disk full, tool missing
└── EndRun                     this job is done and so is the whole run, for a reason
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from datetime import timedelta


class GristmillError(Exception):
    """Something is wrong; the message says what, where, and what to do."""


class Invalid(GristmillError):
    """The caller's input is wrong. Nothing was changed."""


class NotFound(Invalid):
    """There is no such thing in the ledger."""


class Refused(GristmillError):
    """The input is right but the moment is not. Nothing was changed."""


class NotConfirmed(Refused):
    """An action on many is not about as many as was confirmed. Nothing was changed."""

    def __init__(self, count: int, confirmed: int) -> None:
        super().__init__(f"this is about {count} now, and {confirmed} was confirmed; look again")
        self.count = count  #: about how many it is now


class NotYours(GristmillError):
    """A worker that was declared lost wrote too late. Nothing was changed."""


class LockTimeout(GristmillError, TimeoutError):
    """A lock was not had within its `timeout`."""


class LockLost(GristmillError):
    """A lock that was held may be another's by now: its connection was cut, or its lease ended."""


class AppError(GristmillError):
    """The application cannot be loaded."""


class DatabaseError(GristmillError):
    """The database."""


class Unavailable(DatabaseError):
    """The database cannot be reached, or went away during the call."""


class SchemaMismatch(DatabaseError):
    """The database's schema is not the one that this code needs."""


class Outcome(Exception):
    """Raised by a job's function to choose how the job ends."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Permanent(Outcome):
    """Failed, and trying again is pointless."""


class Skip(Outcome):
    """Nothing to do, for a reason. Counts as success."""


class EndRun(Outcome):
    """This job is done, and so is the whole run: `EndRun("unchanged")`. What is left of it is not run."""


class Later(Outcome):
    """Run this job again in `seconds`, without spending anything of its budget."""

    def __init__(self, seconds: float | timedelta, reason: str = "") -> None:
        self.seconds = _seconds(seconds, "Later")
        super().__init__(reason or f"again in {self.seconds:g} s")


class Unspent(Outcome):
    """Give this job back without spending anything, and let this worker rest for `pause` seconds."""

    def __init__(self, reason: str, pause: float | timedelta = 60) -> None:
        super().__init__(reason)
        self.pause = _seconds(pause, "Unspent")


def _seconds(given: object, where: str) -> float:
    """Any number will do (a Decimal, numpy's), or a timedelta; but it must be one."""
    try:
        seconds = given.total_seconds() if isinstance(given, timedelta) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise Invalid(f"{where} wants a number of seconds, or a timedelta, not {quoted(given)}")
    return seconds


class Waiting(BaseException):
    """Ends an attempt that has handed over parts. No Exception, so that a function that catches those lets it through."""


class Stopped(BaseException):
    """Ends a job that was cancelled while it waited for a lock. No Exception, for the same reason."""


_SHOWN = 200  # characters of a value: a message is one line that somebody reads


def quoted(value: object) -> str:
    """A value as a message shows it, however large or odd it is."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # too deep, or an integer of too many digits
        return f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of what there is, or nothing: the end of an error message."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1) if isinstance(word, str) and len(word) <= _SHOWN else []
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are: {', '.join(names[:20])}" if names else ""
