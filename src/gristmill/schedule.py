"""A schedule: what is started when, as it is declared in code or added by hand, and what follows from it at a given time.

With a `task` it adds a job, with a `pipeline` and a `subject` it starts a run. With a `pipeline` alone it starts the
stalest of that pipeline's subjects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import orjson

from gristmill.binding import check_key, encode
from gristmill.clock import SECOND, micros
from gristmill.cron import Cron, Window, jitter
from gristmill.errors import Invalid, did_you_mean, quoted
from gristmill.pipeline import Part, Pipeline, Stage, Task, check_name
from gristmill.priority import Priority

CATCH_UP = ("none", "one", "all")  #: of the fire times that passed while nobody looked: none, the newest, each
ON_TIME = 60 * SECOND  # later than so, a fire time was missed: a restart of all workers takes less
_ALL_OF = 31 * 86_400 * SECOND  # `all` goes no further back: after a year away nobody wants each minute of it
_COUNTED = 1000  # missed fire times are counted up to here
MOST = 200  # runs that one fire time starts: they are one transaction, and a worker's turn
_SPREAD = 100  # the same, where nobody said how many
DAILY = 23 * 3600.0  # "once a day" with room for the length of a run


class Stalest(NamedTuple):
    """Which subjects of a pipeline, and how many at a time. Microseconds."""

    labels: tuple[tuple[str, str | None], ...] = ()
    not_within: int = micros(DAILY)  # of the end of the last run, where the subject has no interval of its own
    batch: int = 1  # the most at a time
    spread: int = 0  # so many that nobody waits longer than this; 0: always `batch`

    def wanted(self, overdue: int, longest: int, gap: int) -> int:
        """How many to start now, of so many that are overdue, one of them for so `long`; the next time is in `gap`.

        Those that are overdue are spread evenly over what is left until the first of them has waited for `spread`.
        """
        if not self.spread:
            return self.batch
        return min(self.batch, ceil(overdue * gap / max(gap, self.spread - longest)))

    def counted(self, longest: int, gap: int) -> int:
        """How many overdue ones need be counted: with more of them it is the whole batch anyway."""
        return self.batch * max(gap, self.spread - longest) // max(1, gap) + 1


class Turn(NamedTuple):
    """What is to be done about a schedule that is due."""

    fire: int | None  # this fire time; None: it is too late for any
    missed: int  # so many were passed over before it (up to a thousand are counted)
    last_missed: int | None
    next: int | None  # the fire time after it


class Schedule:
    """`Schedule("nightly", cron="0 3 * * *", tz="Europe/Berlin", task=clean, args={"days": 30})`."""

    def __init__(
        self,
        name: str,
        *,
        cron: str,
        tz: str = "UTC",
        task: Task[Any, Any] | str | None = None,
        pipeline: Pipeline | str | None = None,
        subject: str | None = None,
        args: Mapping[str, Any] | None = None,
        priority: Priority | str = Priority.NORMAL,
        catch_up: str = "one",
        jitter: float | timedelta = 0,
        windows: str | Sequence[str] = (),
        overlap: bool = False,
        labels: Sequence[str] = (),
        not_within: float | timedelta | None = None,
        batch: int | None = None,
        spread: float | timedelta = 0,
    ) -> None:
        self.name = check_name(name, "schedule")
        where = f"schedule {name!r}"
        try:
            self.cron = Cron(cron, tz)
            self.texts = (windows,) if isinstance(windows, str) else tuple(windows)
            self.windows = tuple(map(Window.parse, self.texts))
        except Invalid as error:
            raise Invalid(f"{where}: {error}") from None
        self.task = _named(task, Task, where, "task")
        self.pipeline = _named(pipeline, Pipeline, where, "pipeline")
        if (self.task is None) == (self.pipeline is None):
            raise Invalid(f"{where} starts something: give it a task or a pipeline, and not both")
        if isinstance(task, Stage | Part):
            raise Invalid(f"{where}: {task!r} runs as part of a run; give the pipeline")
        if subject is not None and self.pipeline is None:
            raise Invalid(f"{where}: a subject goes with a pipeline")
        self.subject = None if subject is None else check_key(subject, "subject")
        if args is not None and not isinstance(args, Mapping):
            raise Invalid(f"{where}: args must be a dict of arguments by name, not {type(args).__name__}")
        self.args = orjson.loads(encode(dict(args or {}), f"{where}: the arguments"))
        self.priority = Priority.of(priority)
        if catch_up not in CATCH_UP:
            raise Invalid(f"{where}: unknown catch_up={catch_up!r}{did_you_mean(str(catch_up), CATCH_UP)}")
        self.catch_up = catch_up
        self.jitter = _duration(jitter, f"{where}: jitter")
        self.overlap = bool(overlap)
        self.stalest = self._stalest(where, labels, not_within, batch, _duration(spread, f"{where}: spread"))

    def _stalest(
        self, where: str, labels: Sequence[str], not_within: float | timedelta | None, batch: int | None, spread: int
    ) -> Stalest | None:
        if self.pipeline is None or self.subject is not None:
            if labels or not_within is not None or batch is not None or spread:
                raise Invalid(f"{where}: labels, not_within, batch and spread choose among subjects; give a pipeline alone")
            return None
        return stalest(labels, not_within, batch, spread, where)

    def __repr__(self) -> str:
        return f"<schedule {self.name!r} {self.cron.text!r}>"

    @cached_property
    def spec(self) -> str:
        """All of it but the name, as the ledger keeps it: the same schedule is the same text."""
        chosen = self.stalest
        found: dict[str, Any] = {
            "cron": self.cron.text,
            "tz": self.cron.tz,
            "task": self.task,
            "pipeline": self.pipeline,
            "subject": self.subject,
            "args": self.args,
            "priority": self.priority.name.lower(),
            "catch_up": self.catch_up,
            "jitter": self.jitter / SECOND,
            "windows": list(self.texts),
            "overlap": self.overlap,
        }
        if chosen:
            labels = [key if value is None else f"{key}={value}" for key, value in chosen.labels]
            found |= {"labels": labels, "not_within": chosen.not_within / SECOND, "batch": chosen.batch}
            found |= {"spread": chosen.spread / SECOND}
        return orjson.dumps(found).decode()

    @classmethod
    def read(cls, name: str, spec: str) -> Schedule:
        return cls(name, **orjson.loads(spec))

    @property
    def target(self) -> str:
        """What it starts, in words."""
        if self.task is not None:
            return f"task {self.task}"
        return f"{self.pipeline} {self.subject}" if self.subject is not None else f"stalest of {self.pipeline}"

    # ---- time

    def due(self, fire: int | None) -> int | None:
        """When a fire time is to be acted on: at it, or somewhat later."""
        return None if fire is None else fire + jitter(self.name, fire, self.jitter)

    def in_window(self, *moments: int) -> bool:
        return any(window.covers(self.cron.local(at)) for window in self.windows for at in moments)

    def gap(self, fire: int) -> int:
        """From this fire time to the next."""
        return (self.cron.after(fire) or fire + SECOND) - fire

    def turn(self, fire: int, now: int) -> Turn:
        """What to do at this time, when `fire` is the first fire time that was not dealt with, and it is due."""
        first = fire
        if self.catch_up == "all":
            if fire < now - _ALL_OF:
                fire = self.cron.after(now - _ALL_OF) or fire
            return self._turn(first, fire, self.cron.after(fire))
        newest = self._newest(fire, now)
        following = self.cron.after(newest)
        if self.catch_up == "none" and now - (self.due(newest) or newest) > ON_TIME:
            return self._turn(first, None, following)
        return self._turn(first, newest, following)

    def _newest(self, fire: int, now: int) -> int:
        newest = self.cron.newest(now) or fire
        while newest > fire and (self.due(newest) or newest) > now:  # with jitter, its time may not have come
            newest = self.cron.newest(newest - 1) or fire
        return max(newest, fire)

    def _turn(self, first: int, fire: int | None, following: int | None) -> Turn:
        """With how many from `first` on are passed over."""
        end = fire if fire is not None else following
        missed, last = 0, None
        for moment in self.cron.times(first - 1):
            if (end is not None and moment >= end) or missed == _COUNTED:
                break
            missed, last = missed + 1, moment
        return Turn(fire, missed, last, following)


def stalest(
    labels: Sequence[str], not_within: float | timedelta | None, batch: int | None, spread: int = 0, where: str = ""
) -> Stalest:
    """What was given, checked. Without a number, one at a time; spread evenly, as many as it takes."""
    where = f"{where}: " if where else ""
    if isinstance(labels, str) or not all(isinstance(label, str) and label.partition("=")[0] for label in labels):
        raise Invalid(f"{where}labels are a list of 'key=value' or 'key', not {quoted(labels)}")
    pairs = [label.partition("=") for label in labels]
    most = (_SPREAD if spread else 1) if batch is None else batch
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST:
        raise Invalid(f"{where}batch must be a whole number from 1 to {MOST}, not {quoted(batch)}")
    gap = _duration(DAILY if not_within is None else not_within, f"{where}not_within")
    return Stalest(tuple((key, value if equals else None) for key, equals, value in pairs), gap, most, spread)


def _named(given: Any, kind: type, where: str, what: str) -> str | None:
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, kind):
        raise Invalid(f"{where}: {given!r} is not a {what}; give one, or the name of one")
    return str(given.name)  # type: ignore[attr-defined]


def _duration(given: Any, what: str) -> int:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise Invalid(f"{what} must be a number of seconds, not {quoted(given)}")
    return micros(seconds)
