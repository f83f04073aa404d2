"""Organisations and places: capitalised words that a company, an agency or a street ends with or begins with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from clerk.extraction.people import fold, parse
from clerk.extraction.vocabulary import (
    COMPANIES,
    GIVEN_NAMES,
    NOT_NAMES,
    ORG_BEGINNINGS,
    ORG_WORDS,
    PLACES,
    STATES,
    STREETS,
    TITLE_HEADS,
)

_CAP = r"(?:[A-ZÀ-Þ][\w'À-ÿ]{0,30}(?:-[\w'À-ÿ]{1,30}){0,3}|(?:[A-Z]\.){1,3})"


class Thing(NamedTuple):
    start: int
    end: int
    text: str
    confidence: float


# ---- places

# What a place ends with is looked for first, since it is rare; then what stands before it.
_STREET_END = re.compile(rf"(?<= )(?:{STREETS})(?![\w'])(?: (?:North|South|East|West|[NSEW])\b)?")
_STREET = re.compile(
    r"(?<![\w.])(?:\d{1,6}(?:-\d{1,5})?(?: 1/2)? )?(?:[NSEW]\.? |North |South |East |West )?"
    rf"(?:{_CAP} |Jr\. |Sr\. |St\. |del |de |la |\d{{1,3}}(?:st|nd|rd|th) ){{1,5}}$"
)
_NAMED_END = re.compile(rf"(?<= )(?:{PLACES})\b(?! (?:{STREETS}|[A-Z]))")
_NAMED = re.compile(rf"(?<![\w.])(?:{_CAP} ){{1,3}}$")
_STATE_END = re.compile(rf", (?:{STATES})\b")
_STATE = re.compile(rf"(?<![\w.])(?:{_CAP} ){{0,2}}{_CAP}$")
_CALLE = re.compile(
    rf"\b(?:\d{{1,6}} )?(?:Calle|Camino|Avenida|Paseo|Via|Rue) (?:(?:de|del|la|las|los|el|Del|De) ){{0,2}}{_CAP}"
)
_ROAD_NUMBER = re.compile(
    r"\b(?:(?:State |U\.?S\.? |County |Interstate |Farm to Market )?(?:Highway|Route|Road|Hwy\.?|Loop|Interstate)|CR"
    r"|SR|US|FM|I)"
    r" ?-?\d{1,4}\b"
)
_PARCEL = re.compile(
    r"\b(?:APNs?:? ?#?\d[\d-]{5,20}|Parcel (?:No\.? |Number |ID )?#?[A-Z]?\d[\d.-]{2,20}"
    r"|Map \d{1,4},? Lot \d{1,4}(?:-\d{1,3})?|Lots? \d{1,4},? Block \d{1,4})"
)
# fmt: off
_LEADING = frozenset((
    "the", "at", "in", "on", "and", "item", "items", "public", "no", "section", "case", "petition", "regular", "special",
    "ordinance", "resolution",
))
# fmt: on
_BACK = 80


def places(text: str) -> list[Thing]:
    found = [_place(start, name, 0.9) for start, name in _ending(text, _STREET_END, _STREET)]
    found += [_place(start, name, 0.85) for start, name in _ending(text, _STATE_END, _STATE)]
    found += [_place(start, name, 0.75) for start, name in _ending(text, _NAMED_END, _NAMED) if _is_place(name)]
    for pattern, confidence in ((_CALLE, 0.85), (_ROAD_NUMBER, 0.85), (_PARCEL, 0.9)):
        found += [_place(match.start(), match[0], confidence) for match in pattern.finditer(text)]
    return [one for one in found if " " in one.text]


def _ending(text: str, end: re.Pattern[str], before: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for match in end.finditer(text):
        begin = max(0, match.start() - _BACK)
        name = before.search(text[begin : match.start()])
        if name:
            yield begin + name.start(), text[begin + name.start() : match.end()]


def _place(start: int, text: str, confidence: float) -> Thing:
    end = start + len(text)
    while fold(text.split(" ", 1)[0]) in _LEADING:
        text = text.partition(" ")[2]
    return Thing(end - len(text), end, text, confidence)


def _is_place(text: str) -> bool:
    """Not "Commissioner Park", "Glenda Park", "Public Hall", nor a heading."""
    words = text.split(" ")
    first = fold(words[0])
    is_person = len(words) == 2 and (first in TITLE_HEADS or first in GIVEN_NAMES)
    is_heading = words[0].isupper() and len(words[0]) > 2
    return not (is_person or is_heading or fold(words[-2]) in NOT_NAMES)


# ---- organisations

_RUN = re.compile(
    rf"{_CAP}(?:,? (?:{COMPANIES})\b\.?| (?:(?:of the|of|and the|and|for|on|&|in the) )?{_CAP}| No\. \d{{1,4}}"
    rf"|, Local \d{{1,5}}){{1,11}}"
)
_COMPANY_END = re.compile(rf",? (?:{COMPANIES})\b\.?(?=\W|$)|, Local \d+| No\. \d+")
_BEGINNING = re.compile(rf"(?:{ORG_BEGINNINGS}) of(?: the)? ")
_NO_ORG = {"the", "special", "regular", "joint"}
_PLACE_WORD = re.compile(f"{STREETS}|{PLACES}")
_SMALL_WORD = re.compile(r"\b(?:Of|The|And|For|On|In)\b|'S\b")
_JOINT = re.compile(r" (?:of the|of|and the|and|for|on|in the) ")


def organisations(text: str) -> list[Thing]:
    found = []
    for match in _RUN.finditer(text):
        run = match[0]
        if run.isupper():
            if run.count(" ") > 8:
                continue  # a heading
            run = _SMALL_WORD.sub(lambda word: word[0].lower(), run.title())
        one = _organisation(run)
        if one is not None:
            at = match.start() + one[0]
            found.append(Thing(at, at + len(one[1]), one[1], one[2]))
    return found


def _organisation(run: str) -> tuple[int, str, float] | None:
    """Where in the run an organisation is, and which."""
    start = _without_person(run)
    body = run[start:]
    ends = [m.end() for m in _COMPANY_END.finditer(body)]
    if ends and " " in body[: ends[0]].strip():
        return start, body[: ends[-1]], 0.95
    words = body.split(" ")
    last = max((i for i, word in enumerate(words) if fold(word) in ORG_WORDS), default=-1)
    if _BEGINNING.match(body):
        return start, body, 0.85
    if last < 1 and not (last == 0 and len(words) > 2 and words[1] in {"of", "for", "on"}):
        return None
    if last + 1 < len(words) and words[last + 1] in {"of", "for", "on"}:
        last = len(words) - 1  # "Department of Housing and Urban Development"
    kept = words[: last + 1]
    if fold(kept[0]) in _NO_ORG and all(fold(word) in NOT_NAMES for word in kept[:-1]):
        return None  # "Special Meeting", "The Council"
    return start, " ".join(kept), 0.8


def _without_person(run: str) -> int:
    """ "Anita Desai of Harborview Partners", "Regular Meeting of the Council": the organisation begins after "of"."""
    start = max(0, run.rfind(" The ") + 1)
    while True:
        joint = _JOINT.search(run, start)
        if joint is None:
            return start
        left = run[start : joint.start()]
        last = fold(left.split(" ")[-1])
        if last in ORG_WORDS or (_BEGINNING.match(run, start) and "of" in joint[0]):
            return start
        name = parse(left)
        is_person = name is not None and (name.titled or fold(left.split(" ")[0]) in GIVEN_NAMES)
        if not is_person and "of" not in joint[0] and not _PLACE_WORD.fullmatch(left.split(" ")[-1]):
            return start
        start = joint.end()
