"""`python -m bench.clerk.whole`: whole sites that mostly wait, by N slots against one site after the other.

Documents come from a server that answers after 0.5 s, are read by a service that takes 2 s for a page, and are published
to a server that takes 2 s; clerk does the rest. The serial pass is a worker with one slot, the other the same worker with N;
both have their children before the clock starts. What is compared is the time for a site.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from accept.clerk.place import Place, eventually
from bench.clerk.figures import Figure, main, spread
from clerk import sites
from clerk.app import open_mill
from clerk.config import load
from clerk.sites import Description
from tests.clerk import papers
from tests.clerk.latency import serving

REACH, SLOTS = 10.0, 24
FETCH, SERVICE = 0.5, 2.0  # seconds that a server takes to answer
DOCUMENTS = 2  # of a site
PLUGIN = """
import urllib.request
from pathlib import Path
from clerk.plugins import hookimpl

def ask(data):
    request = urllib.request.Request("{service}/", data=data, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()

class Elsewhere:
    label = "elsewhere"
    def read(self, image, languages):
        return ask(Path(image).read_bytes())

@hookimpl
def ocr_backend(label):
    return Elsewhere() if label == "elsewhere" else None

@hookimpl
def deploy_municipality(subdomain):
    ask(subdomain.encode())
"""


def measure(folder: Path, quick: bool) -> Iterator[Figure]:
    few, many, rounds = (1, SLOTS, 1) if quick else (4, 3 * SLOTS, 3)
    documents = folder / "documents"
    documents.mkdir()
    for number in range(DOCUMENTS):
        papers.scanned(documents / f"minutes-2026-01-0{number + 1}.pdf", [f"page {number}"])
    place = Place(folder / "place")
    with serving(documents, FETCH) as base, serving(documents, SERVICE) as service:
        (place.folder / "plugins").mkdir()
        (place.folder / "plugins" / "elsewhere.py").write_text(PLUGIN.replace("{service}", service))
        place.settings(FETCH_RATE_PER_HOST=1_000_000, FETCH_ALLOW_PRIVATE=1, DEFAULT_OCR_BACKEND="elsewhere")
        place.clerk("db", "upgrade")
        serial, wide = [], []
        for number in range(rounds):
            serial.append(seconds_for_a_site(place, base, f"serial{number}", few, 1))
            wide.append(seconds_for_a_site(place, base, f"wide{number}", many, SLOTS))
    ratios = [one / other for one, other in zip(serial, wide, strict=True)]
    told = f"{spread(ratios, '{:.1f} x')}; a site takes {spread(wide, '{:.2f} s')} against {spread(serial, '{:.2f} s')}"
    yield Figure(
        f"whole sites that wait, {SLOTS} slots against one", told, f"≥ {REACH:g} x", statistics.median(ratios) >= REACH
    )


def seconds_for_a_site(place: Place, base: str, name: str, count: int, slots: int) -> float:
    """As many again warm it up, before the clock starts."""
    with place.worker("all", slots):
        _run(place, base, [f"{name}-warm{n}.ca" for n in range(slots)])
        return _run(place, base, [f"{name}-{n}.ca" for n in range(count)]) / count


def _run(place: Place, base: str, names: list[str]) -> float:
    with open_mill(load({}, place.folder)) as mill:
        for name in names:
            sites.create(
                mill, Description(name, name, "http_index", start_year=2026, extra={"url": f"{base}/", "meeting": "M"})
            )
        began = time.monotonic()
        sites.enqueue(mill, names)
        done = "SELECT count(*) AS n FROM sites WHERE current_stage = 'completed' AND subdomain IN "
        among = json.dumps(names).replace('"', "'").replace("[", "(").replace("]", ")")
        eventually(lambda: place.rows(done + among)[0]["n"] == len(names), "all end", within=3600, pause=0.1)
        taken = time.monotonic() - began
    for name in names:
        assert place.counted(name) == (DOCUMENTS, 0, DOCUMENTS), place.site(name)
    return taken


if __name__ == "__main__":
    main(measure, "whole", __doc__)
