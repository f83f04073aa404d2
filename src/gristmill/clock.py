"""Time, as the ledger stores it: whole microseconds since 1970, UTC.

The database's clock decides. Where a test wants its own time it gives the ledger a `Clock`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], int]
SECOND = 1_000_000


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def to_datetime(at: int | None) -> datetime | None:
    return None if at is None else moment_of(at)


def moment_of(at: int) -> datetime:
    return datetime.fromtimestamp(at / SECOND, UTC)


def from_datetime(at: datetime) -> int:
    return micros(at.timestamp())


def iso(at: datetime | None) -> str | None:
    """RFC 3339 in UTC, with milliseconds."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class FrozenClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, at: int | datetime = 1_700_000_000 * SECOND) -> None:
        self.at = from_datetime(at) if isinstance(at, datetime) else at

    def __call__(self) -> int:
        return self.at

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at / SECOND, UTC)

    def advance(self, seconds: float | timedelta) -> None:
        self.at += micros(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
