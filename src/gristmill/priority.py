"""The three priorities."""

from __future__ import annotations

from enum import IntEnum

from gristmill.errors import Invalid, did_you_mean


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
        word = str(value)
        if word.upper() not in cls.__members__:
            names = [p.word for p in cls]
            raise Invalid(f"unknown priority {word!r}{did_you_mean(word, names)}")
        return cls[word.upper()]
