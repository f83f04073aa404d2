"""`./run bench --guard`: has the hot path got slow? Ours against the raw loop, as ratios, against floors that are committed.

A busy machine slows both, so ratios hold where times do not. What is left of the noise goes up and down: the median of the
rounds counts, and there are more of them as long as it is below its floor.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import playing
from bench.figures import value_of
from bench.plan import BY_NAME as MEASURES
from bench.plan import Step
from bench.systems import BY_NAME as SYSTEMS

FLOORS = Path(__file__).parent / "floors.json"
LEAST, MOST = 3, 9  # rounds
SECONDS = 90.0  # nothing is measured again after that: all of it takes under two minutes
COUNTS = {"drain": 60_000, "bulk": 20_000, "io": 5000}  # jobs
NAMES = ("drain sqlite", "drain postgres", "bulk sqlite", "bulk postgres", "io postgres")


@dataclass
class Ratio:
    """Ours against the loop, in each round."""

    name: str
    floor: float
    rounds: list[float] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return bool(self.rounds) and statistics.median(self.rounds) >= self.floor

    def __str__(self) -> str:
        told = ", ".join(f"{value:.0%}" for value in self.rounds) or "not measured"
        return f"{'holds' if self.holds else 'FAILS'}  {self.name}: {told} of the raw loop; the floor is {self.floor:.0%}"


def ratios(floors: dict[str, float]) -> list[Ratio]:
    if set(NAMES) != set(floors):
        raise SystemExit(f"bench: {FLOORS.name} must have a floor for each of {', '.join(NAMES)}, and no other")
    return [Ratio(name, floors[name]) for name in NAMES]


def play_rounds(found: list[Ratio], measure: Callable[[str], float], until: float) -> None:
    """All of them at first, then only those that are still below. One round is made however long it takes."""
    for number in range(MOST):
        for ratio in found:
            if number == 0 or ((number < LEAST or not ratio.holds) and time.monotonic() < until):
                ratio.rounds.append(measure(ratio.name))


def measured(servers: playing.Servers, name: str) -> float:
    """One round: the loop, then ours, right after one another."""
    measure, database = name.split()
    loop, ours = (rate(servers, measure, f"{program}-{database}") for program in ("loops", "gristmill"))
    return ours / loop


def rate(servers: playing.Servers, measure: str, system: str) -> float:
    settings = {"count": COUNTS[measure], "seconds": 30.0}
    result = playing.play(Step(0, MEASURES[measure], SYSTEMS[system], settings), servers, math.inf)
    value = value_of(result)
    if not value:
        raise SystemExit(f"bench: {measure} of {system} gave no rate: {result}")
    return value


def told(found: list[Ratio]) -> Iterator[str]:
    yield from map(str, found)
    if not all(ratio.holds for ratio in found):
        yield f"The hot path has got slow. If that is meant, lower the floor in {FLOORS.name} and say why in the commit."


def main() -> int:
    until = time.monotonic() + SECONDS
    found = ratios(json.loads(FLOORS.read_text()))
    with playing.servers() as servers:
        play_rounds(found, lambda name: measured(servers, name), until)
    print("\n".join(told(found)), flush=True)
    return 0 if all(ratio.holds for ratio in found) else 1


if __name__ == "__main__":
    sys.exit(main())
