"""The extractor that needs no model: rules for names, lists, titles, motions and counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clerk.extraction import naming, things, votes
from clerk.extraction.people import People, fold
from clerk.extraction.text import clean
from clerk.extraction.things import Thing
from clerk.extraction.vocabulary import AMBIGUOUS, NOT_NAMES
from clerk.parts import Entities, Entity, Extracted, Vote

VERSION = "1"
_BETWEEN_PAGES = "\n\f\n"
_SURE = 0.7  # who is known elsewhere in the document, whatever the threshold for telling others


class RulesExtractor:
    """Persons, organisations, places and votes, by rules. The same text gives the same answer, everywhere."""

    label = "rules"

    def __init__(self, threshold: float = 0.7) -> None:
        self.threshold = threshold
        self.version = f"{VERSION}/{threshold:g}"

    def extract(self, pages: Sequence[str]) -> list[Extracted]:
        read = [_Page(clean(page)) for page in pages]
        people = _people(read)
        voted = _votes(read, people)
        return [
            Extracted(_entities(page, people, on_page.named, self.threshold), {"votes": on_page.votes})
            for page, on_page in zip(read, voted, strict=True)
        ]


class _Page:
    """A page as it is read, with what is found on it before anybody is known."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.orgs = things.organisations(text)
        self.places = things.places(text)
        found = naming.runs(text)
        self.words = {run[0] for run in found if " " not in run[0]}
        self.mentions = [*naming.in_lists(text), *naming.in_sentences(text, found, [*self.orgs, *self.places])]


@dataclass
class _Voted:
    """The votes that begin on a page, and who is named on it in one."""

    votes: list[Vote] = field(default_factory=list)
    named: list[str] = field(default_factory=list)


def _people(pages: Iterable[_Page]) -> People:
    people = People()
    for page in pages:
        for one in page.mentions:
            if one.confidence >= _SURE:
                people.add(one.name, one.member)
    return people


def _votes(pages: list[_Page], people: People) -> list[_Voted]:
    """For each page. They are looked for in the whole text, since a vote may go on over a page."""
    starts, length = [], 0
    for page in pages:
        starts.append(length)
        length += len(page.text) + len(_BETWEEN_PAGES)
    voted = [_Voted() for _ in pages]
    for one in votes.find(_BETWEEN_PAGES.join(page.text for page in pages), people):
        voted[bisect_right(starts, one.start) - 1].votes.append(one.vote)
        for who, at in one.named:
            voted[bisect_right(starts, at) - 1].named.append(who)
    return voted


# ---- entities of a page


def _entities(page: _Page, people: People, voters: list[str], threshold: float) -> Entities:
    persons: dict[str, float] = {}
    for one in page.mentions:
        known = people.resolve(one.name.text)
        _keep(persons, known or one.name.text, max(one.confidence, 0.75) if known else one.confidence)
    for who in voters:
        _keep(persons, who, 0.9)
    for who in _surnames(page.words, people):
        _keep(persons, who, 0.8)
    return {
        "persons": _listed(persons, threshold),
        "orgs": _listed(_things(page.orgs), threshold),
        "locations": _listed(_things(page.places), threshold),
    }


def _keep(found: dict[str, float], text: str, confidence: float) -> None:
    found[text] = max(confidence, found.get(text, 0.0))


def _things(found: list[Thing]) -> dict[str, float]:
    kept: dict[str, float] = {}
    for one in found:
        _keep(kept, " ".join(one.text.split()), one.confidence)
    return kept


def _listed(found: dict[str, float], threshold: float) -> list[Entity]:
    return [Entity(text=text, confidence=confidence) for text, confidence in found.items() if confidence >= threshold]


def _surnames(words: Iterable[str], people: People) -> Iterable[str]:
    """Those of whom only the surname is given, and who are known from elsewhere in the document."""
    for word in sorted(words):
        key = fold(word.removesuffix("'s"))
        who = None if key in AMBIGUOUS or key in NOT_NAMES else people.resolve(key)
        if who:
            yield who
