"""`python -m bench.clerk.ocr`: scanned pages through the pipeline against `xargs -P` running the same OCR on the same pages.

The pipeline is a real `clerk worker ocr` with a slot for each core, which is up before its queue is opened; its time ends
with the last page. xargs gets the images that clerk takes out of the same PDFs. Rounds are interleaved and change places;
the ratio is that of each round. The processor's share is what the worker and all its children used of all cores; how much of
that xargs needs is shown beside it, since it is nearly the same on a busy machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import psutil

from accept.clerk.place import Place, eventually, family
from bench.clerk.figures import Figure, main, spread
from clerk.app import open_mill
from clerk.config import load
from clerk.demo import texts
from clerk.demo.documents import pdf
from clerk.reading.backends import Tesseract, languages
from clerk.reading.pdf import Pdf

REACH_RATE, REACH_BUSY = 0.97, 0.90
PAGES_OF_DOCUMENT, WORDS = 5, 250
CORES = os.cpu_count() or 1


class Cost(NamedTuple):
    """Seconds by the clock, and of the processor."""

    seconds: float
    processor: float


def measure(folder: Path, quick: bool) -> Iterator[Figure]:
    pages, rounds = (20, 1) if quick else (200, 3)
    source, images = folder / "source", folder / "images"
    make(source, images, pages)
    place = Place(folder / "place")
    place.clerk("db", "upgrade")
    ours, theirs = [], []
    for number in range(rounds):
        if number % 2:
            theirs.append(by_xargs(images))
        ours.append(by_clerk(place, f"site{number}.ca", source, pages))
        if not number % 2:
            theirs.append(by_xargs(images))
    yield from figures(pages, ours, theirs)


def figures(pages: int, ours: list[Cost], theirs: list[Cost]) -> Iterator[Figure]:
    ratios = [their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True)]
    needed = [their.processor / our.processor for our, their in zip(ours, theirs, strict=True)]
    busy = [our.processor / our.seconds / CORES for our in ours]
    took = [spread([cost.seconds for cost in costs], "{:.1f} s") for costs in (ours, theirs)]
    name = f"OCR of {pages} scanned pages with {CORES} slots"
    told = f"{spread(ratios, '{:.1%}')}; {took[0]} against {took[1]} of xargs -P{CORES}"
    told += f", which needs {spread(needed, '{:.1%}')} of the processor's time"
    yield Figure(f"{name}, rate", told, f"≥ {REACH_RATE:.0%}", statistics.median(ratios) >= REACH_RATE)
    yield Figure(f"{name}, cores busy", spread(busy, "{:.1%}"), f"≥ {REACH_BUSY:.0%}", statistics.median(busy) >= REACH_BUSY)


def make(source: Path, images: Path, pages: int) -> None:
    """PDFs of scans, and the images that clerk would have read."""
    images.mkdir()
    for number in range(pages // PAGES_OF_DOCUMENT):
        path = source / "minutes" / "Council" / f"2026-{number // 28 + 1:02}-{number % 28 + 1:02}.pdf"
        path.parent.mkdir(parents=True, exist_ok=True)
        written = [texts.Page(texts.wrapped(texts.prose(1000 * number + page, WORDS))) for page in range(PAGES_OF_DOCUMENT)]
        path.write_bytes(pdf(written, range(1, PAGES_OF_DOCUMENT + 1), Random(number)))
        opened = Pdf(path)
        for page in range(1, PAGES_OF_DOCUMENT + 1):
            with opened.page(page) as one:
                image = one.image(images)
                image.rename(images / f"{path.stem}-{page}{image.suffix}")


def by_xargs(images: Path) -> Cost:
    tesseract = Tesseract()
    names = "\n".join(str(image) for image in sorted(images.iterdir()) if image.suffix != ".txt")
    command = ["xargs", f"-P{CORES}", "-I{}", tesseract._program, "{}", "{}", "-l", languages("tesseract", None)]
    began, used = time.monotonic(), of_children()
    subprocess.run(command, input=names, env=tesseract._environ, text=True, check=True, capture_output=True)
    return Cost(time.monotonic() - began, of_children() - used)


def of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_clerk(place: Place, site: str, source: Path, pages: int) -> Cost:
    place.new(site, source)
    place.clerk("worker", "fetch", "--burst")
    with open_mill(load({}, place.folder)) as mill:
        mill.pause("ocr")
        with place.worker("ocr", CORES) as worker:
            eventually(mill.workers, "the worker is there")
            used, began = cpu_seconds(worker), time.time()
            mill.resume("ocr")
            eventually(lambda: place.counted(site)[0] * PAGES_OF_DOCUMENT == pages, "all is read", within=3600, pause=1)
            used = cpu_seconds(worker) - used
    [last] = place.rows(f"SELECT max(j.finished_at) / 1e6 AS at FROM gm_job j JOIN gristmill_runs r ON r.id = j.run_id"
        f" JOIN gm_stage g ON g.id = j.stage_id WHERE g.name = 'ocr' AND r.subject = '{site}'")  # fmt: skip
    return Cost(float(last["at"]) - began, used)


def cpu_seconds(worker: subprocess.Popen[str]) -> float:
    """Of the worker and of all it started; what has ended is counted by who waited for it."""
    total = 0.0
    for process in family(worker):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


if __name__ == "__main__":
    main(measure, "ocr", __doc__)
