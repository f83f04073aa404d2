"""`python -m bench.clerk.memory`: the most memory that a worker of each type takes, with all that it starts.

Each does real work with one slot: documents of some megabytes, scans, a site of thousands of pages. Counted is the
proportional share of each process (PSS; on other systems than Linux the resident size), as often as it can be asked. The
reach is the table of the manual: what a service of that type is slowed down at.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from accept.clerk.place import Place, family
from bench.clerk import compile as compiling
from bench.clerk.figures import Figure, main
from bench.clerk.ocr import make
from clerk.config import load
from clerk.names import STAGES
from clerk.services.sizing import needs
from clerk.storage import SiteFiles
from tests.clerk.latency import serving

SITES = ("web.ca", "scans.ca", "large.ca")


def measure(folder: Path, quick: bool) -> Iterator[Figure]:
    pages, scans, documents = (500, 10, 10) if quick else (20_000, 40, 60)
    place = Place(folder / "place")
    place.settings(FETCH_RATE_PER_HOST=1_000_000, FETCH_ALLOW_PRIVATE=1, ENABLE_EXTRACTION=1)
    place.clerk("db", "upgrade")
    make(folder / "scans", folder / "images", scans)
    place.new("scans.ca", folder / "scans")
    _large(place, pages)
    with serving(_heavy(folder / "heavy", documents, 2 if quick else 8), 0.0) as base:
        extra = json.dumps({"url": f"{base}/", "meeting": "M"})
        place.clerk("new", "web.ca", "--name", "W", "--scraper", "http_index", "--start-year", 2000, "--extra", extra)
        limits = needs(load({}, place.folder))
        for stage in STAGES:
            most = peak(place, stage)
            reach = limits[stage].high
            yield Figure(f"memory of a worker of {stage}", f"{most:.0f} MiB", f"≤ {reach} MiB", 0 < most <= reach)
    done = {row["subdomain"]: row["current_stage"] for row in place.rows("SELECT * FROM sites")}
    assert done["large.ca"] == done["scans.ca"] == "completed", done


def _large(place: Place, pages: int) -> None:
    """A site whose text is there already: nothing to fetch or to read, all to compile, extract and publish."""
    compiling.fill(place.storage, pages)
    (place.storage / compiling.SITE).rename(place.storage / "large.ca")
    for cache in SiteFiles(place.storage, "large.ca").root.rglob("*.extracted.json"):
        cache.unlink()
    place.new("large.ca", place.source("empty"))


def _heavy(folder: Path, documents: int, mib: int) -> Path:
    """They are fetched, and cannot be read."""
    folder.mkdir()
    for number in range(documents):
        day = f"2026-{number // 28 + 1:02}-{number % 28 + 1:02}"
        (folder / f"minutes-{day}.pdf").write_bytes(b"%PDF-1.4 " + day.encode() + bytes(mib << 20))
    return folder


def peak(place: Place, stage: str) -> float:
    """MiB, of a worker that ends when it has nothing left to do."""
    worker = place.start("worker", stage, "--burst")
    most = [0.0]
    watch = threading.Thread(target=_watch, args=(worker, most))
    watch.start()
    _, said = worker.communicate()
    watch.join()
    assert worker.returncode == 0, said[-500:]
    return most[0]


def _watch(worker: subprocess.Popen[str], most: list[float]) -> None:
    while worker.poll() is None:
        most[0] = max(most[0], sum(map(_memory, family(worker))) / 2**20)


def _memory(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        found = process.memory_full_info()
        return int(getattr(found, "pss", found.rss))
    return 0


if __name__ == "__main__":
    main(measure, "memory", __doc__)
