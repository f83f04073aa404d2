"""How attempts ended, as a worker tells it: each by itself, or, for nearly all, as rows of plain completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gristmill.ledger.applied import Guard
from gristmill.ledger.claim import Kind, Origin
from gristmill.ledger.moment import Ended


class Verdict(StrEnum):
    """How an attempt ended, as the worker saw it."""

    COMPLETED = "completed"
    WITH_ERRORS = "completed_with_errors"
    UNCHANGED = "unchanged"  #: completed, as it was when this run did it before: what it gave then still counts
    SKIPPED = "skipped"
    END_RUN = "end_run"  #: completed, and the run ends here
    PERMANENT = "permanent"
    ERROR = "error"
    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"  #: a crash whose reason is known
    LOST = "lost"
    CANCELLED = "cancelled"
    LATER = "later"
    WAITING = "waiting"  #: it handed over parts, and is called again when they have ended
    UNSPENT = "unspent"
    RELEASED = "released"  #: not even started, or the worker was told to stop


class Outcome(NamedTuple):
    """The end of one attempt of one job."""

    job: int
    attempt: int
    run: int | None
    verdict: Verdict
    result: str | None = None
    ran: int = 0  # microseconds since it started
    progress: str | None = None
    reason: str | None = None  # in words: the error, why it was skipped, why it was returned
    error_class: str | None = None
    error_types: Sequence[str] = ()
    traceback: str | None = None
    log: str | None = None
    delay: float = 0.0  # seconds, for LATER
    alone: bool = False  # suspected of a crash: next time without bystanders
    digest: str | None = None  # the fingerprint of what it did, if it completed: the same again need not be done
    part_of: int | None = None  # the job that it is a part of, which is locked before
    guards: Sequence[Guard] = ()  # the versions that it applied: if newer ones were, it was for nothing


# A plain completion travels as a row, not as an Outcome, because there may be 100,000 a second.
CompletedRow = tuple[int, int, str | None, int]  # job, attempt, result as JSON, microseconds since it started


class Times(NamedTuple):
    """Of some jobs, in microseconds."""

    ran: list[int]
    waited: list[int]


@dataclass
class Completed:
    """Plain completions, and beside each row where its job comes from."""

    rows: list[CompletedRow] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    unique: list[int] = field(default_factory=list)  # the jobs among them that have a unique key, which ends with them
    watched: list[Ended] = field(default_factory=list)  # the jobs among them whose task has an `on_terminal`
    limited: list[int] = field(default_factory=list)  # the jobs among them that have a limit, or whose queue has one
    times: dict[tuple[int, int], Times] = field(default_factory=dict)  # by queue and task
    _counted: Counter[Origin] = field(default_factory=Counter, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, other: Completed) -> None:
        self.rows += other.rows
        self.origins += other.origins
        self.unique += other.unique
        self.watched += other.watched
        self.limited += other.limited
        for key, (ran, waited) in other.times.items():
            self._add_times(key, ran, waited)

    def time(self, kinds: Sequence[Kind], ran: Sequence[int], waited: Sequence[int]) -> None:
        """How long completed jobs of these kinds ran, and had waited. Nearly always all are of one kind."""
        if not kinds or kinds.count(kinds[0]) == len(kinds):
            for kind in kinds[:1]:
                self._add_times((kind.queue_id, kind.task_id), ran, waited)
            return
        for kind, its_ran, its_wait in zip(kinds, ran, waited, strict=True):
            self._add_times((kind.queue_id, kind.task_id), [its_ran], [its_wait])

    def _add_times(self, key: tuple[int, int], ran: Sequence[int], waited: Sequence[int]) -> None:
        times = self.times.setdefault(key, Times([], []))
        times.ran.extend(ran)
        times.waited.extend(waited)

    def by_origin(self) -> Counter[Origin]:
        """How many come from where. Asked for several times a turn, counted once."""
        if self._counted.total() != len(self.origins):
            first = self.origins[0]
            alike = self.origins.count(first) == len(self.origins)  # as nearly always; to count them takes far longer
            self._counted = Counter({first: len(self.origins)} if alike else self.origins)
        return self._counted

    def spelled_out(self) -> list[Outcome]:
        pairs = zip(self.rows, self.origins, strict=True)
        return [
            Outcome(job, at, run, Verdict.COMPLETED, result, ran, part_of=parent)
            for (job, at, result, ran), (run, _, parent) in pairs
        ]
