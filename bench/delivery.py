"""What telling workers costs: enqueueing one by one on PostgreSQL, with a NOTIFY for each and without.

`python -m bench.delivery [--jobs 2000] [--rounds 7]`; with `chrt -f 50` before it on a machine that others use. Rounds of
both kinds take turns, and a worker's bell listens all the while; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

from bench import apps
from gristmill import Mill
from gristmill.ledger.migrate import upgrade
from tests import servers


def rate(mill: Mill, jobs: int, ring: bool) -> float:
    """Enqueues per second."""
    mill.ledger.announcer = mill.delivery if ring else None
    began = time.perf_counter()
    for _ in range(jobs):
        mill.enqueue(apps.nothing, args={"n": 1})
    return jobs / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with servers.postgres_server() as server:
        url = servers.create_database(server)
        upgrade(url)
        with Mill.open(url, apps.nothing, delivery="database") as mill:
            bell = mill.delivery.bell()
            rate(mill, given.jobs // 4, ring=True)
            rates: dict[bool, list[float]] = {True: [], False: []}
            for n in range(given.rounds):
                for ring in (True, False) if n % 2 else (False, True):
                    rates[ring].append(rate(mill, given.jobs, ring))
                bell.heard()
            bell.close()
        servers.drop_database(url)
    told, silent = statistics.median(rates[True]), statistics.median(rates[False])
    print(f"with NOTIFY    {told:8,.0f} enqueues/s   {min(rates[True]):,.0f} to {max(rates[True]):,.0f}")
    print(f"without        {silent:8,.0f} enqueues/s   {min(rates[False]):,.0f} to {max(rates[False]):,.0f}")
    print(f"ratio          {told / silent:8.2f}   wanted: at least 0.80")


if __name__ == "__main__":
    main()
