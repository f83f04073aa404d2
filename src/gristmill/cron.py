"""When: cron expressions with a time zone, maintenance windows, jitter. Pure: the time is always given.

A fire time that the clocks jump over in spring is at the end of the jump; one that comes twice in autumn is the first of
the two. Expressions that begin minute or hour with `*` go by elapsed time, as Debian's cron has it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from gristmill.clock import SECOND, from_datetime
from gristmill.errors import Invalid, did_you_mean, quoted

OFF = "off"
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of the month", "1 to 31, L for the last"),
    ("month", "1 to 12, or JAN to DEC"),
    ("day of the week", "0 to 7, or SUN to SAT"),
)
_LIMIT = 200  # characters: more than anybody writes, and the parser tries each
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"(?:(?P<days>[A-Za-z,\- ]+?)\s+)?(?P<start>\d\d:\d\d)\s*-\s*(?P<end>\d\d:\d\d)")
_HOUR = timedelta(hours=1)
# How far back to look for the newest fire time: the first span that holds one holds few.
_SPANS = (_HOUR, 24 * _HOUR, 32 * 24 * _HOUR, 800 * 24 * _HOUR, 20_000 * 24 * _HOUR)


def zone(name: str) -> tzinfo:
    """A time zone by its name in the tz database."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # not there; not a name; a folder of zones; not text
        known = available_timezones()
    if not known:
        raise Invalid(f"this machine has no time zones, so {quoted(name)} is not known; run: pip install tzdata")
    close = did_you_mean(str(name), known)
    hint = close if "did you mean" in close else "; write one like Europe/Berlin"
    raise Invalid(f"unknown time zone {quoted(name)}{hint}")


class Cron:
    """A checked expression in its zone; `off` never fires."""

    def __init__(self, text: str, tz: str = "UTC") -> None:
        if not isinstance(text, str) or not text.strip():
            raise Invalid(f"cron is text like '0 3 * * *' (minute, hour, day, month, weekday), or 'off', not {quoted(text)}")
        self.text = text.strip()
        self.tz = tz
        self.zone = zone(tz)
        self.expression = _ALIASES.get(self.text.lower(), self.text)
        self.off = self.text.lower() == OFF
        if not self.off:
            _check(self.text, self.expression)

    def after(self, at: int) -> int | None:
        """The first fire time after this moment (microseconds since 1970); None: there is none."""
        return next(self.times(at), None)

    def times(self, at: int) -> Iterator[int]:
        """Fire times after this moment, each later than the one before."""
        if self.off:
            return
        from cronsim import CronSim

        # Where an hour comes twice, its second time around has fire times of the first: those are over.
        for found in CronSim(self.expression, self.local(at)):
            if (moment := from_datetime(found)) > at:
                yield moment
                at = moment

    def newest(self, at: int) -> int | None:
        """The last fire time up to this moment; None: there was none in fifty years."""
        for span in _SPANS:
            newest = None
            for moment in self.times(at - int(span.total_seconds()) * SECOND):
                if moment > at:
                    break
                newest = moment
            if newest is not None:
                return newest
        return None

    def local(self, at: int) -> datetime:
        """The moment as the clocks of this zone show it."""
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).astimezone(self.zone)

    def words(self) -> str:
        """`At 03:00 every day`, for people."""
        if self.off:
            return OFF
        from cronsim import CronSim

        return f"{self._evenly(CronSim(self.expression, datetime(2000, 1, 1)).explain())} ({self.tz})"

    def _evenly(self, said: str) -> str:
        """`Every 10 minutes`, where that is so: `Every 10th minute of every hour` may be taken for minute 10."""
        step = re.match(r"(?:\*|0)/(\d+) ", self.expression)
        if step is None or 60 % int(step[1]):
            return said
        return re.sub(r"^Every \w+ minute(?: of every hour)?(?= |$)(?! past)", f"Every {step[1]} minutes", said)


@lru_cache(maxsize=10_000)  # thousands of schedules have a few dozen expressions, and are read again and again
def _check(text: str, expression: str) -> None:
    """Says which field is wrong, and where it stands."""
    from cronsim import CronSim, CronSimError

    if len(text) > _LIMIT:
        raise Invalid(f"cron has {len(text)} characters; the limit is {_LIMIT}")
    found = list(re.finditer(r"\S+", expression))
    if len(found) != len(_FIELDS):
        hint = did_you_mean(text, [*_ALIASES, OFF]) if len(found) == 1 else ""
        raise Invalid(
            f"cron {text!r} has {len(found)} field{'' if len(found) == 1 else 's'}, not 5:"
            f" minute, hour, day of the month, month, day of the week{hint}"
        )
    for place, field in enumerate(found):
        alone = ["*"] * 5
        alone[place] = field[0]
        try:
            CronSim(" ".join(alone), datetime(2000, 1, 1))
        except (CronSimError, ValueError, AssertionError):
            name, range_ = _FIELDS[place]
            raise Invalid(
                f"cron {text!r}: {field[0]!r} at character {field.start() + 1} is no {name} ({range_};"
                " lists 1,2, ranges 1-5, steps */10)"
            ) from None
    try:
        next(CronSim(expression, datetime(2000, 1, 1)))
    except (CronSimError, StopIteration):
        raise Invalid(f"cron {text!r} never fires: there is no such day") from None


# ---- maintenance windows


class Window(NamedTuple):
    """Hours of some days of the week in which nothing is started; one that ends before it begins ends the next day."""

    days: frozenset[int]  # 0: Monday
    start: int  # minutes since midnight
    end: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """`02:00-04:00`, `Sun 02:00-04:00`, `Mon-Fri,Sun 22:00-04:00`."""
        match = _WINDOW.fullmatch(text.strip()) if isinstance(text, str) else None
        try:
            if match is None:
                raise ValueError
            days = _days(match["days"]) if match["days"] else frozenset(range(7))
            start, end = _minutes(match["start"]), 24 * 60 if match["end"] == "24:00" else _minutes(match["end"])
        except ValueError:
            raise Invalid(f"window {text!r} must be like '02:00-04:00' or 'Mon-Fri,Sun 22:00-04:00'") from None
        if start == end:
            raise Invalid(f"window {text!r} ends when it begins; a whole day is 00:00-24:00")
        return cls(days, start, end)

    def covers(self, at: datetime) -> bool:
        """Whether this moment, in local time, is in it; the end is not."""
        clock = at.hour * 60 + at.minute
        if self.start < self.end:
            return at.weekday() in self.days and self.start <= clock < self.end
        began_yesterday = (at.weekday() - 1) % 7 in self.days and clock < self.end
        return began_yesterday or (at.weekday() in self.days and clock >= self.start)


def _minutes(text: str) -> int:
    found = time.fromisoformat(text)
    return found.hour * 60 + found.minute


def _days(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.replace(" ", "").lower().split(","):
        first, dash, last = part.partition("-")
        begin = _DAYS.index(first[:3])
        length = (_DAYS.index(last[:3]) - begin) % 7 if dash else 0
        found |= {(begin + n) % 7 for n in range(length + 1)}
    return frozenset(found)


# ---- jitter


def jitter(name: str, fire: int, most: int) -> int:
    """How much later this fire time is due: up to `most`, the same whoever asks and however often."""
    if not most:
        return 0
    digest = hashlib.blake2b(f"{name} {fire}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) * most >> 64
