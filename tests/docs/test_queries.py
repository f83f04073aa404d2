"""The queries in docs/operations.md run on both databases, and find something."""

from __future__ import annotations

import pytest

from gristmill import Mill
from tests.docs.pages import Block, blocks
from tests.docs.stations import stations
from tests.servers import ROOT

QUERIES = blocks(ROOT / "docs" / "operations.md", "sql")


def test_there_are_queries() -> None:
    assert len(QUERIES) >= 3


def test_the_queries_in_the_docs_find_something(database_url: str) -> None:
    with Mill.open(database_url, stations) as mill:
        mill.start(stations, "ended")
        mill.work(until="drained", slots=1)
        mill.start(stations, "active")
        for query in QUERIES:
            with mill.ledger.reading() as tx:
                rows = tx.connection.exec_driver_sql(query.text.rstrip().rstrip(";").replace("%", "%%")).mappings().all()
            assert rows, query.text
            assert {row.get("subject", "ended") for row in rows} <= {"ended", "active"}


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"line {query.line}")
def test_queries_read_views_only(query: Block) -> None:
    assert "gm_" not in query.text
