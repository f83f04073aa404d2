"""What Gristmill is to reach beside its peers, row by row: reached, not reached, or not measured.

Reached is only what no round of ours and no peer is missing from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.figures import Figures, number
from bench.plan import BY_NAME as MEASURES
from bench.systems import BY_NAME, SYSTEMS, System

SQLITE, POSTGRES = "gristmill-sqlite", "gristmill-postgres"
MANY_ROWS = 1_000_000  # the quick form has fewer


@dataclass(frozen=True)
class Reach:
    row: str
    wanted: str
    measured: str
    reached: bool | None  # None: something of it was not measured

    @property
    def word(self) -> str:
        none = "not measured" if self.measured == "–" else "not all measured"
        return {True: "reached", False: "**not reached**", None: none}[self.reached]


def reaches(figures: Figures) -> list[Reach]:
    return [*drains(figures), *fans(figures), *bulks(figures), *latencies(figures), *ios(figures), *growth(figures)]


def peers(*stores: str, without: str = "") -> list[System]:
    return [s for s in SYSTEMS if s.is_peer and (not stores or s.store in stores) and s.program != without]


# ---- ours, and whom it is compared with --------------------------------------------------------------------------


@dataclass(frozen=True)
class Best:
    """The best of some, and who of them was not measured."""

    title: str
    value: float
    missing: tuple[str, ...] = ()


def ours(figures: Figures, name: str, *measures: str) -> float | None:
    """The most of these measures' medians; none, if one of our rounds went wrong."""
    if any(figures.went_wrong(name, measure) for measure in measures):
        return None
    return best_median(figures, name, measures)


def best_median(figures: Figures, name: str, measures: Iterable[str]) -> float | None:
    found = [figures.median(name, measure) for measure in measures]
    return max((value for value in found if value is not None), default=None)


def missing(figures: Figures, systems: Iterable[System], measure: str) -> tuple[str, ...]:
    """Who has no figure and should: the full form asks for it, and it is nothing that the peer cannot do."""
    return tuple(
        system.title
        for system in systems
        if MEASURES[measure].wanted(system, False) and not figures.of(system.name, measure)
        if not figures.why_not(system.name, measure).startswith("unsupported")
    )


def judged(row: str, wanted: str, told: str, fine: bool, missing: tuple[str, ...]) -> Reach:
    """Ahead of all but one who was not measured is ahead of all only if that one is behind."""
    if missing:
        told += f"; not measured: {'; '.join(missing)}"
    return Reach(row, wanted, told, None if fine and missing else fine)


def at_least(row: str, ours: float | None, factor: float, other: Best | None, wanted: str) -> Reach:
    if ours is None or other is None or not other.value:
        return Reach(row, wanted, "–", None)
    ratio = ours / other.value
    told = f"{ratio:.0%}" if factor < 1 else f"{ratio:.1f} ×"
    told += f": {number(ours)} against {number(other.value)} ({other.title})"
    return judged(row, wanted, told, ratio >= factor, other.missing)


# ---- the rows ----------------------------------------------------------------------------------------------------

DRAINS = ("drain", "drain-many")  # at its best: of many jobs where those were measured, of fewer else


def best_drain(figures: Figures, systems: list[System]) -> Best | None:
    found = [(rate, s.title) for s in systems if (rate := best_median(figures, s.name, DRAINS)) is not None]
    if not found:
        return None
    rate, title = max(found)
    return Best(title, rate, missing(figures, systems, "drain"))


def drains(figures: Figures) -> Iterator[Reach]:
    rate, row = ours(figures, POSTGRES, *DRAINS), "drain, PostgreSQL"
    pgqueuer = best_drain(figures, [BY_NAME["pgqueuer-100"]])
    yield at_least(row, rate, 2, pgqueuer, "≥ 2 × PgQueuer with batches of 100")
    others = best_drain(figures, peers(without="pgqueuer"))
    yield at_least(row, rate, 8, others, "≥ 8 × every other Python peer")
    yield at_least(row, rate, 0.6, best_drain(figures, [BY_NAME["loops-postgres"]]), "≥ 60% of the raw psycopg loop")
    rate, row = ours(figures, SQLITE, *DRAINS), "drain, SQLite"
    yield at_least(row, rate, 25, best_drain(figures, peers("sqlite")), "≥ 25 × the best peer on SQLite")
    yield at_least(row, rate, 15, best_drain(figures, peers("redis")), "≥ 15 × the best peer on Redis")


def fastest_fan(figures: Figures, systems: list[System]) -> Best | None:
    """Of these peers' fan-ins of 10,000. One that was not done in the time counts as if it had been then."""
    found = [
        (result["seconds"] if result["callbacks"] else result["waited"], system.title)
        for system in systems
        for result in figures.of(system.name, "fan-many")
    ]
    if not found:
        return None
    seconds, title = min(found)
    return Best(title, seconds, missing(figures, systems, "fan-many"))


def _fans(figures: Figures, systems: list[System], factor: float, wanted: str) -> Iterator[Reach]:
    best = fastest_fan(figures, systems)
    for name in (SQLITE, POSTGRES):
        row, seconds = f"fan-in of 10,000, {BY_NAME[name].title}", ours(figures, name, "fan-many")
        if seconds is None or best is None:
            yield Reach(row, wanted, "–", None)
            continue
        ratio = best.value / seconds
        told = f"{ratio:.1f} ×: {number(seconds)} s against {number(best.value)} s ({best.title})"
        yield judged(row, wanted, told, ratio >= factor, best.missing)


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
        row, rate, loop = f"bulk enqueue, {BY_NAME[name].title}", ours(figures, name, "bulk"), figures.median(raw, "bulk")
        yield at_least(row, rate, 0.7, Best(way, loop) if loop else None, f"≥ 70% of raw {way}")
        told = "–" if rate is None else f"{number(rate)}/s"
        yield Reach(row, f"≥ {least:,}/s", told, None if rate is None else rate >= least)


def best_latency(figures: Figures, systems: list[System]) -> Best | None:
    found = [(p50, s.title) for s in systems if (p50 := figures.median(s.name, "latency")) is not None]
    if not found:
        return None
    p50, title = min(found)
    return Best(title, p50, missing(figures, systems, "latency"))


def latencies(figures: Figures) -> Iterator[Reach]:
    bounds = (
        (1.0, peers("sqlite", "postgres"), "p50 ahead of every database-backed peer"),
        (2.0, peers("redis"), "p50 within 2 × of the best Redis peer"),
    )
    for name in (SQLITE, POSTGRES):
        row, p50 = f"latency idle, {BY_NAME[name].title}", ours(figures, name, "latency")
        for factor, systems, wanted in bounds:
            best = best_latency(figures, systems)
            if p50 is None or best is None:
                yield Reach(row, wanted, "–", None)
                continue
            told = f"{number(p50)} ms against {number(best.value)} ms ({best.title})"
            yield judged(row, wanted, told, p50 <= factor * best.value, best.missing)


def ios(figures: Figures) -> Iterator[Reach]:
    bare = figures.median("loops-postgres", "io")
    for name in (SQLITE, POSTGRES):
        row, rate = f"I/O-bound async, {BY_NAME[name].title}", ours(figures, name, "io")
        yield at_least(row, rate, 0.9, Best("gather", bare) if bare else None, "≥ 90% of a bare asyncio.gather")


def growth(figures: Figures) -> Iterator[Reach]:
    for name in (SQLITE, POSTGRES):
        row = f"cost as work grows, {BY_NAME[name].title}"
        wanted = f"per job at {MANY_ROWS:,} rows ≤ 1.3 × that at 10,000 (or 100,000, if that is less)"
        few, many = ours(figures, name, *DRAINS), ours(figures, name, "backlog")
        if few is None or not many:
            yield Reach(row, wanted, "–", None)
            continue
        count = figures.of(name, "backlog")[0]["count"]
        told = f"{few / many:.2f} × at {count:,}: {number(1e6 / many)} µs against {number(1e6 / few)} µs"
        yield judged(row, wanted, told, few / many <= 1.3, () if count >= MANY_ROWS else (f"{MANY_ROWS:,}",))
