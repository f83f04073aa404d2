"""Organisations and places: capitalised words that a company, an agency or a street ends with or begins with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clerk.extraction.people import fold, parse
from clerk.extraction.vocabulary import COMPANIES, GIVEN_NAMES, NOT_NAMES, ORG_BEGINNINGS, ORG_WORDS, PLACES, STATES, STREETS, TITLE_HEADS

_CAP = r"(?:[A-ZÀ-Þ][\w'À-ÿ]*(?:-[\w'À-ÿ]+)*|(?:[A-Z]\.){1,3})"


@dataclass(frozen=True)
class Thing:
    start: int
    end: int
    text: str
    confidence: float


# ---- places

_STREET = re.compile(
    rf"\b(?:(?P<number>\d{{1,6}}(?:-\d{{1,5}})?(?: 1/2)?) )?(?:[NSEW]\.? |North |South |East |West )?"
    rf"(?:{_CAP} |Calle |del |de |la |\d{{1,3}}(?:st|nd|rd|th) ){{1,4}}?(?:{STREETS})(?![\w'])(?: (?:North|South|East|West|[NSEW])\b)?"
)
_CALLE = re.compile(rf"\b(?:\d{{1,6}} )?(?:Calle|Camino|Avenida|Paseo|Via|Rue) (?:(?:de|del|la|las|los|el|Del|De) ){{0,2}}{_CAP}")
_ROAD_NUMBER = re.compile(
    r"\b(?:(?:State |U\.?S\.? |County |Interstate |Farm to Market )?(?:Highway|Route|Road|Hwy\.?|Loop|Interstate)|CR|SR|US|FM|I) ?-?\d{1,4}\b"
)
_PARCEL = re.compile(
    r"\b(?:APNs?:? ?#?\d[\d-]{5,20}|Parcel (?:No\.? |Number |ID )?#?[A-Z]?\d[\d.-]{2,20}|Map \d{1,4},? Lot \d{1,4}(?:-\d{1,3})?|Lots? \d{1,4},? Block \d{1,4})"
)
_NAMED_PLACE = re.compile(rf"\b(?:{_CAP} ){{1,3}}?(?:{PLACES})\b(?! (?:{STREETS}|[A-Z]))")
_IN_STATE = re.compile(rf"\b(?:{_CAP} ){{0,2}}{_CAP}, (?:{STATES})\b")
_LEADING = {"the", "at", "in", "on", "and", "item", "items", "public", "no", "section", "case", "petition", "regular", "special", "ordinance", "resolution"}


def places(text: str) -> list[Thing]:
    found: list[Thing] = []
    for pattern, confidence in (
        (_STREET, 0.9), (_CALLE, 0.85), (_ROAD_NUMBER, 0.85), (_PARCEL, 0.9), (_IN_STATE, 0.85), (_NAMED_PLACE, 0.75),
    ):  # fmt: skip
        for match in pattern.finditer(text):
            one = _place(match, confidence)
            if one is not None:
                found.append(one)
    return found


def _place(match: re.Match[str], confidence: float) -> Thing | None:
    start, words = match.start(), match[0].split(" ")
    while words and fold(words[0]) in _LEADING:
        start += len(words.pop(0)) + 1
    if len(words) < 2 or words[0].isupper() and len(words[0]) > 2 and confidence < 0.8:
        return None
    if confidence == 0.75 and (fold(words[0]) in TITLE_HEADS | GIVEN_NAMES and len(words) == 2 or fold(words[-2]) in NOT_NAMES):
        return None  # "Commissioner Park", "Glenda Park", "Public Hall"
    return Thing(start, match.end(), " ".join(words), confidence)


# ---- organisations

_RUN = re.compile(rf"{_CAP}(?:,? (?:{COMPANIES})\b\.?| (?:(?:of the|of|and the|and|for|on|&|in the) )?{_CAP}| No\. \d{{1,4}}|, Local \d{{1,5}}){{1,11}}")
_COMPANY_END = re.compile(rf",? (?:{COMPANIES})\b\.?(?=\W|$)|, Local \d+| No\. \d+")
_BEGINNING = re.compile(rf"(?:{ORG_BEGINNINGS}) of(?: the)? ")
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
    if all(fold(word) in NOT_NAMES and fold(word) not in ORG_WORDS for word in kept[:-1]) and fold(kept[0]) in {"the", "special", "regular", "joint"}:
        return None
    return start, " ".join(kept), 0.8


def _without_person(run: str) -> int:
    """"Anita Desai of Harborview Partners", "Regular Meeting of the Council": the organisation begins after "of"."""
    start = 0
    while True:
        joint = _JOINT.search(run, start)
        if joint is None:
            return start
        left = run[start : joint.start()]
        last = fold(left.split(" ")[-1])
        if last in ORG_WORDS or _BEGINNING.match(run, start) and "of" in joint[0]:
            return start
        name = parse(left)
        is_person = name is not None and (name.titled or fold(left.split(" ")[0]) in GIVEN_NAMES)
        if not is_person and "of" not in joint[0]:
            return start
        start = joint.end()
