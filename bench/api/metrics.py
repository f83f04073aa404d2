"""A scrape of /metrics: how long Prometheus waits, and how much of that the database takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.api.app import ALL
from bench.api.filling import Place
from bench.api.serving import asked, p95, serving
from bench.core import Figure
from bench.metrics import REACH_MS, Statement, database_ms, noted
from gristmill import Mill


def measure(place: Place, quick: bool) -> Iterator[Figure]:
    rounds = 5 if quick else 40
    with serving(place.url) as served, served.client() as client:
        asked(client, "/metrics")
        taken = [asked(client, "/metrics") for _ in range(rounds)]
    statements: list[Statement] = []
    with Mill.open(place.url, *ALL) as mill, noted(statements):
        mill.metrics()
    costs = [database_ms(place.url, statements) for _ in range(3 if quick else 9)]
    database = statistics.median(sum(ms for ms, _ in cost) for cost in costs)
    middle = statistics.median(taken)
    told = f"{middle:.1f} ms (p95 {p95(taken):.1f}), of which the database {database:.1f} ms"
    yield Figure("a scrape of /metrics", "PostgreSQL", told, f"≤ {REACH_MS:.0f} ms", middle <= REACH_MS)
