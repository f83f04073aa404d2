"""What was measured, as medians and spread, and how it is told; no measuring here."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Result = dict[str, Any]


@dataclass
class Figures:
    """All results of a run, by system and measure, in the order of the rounds."""

    mode: str = "full"
    machine: str = ""
    about: dict[str, Result] = field(default_factory=dict)
    results: dict[str, dict[str, list[Result]]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, system: str, measure: str, result: Result) -> None:
        self.results.setdefault(system, {}).setdefault(measure, []).append(result)

    def of(self, system: str, measure: str) -> list[Result]:
        """Those that are figures: neither refused, nor gone wrong, nor left out."""
        found = self.results.get(system, {}).get(measure, [])
        return [result for result in found if not {"unsupported", "error", "skipped"} & set(result)]

    def went_wrong(self, system: str, measure: str) -> bool:
        """In some round, whatever the others gave: it failed, or what was waited for never came."""
        found = self.results.get(system, {}).get(measure, [])
        return any("error" in result for result in found) or None in map(value_of, self.of(system, measure))

    def why_not(self, system: str, measure: str) -> str:
        """Why there is no figure."""
        for result in self.results.get(system, {}).get(measure, []):
            for key in ("unsupported", "error", "skipped"):
                if key in result:
                    return f"{key}: {result[key]}"
        return ""

    @property
    def broken(self) -> set[str]:
        """Systems whose first drain went wrong: their other scenarios would too, and take long over it."""
        return {name for name, found in self.results.items() if "error" in found.get("drain", [{}])[0]}

    def values(self, system: str, measure: str) -> list[float]:
        return [value for result in self.of(system, measure) if (value := value_of(result)) is not None]

    def median(self, system: str, measure: str) -> float | None:
        values = self.values(system, measure)
        return statistics.median(values) if values else None

    def text(self) -> str:
        return json.dumps(self.__dict__, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Figures:
        return cls(**json.loads(path.read_text()))


def value_of(result: Result) -> float | None:
    """The number that a result is compared by: jobs per second, seconds or milliseconds."""
    for key in ("steady", "rate", "p50", "seconds"):
        if key in result:
            value: float | None = result[key]
            return value
    return None


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """The median, and the least and the most beside it if there are several."""
    told = form(statistics.median(values))
    return told if len(values) == 1 else f"{told} ({form(min(values))}–{form(max(values))})"


def number(value: float) -> str:
    """With as many digits as mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
