"""`python -m bench.clerk.compile [--pages 50000]`: compiling and merging a large site, in seconds and MiB.

Reach: 30 s and 500 MiB for 50,000 pages of 2.5 kB, half of them with extractions. Each step is a process of its own, so
that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import orjson

from clerk.compiling import compile_site, merge_extractions
from clerk.storage import SiteFiles

REACH_SECONDS, REACH_MIB = 30.0, 500.0
PAGES, PAGES_OF_DOCUMENT, WORDS_OF_PAGE, VOCABULARY = 50_000, 20, 420, 20_000
SITE = "bench.example"


@dataclass(frozen=True)
class Cost:
    step: str
    seconds: float
    mib: float

    def __str__(self) -> str:
        return f"{self.step:<8} {self.seconds:6.1f} s {self.mib:7.0f} MiB"


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


def measure(storage: Path, pages: int = PAGES) -> list[Cost]:
    fill(storage, pages)
    costs = [_step(storage, "compile")]
    for document in list(SiteFiles(storage, SITE).documents("minutes")):
        for page in SiteFiles(storage, SITE).pages(document):
            extract(page)
    return [*costs, _step(storage, "merge"), _step(storage, "again")]


def _step(storage: Path, step: str) -> Cost:
    out = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--step", step, str(storage)], check=True, capture_output=True
    )
    seconds, mib = out.stdout.split()
    return Cost(step, float(seconds), float(mib))


def _in_this_process(step: str, storage: Path) -> None:
    files, began = SiteFiles(storage, SITE), time.perf_counter()
    if step == "compile":
        compile_site(files, 1)
    else:  # "again": nothing is new
        assert (merge_extractions(files, 2) > 0) == (step == "merge")
    unit = 1 if sys.platform == "darwin" else 1024
    print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("storage", nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        _in_this_process(given.step, Path(given.storage))
        return 0
    with tempfile.TemporaryDirectory() as storage:
        costs = measure(Path(storage), given.pages)
        size = SiteFiles(Path(storage), SITE).database.stat().st_size / 2**20
    print(*costs, f"{given.pages} pages, a database of {size:.0f} MiB; reach {REACH_SECONDS} s, {REACH_MIB} MiB", sep="\n")
    return int(any(cost.seconds > REACH_SECONDS or cost.mib > REACH_MIB for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
