"""`python -m bench.clerk.fetch`: documents from a server that answers after 100 ms, 20 at once against one at a time.

Once by the downloader alone, and once by the stage of the pipeline, which also keeps its book in the database. Rounds are
interleaved; the ratio is that of each round.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from accept.clerk.place import Place
from bench.clerk.figures import Figure, main, spread
from tests.clerk.latency import LATENCY, downloaded, fill, serving

REACH, SLOTS = 15.0, 20


def measure(folder: Path, quick: bool) -> Iterator[Figure]:
    documents, rounds = (100, 1) if quick else (500, 3)
    ones, manys, stages = [], [], []
    place = Place(folder / "place")
    place.settings(FETCH_RATE_PER_HOST=1_000_000, FETCH_ALLOW_PRIVATE=1)
    place.clerk("db", "upgrade")
    into = folder / "into"
    into.mkdir()
    with serving(fill(folder / "documents", documents)) as base:
        for number in range(rounds):
            ones.append(downloaded(base, into, documents, 1))
            manys.append(downloaded(base, into, documents, SLOTS))
            stages.append(through_the_stage(place, base, f"site{number}.ca", documents))
    for name, took in (("by the downloader", manys), ("by the stage of the pipeline", stages)):
        ratios = [one / many for one, many in zip(ones, took, strict=True)]
        told = f"{spread(ratios, '{:.1f} x')}; {spread(took, '{:.2f} s')} against {spread(ones, '{:.2f} s')}"
        yield Figure(
            f"{documents} documents, each after {LATENCY} s, {SLOTS} at once, {name}",
            told,
            f"≥ {REACH:g} x",
            sorted(ratios)[len(ratios) // 2] >= REACH,
        )


def through_the_stage(place: Place, base: str, site: str, documents: int) -> float:
    """The seconds from its start to its end, as the database says."""
    extra = json.dumps({"url": f"{base}/", "meeting": "Council"})
    place.clerk(
        "new", site, "--name", site, "--scraper", "http_index", "--start-year", 2000, "--extra", extra, "--no-enqueue"
    )
    place.clerk("run-stage", "fetch", "-s", site)
    kept = len(list((place.storage / site).rglob("*.pdf")))
    assert kept == documents, f"{kept} of {documents} documents came"
    took = "SELECT (finished_at - started_at) / 1e6 AS took FROM gm_job WHERE id = (SELECT max(j.id) FROM gristmill_jobs j"
    [row] = place.rows(f"{took} JOIN gristmill_runs r ON r.id = j.run_id WHERE j.stage = 'fetch' AND r.subject = '{site}')")
    return float(row["took"])


if __name__ == "__main__":
    main(measure, "fetch", __doc__)
