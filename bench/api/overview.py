"""What one look at the overview costs the database, when nobody looked a moment ago."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator

from starlette.testclient import TestClient

from bench.api.app import ALL
from bench.api.filling import Place
from bench.core import Figure
from bench.metrics import Statement, database_ms, noted
from gristmill import Mill
from gristmill.api import app

REACH_MS = 20.0
_FORGOTTEN = 5.5  # seconds, after which all is read anew but what the doctor says, which is asked every half minute
_SHOWN = 3  # of the statements that take longest


def measure(place: Place, quick: bool) -> Iterator[Figure]:
    """By the database's own clock: what EXPLAIN ANALYZE says of each statement that a refresh of the page sends."""
    statements: list[Statement] = []
    with Mill.open(place.url, *ALL) as mill, _browser(mill) as client:
        refresh(client)
        time.sleep(_FORGOTTEN)
        with noted(statements):
            refresh(client)
    costs = [database_ms(place.url, statements) for _ in range(3 if quick else 9)]
    middle = statistics.median(sum(ms for ms, _ in cost) for cost in costs)
    told = f"{middle:.1f} ms of the database in {len(costs[0])} statements"
    yield Figure("a refresh of the overview", "PostgreSQL", told, f"≤ {REACH_MS:.0f} ms", middle <= REACH_MS)
    if middle > REACH_MS:
        for ms, sql in sorted(costs[-1], reverse=True)[:_SHOWN]:
            print(f"{ms:8.2f} ms  {sql[:160]}", file=sys.stderr)


def _browser(mill: Mill) -> TestClient:
    return TestClient(app(mill, open=True, pages=True), base_url="http://127.0.0.1")


def refresh(client: TestClient) -> None:
    """As htmx asks for it."""
    answer = client.get("/", headers={"HX-Request": "true"})
    assert answer.status_code == 200, answer.text
