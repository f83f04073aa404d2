"""`python -m bench.clerk.sites`: 5,000 sites with 100 documents each; what operators ask, on both databases.

The ledger is filled by SQL into its own tables, since to run it would take days. `clerk status`, `clerk health` and the like
are commands as they are typed, with the start of the program; the queries are those of docs/pipeline-queries.sql.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from accept.clerk.place import Place
from bench.clerk.figures import Figure, main, spread
from bench.clerk.ocr import of_children
from clerk.app import open_mill
from clerk.config import load
from gristmill import Mill
from tests.clerk.loading import fill
from tests.clerk.test_queries import ONLY_POSTGRES, printed
from tests.servers import create_database, drop_database, postgres_server

REACH, ROUNDS = 1.0, 5
ONE = "site00001.example"
COMMANDS = [["status"], ["status", "-s", ONE], ["health"], ["pipeline-status"], ["check-failed"]]


def measure(folder: Path, quick: bool) -> Iterator[Figure]:
    yield from _on(Place(folder / "SQLite"), "SQLite", quick)
    with postgres_server() as server:
        url = create_database(server)
        yield from _on(Place(folder / "PostgreSQL", url), "PostgreSQL", quick)
        drop_database(url)


def _on(place: Place, database: str, quick: bool) -> Iterator[Figure]:
    place.clerk("db", "upgrade")
    with open_mill(load({}, place.folder)) as mill:
        fill(mill, 500 if quick else 5000, documents=100)
        [jobs] = place.rows("SELECT count(*) AS n FROM gm_job")
        where = f"{500 if quick else 5000:,} sites, {jobs['n']:,} jobs, {database}"
        for words in COMMANDS:
            yield _figure(f"`clerk {' '.join(words)}`, {where}", lambda words=words: place.clerk(*words, code=None))  # type: ignore[misc]
        for name, query in printed().items():
            if database == "PostgreSQL" or not any(word in query for word in ONLY_POSTGRES):
                yield _figure(f"{name!r}, {where}", lambda query=query: _ask(mill, query))  # type: ignore[misc]


def _figure(name: str, ask: Callable[[], object]) -> Figure:
    """By the clock; the processor's time, without the server's, is shown beside it: that is the same on a busy machine."""
    took, used = [], []
    for _ in range(ROUNDS):
        began, before = time.monotonic(), time.process_time() + of_children()
        ask()
        took.append(time.monotonic() - began)
        used.append(time.process_time() + of_children() - before)
    told = f"{spread(took, '{:.3f} s')}, processor {spread(used, '{:.3f} s')}"
    return Figure(name, told, f"≤ {REACH:g} s", sorted(took)[ROUNDS // 2] <= REACH)


def _ask(mill: Mill, query: str) -> object:
    with mill.transaction() as connection:
        return connection.exec_driver_sql(query, execution_options={"no_parameters": True}).fetchall()


if __name__ == "__main__":
    main(measure, "sites", __doc__)
