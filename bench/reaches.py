"""What Gristmill is to reach beside its peers, row by row: reached, not reached, or not measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.figures import Figures, number
from bench.systems import BY_NAME, SYSTEMS, System

SQLITE, POSTGRES = "gristmill-sqlite", "gristmill-postgres"


@dataclass(frozen=True)
class Reach:
    row: str
    wanted: str
    measured: str
    reached: bool | None  # None: something of it was not measured

    @property
    def word(self) -> str:
        return {True: "reached", False: "**not reached**", None: "not measured"}[self.reached]


def reaches(figures: Figures) -> list[Reach]:
    return [*drains(figures), *fans(figures), *bulks(figures), *latencies(figures), *ios(figures), *growth(figures)]


def peers(*stores: str, without: str = "") -> list[System]:
    return [s for s in SYSTEMS if s.is_peer and (not stores or s.store in stores) and s.program != without]


def drained(figures: Figures, name: str) -> float | None:
    """At its best: of many jobs where those were measured, of fewer else."""
    found = [figures.median(name, measure) for measure in ("drain", "drain-many")]
    return max((value for value in found if value is not None), default=None)


def best_drain(figures: Figures, systems: list[System]) -> tuple[str, float] | None:
    found = [(s.title, rate) for s in systems if (rate := drained(figures, s.name)) is not None]
    return max(found, key=lambda pair: pair[1], default=None)


def at_least(row: str, ours: float | None, factor: float, other: tuple[str, float] | None, wanted: str) -> Reach:
    if ours is None or other is None or not other[1]:
        return Reach(row, wanted, "–", None)
    ratio = ours / other[1]
    told = f"{ratio:.0%}" if factor < 1 else f"{ratio:.1f} ×"
    return Reach(row, wanted, f"{told}: {number(ours)} against {number(other[1])} ({other[0]})", ratio >= factor)


def drains(figures: Figures) -> Iterator[Reach]:
    ours, row = drained(figures, POSTGRES), "drain, PostgreSQL"
    pgqueuer = best_drain(figures, [BY_NAME["pgqueuer-100"]])
    yield at_least(row, ours, 2, pgqueuer, "≥ 2 × PgQueuer with batches of 100")
    others = best_drain(figures, peers(without="pgqueuer"))
    yield at_least(row, ours, 8, others, "≥ 8 × every other Python peer")
    yield at_least(row, ours, 0.6, best_drain(figures, [BY_NAME["loops-postgres"]]), "≥ 60% of the raw psycopg loop")
    ours, row = drained(figures, SQLITE), "drain, SQLite"
    yield at_least(row, ours, 25, best_drain(figures, peers("sqlite")), "≥ 25 × the best peer on SQLite")
    yield at_least(row, ours, 15, best_drain(figures, peers("redis")), "≥ 15 × the best peer on Redis")


def fastest_fan(figures: Figures, systems: list[System]) -> tuple[str, float] | None:
    """Of these peers' fan-ins of 10,000. One that was not done in the time counts as if it had been then."""
    found = []
    for system in systems:
        for result in figures.of(system.name, "fan-many"):
            found.append((system.title, result["seconds"] if result["callbacks"] else result["waited"]))
    return min(found, key=lambda pair: pair[1], default=None)


def _fans(figures: Figures, systems: list[System], factor: float, wanted: str) -> Iterator[Reach]:
    best = fastest_fan(figures, systems)
    for name in (SQLITE, POSTGRES):
        row, ours = f"fan-in of 10,000, {BY_NAME[name].title}", figures.median(name, "fan-many")
        if ours is None or best is None:
            yield Reach(row, wanted, "–", None)
            continue
        told = f"{best[1] / ours:.1f} ×: {number(ours)} s against {number(best[1])} s ({best[0]})"
        yield Reach(row, wanted, told, best[1] / ours >= factor)


def fans(figures: Figures) -> Iterator[Reach]:
    yield from _fans(figures, [s for s in peers() if s.fans_in], 5, "≥ 5 × faster than every peer's chord or group")
    yield from _fans(figures, [s for s in peers() if not s.fans_in], 1, "ahead of a parent that waits in memory")
    for name in (SQLITE, POSTGRES):
        calls = [result["callbacks"] for result in figures.of(name, "fail")]
        row = f"fan-in with failures, {BY_NAME[name].title}"
        told = f"ran {calls[0]} ×" if calls else "–"
        yield Reach(row, "the callback always runs, once", told, all(n == 1 for n in calls) if calls else None)


def bulks(figures: Figures) -> Iterator[Reach]:
    for name, raw, least, way in (
        (SQLITE, "loops-sqlite", 50_000, "executemany"),
        (POSTGRES, "loops-postgres", 20_000, "COPY"),
    ):
        row, ours, loop = f"bulk enqueue, {BY_NAME[name].title}", figures.median(name, "bulk"), figures.median(raw, "bulk")
        yield at_least(row, ours, 0.7, (way, loop) if loop else None, f"≥ 70% of raw {way}")
        told = "–" if ours is None else f"{number(ours)}/s"
        yield Reach(row, f"≥ {least:,}/s", told, None if ours is None else ours >= least)


def best_latency(figures: Figures, systems: list[System]) -> tuple[str, float] | None:
    found = [(s.title, p50) for s in systems if (p50 := figures.median(s.name, "latency")) is not None]
    return min(found, key=lambda pair: pair[1], default=None)


def latencies(figures: Figures) -> Iterator[Reach]:
    bounds = (
        (1.0, peers("sqlite", "postgres"), "p50 ahead of every database-backed peer"),
        (2.0, peers("redis"), "p50 within 2 × of the best Redis peer"),
    )
    for name in (SQLITE, POSTGRES):
        row, ours = f"latency idle, {BY_NAME[name].title}", figures.median(name, "latency")
        for factor, systems, wanted in bounds:
            best = best_latency(figures, systems)
            if ours is None or best is None:
                yield Reach(row, wanted, "–", None)
                continue
            told = f"{number(ours)} ms against {number(best[1])} ms ({best[0]})"
            yield Reach(row, wanted, told, ours <= factor * best[1])


def ios(figures: Figures) -> Iterator[Reach]:
    bare = figures.median("loops-postgres", "io")
    for name in (SQLITE, POSTGRES):
        row, ours = f"I/O-bound async, {BY_NAME[name].title}", figures.median(name, "io")
        yield at_least(row, ours, 0.9, ("gather", bare) if bare else None, "≥ 90% of a bare asyncio.gather")


def growth(figures: Figures) -> Iterator[Reach]:
    for name in (SQLITE, POSTGRES):
        row, few, many = (
            f"cost as work grows, {BY_NAME[name].title}",
            drained(figures, name),
            figures.median(name, "backlog"),
        )
        wanted = "per job at 1,000,000 rows ≤ 1.3 × that at 10,000 (or 100,000, if that is less)"
        if few is None or not many:
            yield Reach(row, wanted, "–", None)
            continue
        count = figures.of(name, "backlog")[0]["count"]
        told = f"{few / many:.2f} × at {count:,}: {number(1e6 / many)} µs against {number(1e6 / few)} µs"
        yield Reach(row, wanted, told, few / many <= 1.3)
