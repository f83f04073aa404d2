"""`python -m bench.metrics`: what one scrape of the metrics costs, by kind of load, on PostgreSQL.

Figures are of the database's own time: the sum of what EXPLAIN ANALYZE says of each statement. Reach: 50 ms each.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.core import Databases, Figure
from bench.lists import filled, mail, rare, site
from bench.subjects import timed
from gristmill import Context, Limit, Mill, task
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx
from gristmill.metrics import exposition
from tests.servers import libpq_url, postgres_server

REACH_MS = 50.0


@task(name="polite", limit=Limit("host", per="host", at_once=1))
def polite(ctx: Context, host: str) -> None: ...


def lists(mill: Mill, jobs: int) -> None:
    """The ledger of `bench.lists`: 5,000 subjects with four runs each, a few thousand active, most jobs over."""
    filled(mill, "PostgreSQL", jobs / 1_000_000)


def line(mill: Mill, jobs: int) -> None:
    """All ready, of four queues and two priorities, that were asked for in turn."""
    for queue in ("mail", "a", "b", "c"):
        mill.set_queue(queue, create=True)
    for n in range(jobs // 10_000):
        queue, priority = ("mail", "a", "b", "c")[n % 4], ("normal", "low")[n % 3 == 0]
        mill.enqueue_many("mail", [{}] * 10_000, queue=queue, priority=priority)


def limited(mill: Mill, jobs: int) -> None:
    """All wait for a limit, of 1,000 hosts."""
    for n in range(jobs // 10_000):
        mill.enqueue_many("polite", [{"host": f"{n}-{host}.example"} for host in range(10) for _ in range(1000)])


LOADS: dict[str, Callable[[Mill, int], None]] = {"lists": lists, "line": line, "limited": limited}


@dataclass(frozen=True)
class Statement:
    """As it was sent, in this transaction."""

    transaction: Tx
    sql: str
    values: Any = None


@contextmanager
def noted(statements: list[Statement]) -> Iterator[None]:
    """Keeps what is executed, with its values."""
    execute, script = Tx.execute, Tx.script

    def noting(tx: Tx, sql: Sql, **given: Any) -> Any:
        compiled = sql.compiled(tx.dialect)
        values = {**given, "now": tx.now} if compiled.needs_now else given
        statements.append(Statement(tx, compiled.sql, compiled.parameters(values)))
        return execute(tx, sql, **given)

    def noting_script(tx: Tx, text: str) -> None:
        statements.append(Statement(tx, text))
        script(tx, text)

    Tx.execute, Tx.script = noting, noting_script  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Tx.execute, Tx.script = execute, script  # type: ignore[method-assign]


def database_ms(url: str, statements: list[Statement]) -> list[tuple[float, str]]:
    """Milliseconds of planning and execution of each, under the settings that it had."""
    found = []
    with psycopg.connect(libpq_url(url), options="-c jit=off -c enable_seqscan=off") as connection:
        for before, one in zip([None, *statements], statements, strict=False):
            if before is not None and before.transaction is not one.transaction:
                connection.rollback()
            if one.values is None:
                if one.sql.startswith("SET "):
                    connection.execute(one.sql.encode())
                continue
            rows = connection.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {one.sql}".encode(), one.values)
            said = "\n".join(row[0] for row in rows)
            found.append((sum(map(float, re.findall(r"(?:Planning|Execution) Time: ([\d.]+)", said))), one.sql))
    return found


def figures(bases: Databases, jobs: int, only: str, verbose: bool) -> Iterator[Figure]:
    for name, fill in LOADS.items():
        if only not in name:
            continue
        with bases.fresh("PostgreSQL") as url, Mill.open(url, site, mail, rare, polite) as mill:
            fill(mill, jobs)
            statements: list[Statement] = []
            with noted(statements):
                exposition(mill)
            costs = [database_ms(url, statements) for _ in range(5)]
            middle = statistics.median(sum(ms for ms, _ in cost) for cost in costs)
            waits = statistics.median(timed(lambda: exposition(mill)) for _ in range(5))
            told = f"{middle:.1f} ms in {len(costs[0])} statements; its reader waits {waits:.0f} ms"
            yield Figure(f"a scrape, {name}", "PostgreSQL", told, f"{REACH_MS:.0f} ms", middle <= REACH_MS)
            for ms, sql in sorted(costs[-1], reverse=True)[:4] if verbose else ():
                print(f"{ms:8.2f} ms  {sql[:160]}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the load whose name has this in it")
    parser.add_argument("--verbose", action="store_true", help="say what the slowest statements are")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        for figure in figures(Databases(server, Path(folder)), options.jobs, options.only, options.verbose):
            missed += not figure.holds
            print(f"{'  ' if figure.holds else '✗ '}{figure.name:<24}{figure.measured}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
