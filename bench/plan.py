"""What is asked of whom, and how much of it: a slow peer gets fewer jobs, and its rate is that of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.systems import OURS, System

Settings = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """One row of figures: a scenario with its numbers."""

    name: str
    scenario: str
    settings: Callable[[System, bool], Settings]  # of a system, and whether it is the quick form
    wanted: Callable[[System, bool], bool]
    peers: int = 1  # in so many of the rounds
    again: bool = False  # Gristmill and the loops are in all of them
    together: bool = False  # is not about time: several systems at once
    title: str = ""


@dataclass(frozen=True)
class Step:
    """One order to give."""

    number: int  # the round
    measure: Measure
    system: System
    settings: Settings = field(default_factory=dict)


def everybody(system: System, quick: bool) -> bool:
    return system.main


def queues(system: System, quick: bool) -> bool:
    return system.main and system.program != "loops"


def at_length(system: System, quick: bool) -> bool:
    """What the quick form leaves out for peers."""
    return queues(system, quick) and (not quick or system.program == OURS)


def also_variants(system: System, quick: bool) -> bool:
    return system.main or not quick


def kill(system: System, quick: bool) -> Settings:
    """Who takes jobs by the hundred has ended fewer before it is killed."""
    return {"count": 3000 if system.program == "pgqueuer" else 300, "seconds": 33 if quick else 66}


def variants_of_queues(system: System, quick: bool) -> bool:
    return system.program != "loops" and also_variants(system, quick)


def fast(system: System, quick: bool) -> bool:
    return system.main and system.is_fast and (not quick or not system.is_peer)


def many(system: System, quick: bool) -> Settings:
    return {"count": 20_000 if system.is_fast else 1000 if quick else 5000}


def drain_some(system: System, quick: bool) -> Settings:
    seconds = 1 if quick else 3
    return {"count": min(10_000, max(200, system.rate * seconds)), "seconds": seconds}


def fan(system: System, quick: bool) -> Settings:
    return {"count": 300 if quick and system.is_peer else 1000, "seconds": 8 if quick else 20}


def latency(system: System, quick: bool) -> Settings:
    return {"count": 30, "seconds": 2} if quick else {"count": 80, "seconds": 5}


def drain_many(system: System, quick: bool) -> Settings:
    return {"count": 30_000 if quick else 100_000, "seconds": 10}


def backlog(system: System, quick: bool) -> Settings:
    return {"count": 100_000 if quick else 1_000_000, "seconds": 4}


def deep(system: System, quick: bool) -> bool:
    return fast(system, quick) and system.program != "loops"


def io(system: System, quick: bool) -> Settings:
    return {"count": 5000 if quick or system.is_peer else 20_000, "seconds": 4 if quick else 8, "awaits": 10}


def has_io(system: System, quick: bool) -> bool:
    """The bare gather has nothing to do with a database: once is enough."""
    return system.main and (not quick or not system.is_peer) and system.name != "loops-sqlite"


def times(count: int, seconds: float, **more: Any) -> Callable[[System, bool], Settings]:
    """So much in the full form; in the quick one the time is halved."""
    return lambda system, quick: {"count": count, "seconds": seconds / 2 if quick else seconds, **more}


MEASURES = (
    Measure("drain", "drain", drain_some, also_variants, peers=3, again=True, title="drain of up to 10,000, jobs/s"),
    Measure("fan", "fan", fan, queues, peers=2, again=True, title="fan-out and fan-in of 1,000, s"),
    Measure("latency", "latency", latency, variants_of_queues, peers=2, again=True, title="idle latency, ms"),
    Measure("bulk", "bulk", many, everybody, again=True, title="enqueue in bulk, jobs/s"),
    Measure("drain-many", "drain", drain_many, fast, peers=2, again=True, title="drain of 100,000, jobs/s"),
    Measure("io", "io", io, has_io, again=True, title="10 ms awaits, 1,000 at once, jobs/s"),
    Measure("backlog", "drain", backlog, deep, title="drain with 1,000,000 queued, jobs/s"),
    Measure("fan-many", "fan", times(10_000, 20), at_length, again=True, title="fan-out and fan-in of 10,000, s"),
    Measure("fail", "fan", times(200, 16, fail=0.05), queues, together=True, title="5% of children fail"),
    Measure("kill", "kill", kill, variants_of_queues, together=True, title="workers killed midway"),
    Measure("enqueue", "enqueue", times(2000, 2), at_length, title="enqueue one by one, jobs/s"),
    Measure("load", "load", times(0, 4), at_length, title="latency at 50% load, ms"),
    Measure("startup", "startup", times(1, 10), at_length, title="start-up and memory"),
)
BY_NAME = {measure.name: measure for measure in MEASURES}


def chosen(scenarios: list[str]) -> list[Measure]:
    """By name of a measure or of its scenario; nothing named: all."""
    unknown = set(scenarios) - set(BY_NAME) - {measure.scenario for measure in MEASURES}
    if unknown:
        raise SystemExit(f"bench: there is no scenario {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    return [m for m in MEASURES if not scenarios or m.name in scenarios or m.scenario in scenarios]


def rounds_of(measure: Measure, system: System, rounds: int) -> int:
    """There is not the time for all in each round: what decides most is measured most often."""
    if not system.main:
        return 1
    return rounds if measure.again and not system.is_peer else min(measure.peers, rounds)


def steps(systems: list[System], measures: list[Measure], rounds: int, quick: bool) -> Iterator[Step]:
    """Round by round, and in each a measure for all systems, so that all see the same machine."""
    for number in range(rounds):
        for measure in measures:
            for system in systems:
                if measure.wanted(system, quick) and number < rounds_of(measure, system, rounds):
                    yield Step(number, measure, system, measure.settings(system, quick))
