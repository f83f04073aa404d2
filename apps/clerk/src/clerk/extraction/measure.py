"""How good an extractor is on labelled pages: `python -m clerk.extraction.measure FOLDER [-v]`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from clerk.errors import Usage
from clerk.extraction.people import fold
from clerk.extraction.rules import RulesExtractor
from clerk.parts import Extracted, Extractor

_ENTITIES: tuple[Literal["persons", "orgs", "locations"], ...] = ("persons", "orgs", "locations")
_NUMBERS = ("ayes", "nays", "abstain", "absent")


@dataclass
class Score:
    """What is right, what is too much, and what is missing."""

    right: int = 0
    wrong: int = 0
    missing: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missing) if self.right + self.missing else 1.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    def compare(self, where: str, found: Iterable[Hashable], gold: Iterable[Hashable]) -> None:
        have, want = Counter(found), Counter(gold)
        self.right += (have & want).total()
        self.wrong += (have - want).total()
        self.missing += (want - have).total()
        self.errors += [f"{where}: too much {one}" for one in (have - want).elements()]
        self.errors += [f"{where}: missing {one}" for one in (want - have).elements()]


def measure(folder: Path, extractor: Extractor) -> tuple[dict[str, Score], int, float]:
    """The scores of each kind, how many pages, and how many seconds the extractor took."""
    scores = {kind: Score() for kind in ("votes", "individual", "persons", "orgs", "locations")}
    pages, seconds = 0, 0.0
    for document in sorted(path for path in folder.iterdir() if path.is_dir()):
        texts = sorted(document.glob("*.txt"), key=lambda page: int(page.stem))
        begun = time.process_time()
        found = list(extractor.extract([text.read_text() for text in texts]))
        seconds += time.process_time() - begun
        for text, extracted in zip(texts, found, strict=True):
            gold = orjson.loads(text.with_suffix(".json").read_bytes())
            _compare(f"{document.name}/{text.stem}", extracted, gold, scores)
        pages += len(texts)
    if not pages:
        raise Usage(f"{folder} has no labelled pages: it wants DOCUMENT/1.txt and DOCUMENT/1.json")
    return scores, pages, seconds


def _compare(where: str, found: Extracted, gold: Mapping[str, Any], scores: dict[str, Score]) -> None:
    matched = _pair(found.votes["votes"], gold["votes"])
    for one, want in matched:
        wanted = {} if want is None else {name: number for name, number in want["tally"].items() if number is not None}
        scores["votes"].compare(
            where, [] if one is None else [_key(one, wanted)], [] if want is None else [_key(want, wanted)]
        )
        scores["individual"].compare(where, _ballots(one), _ballots(want))
    for kind in _ENTITIES:
        if kind in gold:
            entities = found.entities[kind]
            scores[kind].compare(where, {fold(one["text"]) for one in entities}, {fold(one) for one in gold[kind]})


def _key(vote: Mapping[str, Any], wanted: Iterable[str]) -> tuple[object, ...]:
    """What has to be the same: mover, seconder, result, and the numbers that the labels have."""
    who = tuple(fold(vote[side]) if vote[side] else None for side in ("motion_by", "seconded_by"))
    return (*who, vote["result"], *(f"{name} {vote['tally'][name]}" for name in _NUMBERS if name in wanted))


def _pair(found: list[Any], gold: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each vote with the one of the labels that it is: an equal one, else the next with the same mover, else none."""
    left = list(found)
    waiting = []
    for want in gold:
        wanted = [name for name, number in want["tally"].items() if number is not None]
        equal = next((one for one in left if _key(one, wanted) == _key(want, wanted)), None)
        if equal is None:
            waiting.append(want)
        else:
            left.remove(equal)
            yield equal, want
    for want in waiting:
        near = next((one for one in left if one["motion_by"] == want["motion_by"]), None)
        if near is not None:
            left.remove(near)
        yield near, want
    for one in left:
        yield one, None


def _ballots(vote: Mapping[str, Any] | None) -> list[Hashable]:
    return [] if vote is None else [(fold(one["name"]), one["vote"]) for one in vote["individual_votes"]]


def main(arguments: list[str]) -> int:
    folders = [Path(one) for one in arguments if one != "-v"]
    if len(folders) != 1 or not folders[0].is_dir():
        print("usage: python -m clerk.extraction.measure FOLDER [-v]", file=sys.stderr)
        return 2
    try:
        scores, pages, seconds = measure(folders[0], RulesExtractor())
    except Usage as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{'':12}{'precision':>10}{'recall':>8}{'F1':>8}{'right':>7}{'wrong':>7}{'missing':>9}")
    for kind, score in scores.items():
        print(
            f"{kind:12}{score.precision:10.3f}{score.recall:8.3f}{score.f1:8.3f}{score.right:7}{score.wrong:7}{score.missing:9}"
        )
        if "-v" in arguments:
            print(*(f"  {error}" for error in score.errors), sep="\n")
    print(f"{pages} pages in {seconds:.2f} s: {pages / seconds:.0f} pages/s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
