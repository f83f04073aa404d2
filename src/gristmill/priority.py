"""The three priorities."""

from __future__ import annotations

from enum import IntEnum

from gristmill.errors import Invalid, did_you_mean, quoted


class Priority(IntEnum):
    """A run's priority is its jobs' priority, through all stages."""

    HIGH = 0
    NORMAL = 1
    LOW = 2

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, value: Priority | str) -> Priority:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str) or value.upper() not in cls.__members__:
            raise Invalid(f"unknown priority {quoted(value)}{did_you_mean(value, [p.word for p in cls])}")
        return cls[value.upper()]
