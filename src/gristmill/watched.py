"""What those who look on are given: who they are (tokens), what changed (events), what was done when (history)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """What a token lets its bearer do; each may do what those before it may."""

    VIEWER = "viewer"  #: read everything
    OPERATOR = "operator"  #: act on runs, jobs, queues and schedules
    ADMIN = "admin"  #: all, also make and revoke tokens

    def may(self, needed: Role) -> bool:
        """Is this role enough for what needs that one?"""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True)
class Token:
    """Who may use the HTTP API. What its bearer says is not kept, only a hash of it."""

    id: int
    name: str
    role: Role
    state: str  #: `live`, `expired` or `revoked`
    created_at: datetime | None
    created_by: str
    expires_at: datetime | None
    used_at: datetime | None  #: to a minute
    revoked_at: datetime | None
    revoked_by: str | None


@dataclass(frozen=True)
class NewToken:
    """A token that was just made, with what its bearer has to say: nobody can read that again."""

    text: str
    token: Token


@dataclass(frozen=True)
class Event:
    """Something that changed."""

    id: str  #: where it stands: what to go on after
    at: datetime | None
    name: str  #: `run`, `jobs`, `worker`, `schedule`, `audit`; an application's own have a dot
    run: int | None
    data: dict[str, Any]


@dataclass(frozen=True)
class Events:
    """Events in the order of their commits, and after which to go on."""

    events: tuple[Event, ...]
    last: str
    reset: bool = False  #: what came after the place that was asked for is not kept any more: look at everything anew


@dataclass(frozen=True)
class Interval:
    """What was done in one interval of time; times are seconds."""

    at: datetime | None  #: its begin
    completed: int
    completed_with_errors: int
    failed: int
    skipped: int
    cancelled: int
    retried: int  #: attempts after which the job was queued again
    ran: float  #: in all, by all attempts that ended
    waited: float  #: in all, until their first attempt
    waits: int  #: of how many jobs that is known
    ran_in: tuple[int, ...]  #: how many took no longer than each of `rollup.BOUNDS`, and longer than the one before
    waited_in: tuple[int, ...]

    @property
    def ended(self) -> int:
        return self.completed + self.completed_with_errors + self.failed + self.skipped + self.cancelled


@dataclass(frozen=True)
class Ended:
    """How many jobs ended in one interval of time, and how many of them failed, or neither failed nor completed."""

    at: datetime | None  #: its begin
    ended: int
    failed: int
    other: int  #: cancelled or skipped


@dataclass(frozen=True)
class Total:
    """What was done of one task in one queue."""

    queue: str
    task: str
    done: Interval
