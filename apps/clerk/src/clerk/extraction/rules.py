"""The extractor that needs no model: rules for names, lists, titles, motions and counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from clerk.extraction import naming, things, votes
from clerk.extraction.naming import Mention
from clerk.extraction.people import RUN, People, fold, parse
from clerk.extraction.text import clean
from clerk.extraction.things import Thing
from clerk.extraction.vocabulary import AMBIGUOUS, NOT_NAMES
from clerk.parts import Entities, Entity, Extracted, Vote, Votes

VERSION = "1"
_BETWEEN_PAGES = "\n\f\n"


class RulesExtractor:
    """Persons, organisations, places and votes, by rules. The same text gives the same answer, everywhere."""

    label = "rules"

    def __init__(self, threshold: float = 0.7) -> None:
        self.threshold = threshold
        self.version = f"{VERSION}/{threshold:g}"

    def extract(self, pages: Sequence[str]) -> list[Extracted]:
        read = [_Page(clean(page)) for page in pages]
        people = _people(read)
        found = _votes(read, people)
        return [
            Extracted(_entities(page, people, [who for vote in found for who in vote.named_on(number)], self.threshold), _of_page(found, number))
            for number, page in enumerate(read)
        ]


class _Page:
    """A page as it is read, with what is found on it before anybody is known."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.orgs = things.organisations(text)
        self.places = things.places(text)
        self.mentions = [*naming.in_lists(text), *naming.in_sentences(text, [*self.orgs, *self.places])]


class _Voted:
    def __init__(self, page: int, vote: Vote, named: list[tuple[str, int]]) -> None:
        self.page, self.vote, self._named = page, vote, named

    def named_on(self, page: int) -> list[str]:
        return [who for who, at in self._named if at == page]


def _people(pages: Iterable[_Page]) -> People:
    people = People()
    for page in pages:
        for one in page.mentions:
            if one.confidence >= 0.7:
                people.add(one.name, one.confidence, one.member)
    return people


def _votes(pages: list[_Page], people: People) -> list[_Voted]:
    starts, length = [], 0
    for page in pages:
        starts.append(length)
        length += len(page.text) + len(_BETWEEN_PAGES)
    text = _BETWEEN_PAGES.join(page.text for page in pages)
    return [
        _Voted(_page_of(starts, one.start), one.vote, [(who, _page_of(starts, at)) for who, at in one.named])
        for one in votes.find(text, people)
    ]


def _page_of(starts: list[int], at: int) -> int:
    return bisect_right(starts, at) - 1


def _of_page(found: list[_Voted], number: int) -> Votes:
    return {"votes": [one.vote for one in found if one.page == number]}


# ---- entities of a page


def _entities(page: _Page, people: People, voters: list[str], threshold: float) -> Entities:
    persons: dict[str, float] = {}
    for one in page.mentions:
        if one.confidence >= 0.7:
            _keep(persons, people.resolve(one.name.text) or one.name.text, one.confidence)
        elif people.resolve(one.name.text):
            _keep(persons, people.resolve(one.name.text) or "", 0.75)
    for who in voters:
        _keep(persons, who, 0.9)
    for who in _surnames(page.text, people):
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


def _surnames(text: str, people: People) -> Iterable[str]:
    """Those of whom only the surname is given, and who are known from elsewhere in the document."""
    for run in RUN.finditer(text):
        first = fold(run[0].removesuffix("'s"))
        if " " in first or first in AMBIGUOUS or first in NOT_NAMES:
            continue
        name = parse(run[0])
        who = people.resolve(name.text) if name else None
        if who is not None:
            yield who


def mentions_of(text: str) -> list[Mention]:
    """For a look at what the rules see on a page."""
    return _Page(clean(text)).mentions
