"""`python -m bench.clerk.compile `: compiling and merging a large site, in seconds and MiB.

Reach: 30 s and 500 MiB for 50,000 pages of 2.5 kB, half of them with extractions. Each step is a process of its own, so
that its peak of memory is its own.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import orjson

from bench.clerk.figures import Figure, main
from clerk.compiling import compile_site, merge_extractions
from clerk.storage import SiteFiles

REACH_SECONDS, REACH_MIB = 30.0, 500.0
PAGES, PAGES_OF_DOCUMENT, WORDS_OF_PAGE, VOCABULARY = 50_000, 20, 420, 20_000
SITE = "bench.example"


@dataclass(frozen=True)
class Cost:
    step: str
    seconds: float
    processor: float  # the same on a busy machine
    mib: float


def fill(storage: Path, pages: int, seed: int = 1) -> None:
    """Words are drawn as in a language: few are frequent, many are rare."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefghijklmnoprstuvw", k=chance.randint(2, 10))) for _ in range(VOCABULARY)]
    weights = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    files = SiteFiles(storage, SITE)
    for number in range(pages):
        document, page = divmod(number, PAGES_OF_DOCUMENT)
        day = f"{1990 + document // 300}-{document % 300 // 25 + 1:02}-{document % 25 + 1:02}"
        folder = files.tree("agendas" if document % 2 else "minutes") / "txt" / "CityCouncil" / day
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{page + 1}.txt").write_text(" ".join(chance.choices(words, cum_weights=weights, k=WORDS_OF_PAGE)))
        if number % 4 == 0:
            extract(folder / f"{page + 1}.txt")


def extract(page: Path) -> None:
    """A cache as extraction leaves it: eight names and one vote of five members."""
    named = [{"text": f"Member {n}", "confidence": 0.9} for n in range(4)]
    vote = {
        "motion_by": "Member 1",
        "seconded_by": "Member 2",
        "result": "passed",
        "tally": {"ayes": 5, "nays": 0, "abstain": 0, "absent": None},
        "individual_votes": [{"name": f"Member {n}", "vote": "aye"} for n in range(5)],
        "raw_text": "Motion carried 5-0.",
    }
    cache = {"entities": {"persons": named, "orgs": named, "locations": []}, "votes": {"votes": [vote]}}
    page.with_name(page.name + ".extracted.json").write_bytes(orjson.dumps(cache))


def measure(folder: Path, quick: bool) -> Iterator[Figure]:
    pages = PAGES // 50 if quick else PAGES
    fill(folder, pages)
    costs = [_step(folder, "compile")]
    for document in list(SiteFiles(folder, SITE).documents("minutes")):
        for page in SiteFiles(folder, SITE).pages(document):
            extract(page)
    costs += [_step(folder, "merge"), _step(folder, "again")]
    size = SiteFiles(folder, SITE).database.stat().st_size / 2**20
    for cost in costs:
        holds = cost.seconds <= REACH_SECONDS and cost.mib <= REACH_MIB
        told = (
            f"{cost.seconds:.1f} s (processor {cost.processor:.1f} s), {cost.mib:.0f} MiB, for a database of {size:.0f} MiB"
        )
        yield Figure(f"{cost.step} {pages:,} pages", told, f"≤ {REACH_SECONDS:g} s, ≤ {REACH_MIB:g} MiB", holds)


def _step(storage: Path, step: str) -> Cost:
    out = subprocess.run(
        [sys.executable, "-m", "bench.clerk.compile", "--step", step, str(storage)], check=True, capture_output=True
    )
    seconds, processor, mib = map(float, out.stdout.split())
    return Cost(step, seconds, processor, mib)


def _in_this_process(step: str, storage: Path) -> None:
    files, began = SiteFiles(storage, SITE), time.perf_counter()
    if step == "compile":
        compile_site(files, 1)
    else:  # "again": nothing is new
        assert (merge_extractions(files, 2) > 0) == (step == "merge")
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    print(time.perf_counter() - began, time.process_time(), peak)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        _in_this_process(sys.argv[2], Path(sys.argv[3]))
    else:
        main(measure, "compile", __doc__)
