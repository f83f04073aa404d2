"""Where people are named on a page: roll calls and other lists, titles, signatures, speakers."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from clerk.extraction.people import RUN, Name, fold, parse
from clerk.extraction.things import Thing
from clerk.extraction.vocabulary import (
    COMPANIES,
    GIVEN_NAMES,
    NOT_NAMES,
    ORG_WORDS,
    PLURAL_TITLES,
    SPEECH,
    TITLE_HEADS,
    TITLE_PARTS,
)


class Mention(NamedTuple):
    name: Name
    confidence: float
    member: bool = False


# ---- lists of those present and absent

_LABEL = re.compile(
    r"(?:^[ ]*(?:[IVX\d]{1,4}[.)] *)?|(?<=[.;:] )|\bthe following )"
    r"(?P<label>(?:[A-Za-z][\w'/ ]{0,45} )??(?:present|absent|attendance|attendees|attending|excused|roll call|guests?"
    r"|others?|staff|audience"
    r"|administrators|board members|council members|agency members|members|commissioners|directors|trustees)"
    r"(?: (?:were|was|are|included?|present|attending|in attendance|taken at [\d: apmAPM.]{3,10}))*)"
    r"(?: were)?(?:[ ]*[:\-](?=[ \n])|[ ]*\n|[ ]{2,}|(?<=ncluded) )",
    re.IGNORECASE | re.MULTILINE,
)
_BLOCK = re.compile(r"[^\n]*(?:\n[ ]*\S[^\n]*){0,25}")
_LONGEST_LIST = 2500
_OTHERS = re.compile(
    r"\b(?:staff|also|others?|guests?|visitors?|public|audience|administrat\w+|citizens|speaking)\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[a-z]{2}|[)A-Z]{2})\.\s+(?=[A-Z\d])")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Rev|Jr|Sr|Ald|Sel|Comm|Comms|Chrm|Chmn|St|Esq|Hon|Pct|Wm|Atty)$")
_ENTRY_BREAK = re.compile(r"[;,\n]|\band\b|[ ]{3,}|\.{3,}| - |:(?=\s)", re.IGNORECASE)
_ASIDE = re.compile(r"\([^()\n]{0,80}\)?")
_FOUR_WORDS = re.compile(r"(?:[A-Z][a-z]+ [A-Z][A-Za-z]+ ?){2}")
_SPACES = re.compile(r" {2,}")
_SUFFIX = re.compile(r", (?=(?:Jr|Sr)\b|I{2,3}\b)")
_REVERSED = re.compile(
    r"^[ ]*([A-Z][\w'-]+), ([A-Z][\w'-]+(?: [A-Z]\.?)?)[ ]*$|(?<= {3})([A-Z][\w'-]+), ([A-Z][\w'-]+(?: [A-Z]\.?)?)[ ]*$",
    re.MULTILINE,
)
_COMPANY = re.compile(rf"\b(?:{COMPANIES})\b")
_PLURAL = re.compile(rf"\b(?=[A-Z]){PLURAL_TITLES}[ ]+(?=[A-Z])")
_BETWEEN = re.compile(r"(?: ?\([^()\n]{0,40}\))?(?:,? and |, ?|; ?|,?\n[ ]*)(?:and )?", re.IGNORECASE)


def in_lists(text: str) -> Iterator[Mention]:
    labels = list(_LABEL.finditer(text))
    for label, following in zip(labels, [*labels[1:], None], strict=False):
        end = min(following.start() if following else len(text), label.end() + _LONGEST_LIST)
        block = _BLOCK.match(text, label.end(), end)
        if block:
            yield from _entries(block[0], member=not _OTHERS.search(label["label"]))
    for plural in _PLURAL.finditer(text):
        yield from _row(text, plural.end())


def _entries(block: str, member: bool) -> Iterator[Mention]:
    last_first = [f"{one[2] or one[4]} {one[1] or one[3]}" for one in _REVERSED.finditer(block)]
    if len(last_first) < 2:
        plain = _SUFFIX.sub(" ", _ASIDE.sub("", _first_sentence(block)))
        entries = [_SPACES.sub(" ", entry.strip(" ._*")) for entry in _ENTRY_BREAK.split(plain)]
    else:
        entries = last_first
    for entry in (half for joined in entries for half in _halves(joined)):
        name = parse(entry, whole=True, sure=True) if RUN.fullmatch(entry) else None
        if name is None or _is_thing(entry) or (name.surname_only and not (member or name.titled)):
            continue
        yield Mention(name, 0.85 if name.surname_only else 0.95, member)


def _halves(entry: str) -> list[str]:
    """Two names that a scan has joined, where there were columns: four plain words and no title."""
    words = entry.split(" ")
    if (
        len(words) == 4
        and _FOUR_WORDS.fullmatch(entry)
        and not any(fold(w) in TITLE_HEADS or fold(w) in TITLE_PARTS for w in words)
    ):
        return [" ".join(words[:2]), " ".join(words[2:])]
    return [entry]


def _first_sentence(block: str) -> str:
    for end in _SENTENCE_END.finditer(block):
        if not _ABBREVIATION.search(block, max(0, end.start() - 6), end.start()):
            return block[: end.start()]
    return block


def _is_thing(entry: str) -> bool:
    return any(fold(word) in ORG_WORDS for word in entry.split(" ")) or _COMPANY.search(entry) is not None


def _row(text: str, at: int) -> Iterator[Mention]:
    """The names after a title in the plural: "Trustees Lund, Cassidy and DiNapoli"."""
    for _ in range(30):
        run = RUN.match(text, at)
        name = parse(run[0], sure=True) if run else None
        if run is None or name is None:
            return
        yield Mention(name, 0.9 if not name.surname_only else 0.85, member=True)
        between = _BETWEEN.match(text, run.end())
        if between is None:
            return
        at = between.end()


# ---- everywhere else

_INITIALS = re.compile(r"(?:[A-Z]\. ?){1,3}[A-Z][a-z]|[A-Z][\w'-]+ (?:[A-Z]\. ?){1,2}[A-Z][a-z]")
_TITLE_AFTER = re.compile(r"(?:,| -| {3,}|\n)[ ]*(?P<title>(?:[A-Z][\w'-]+ ){0,4}[A-Z][\w.'-]+)")
_ADDRESS_AFTER = re.compile(
    r", (?:of )?\d{1,6} [A-Z]|, (?:a |an |the )?(?:resident|owner|director|president|representing|applicant|teacher|student)"
)
_CALLED = re.compile(
    r"\b(?:by|from|appoint|reappoint|hire|nominate|nominated|elect|speakers?:|favor:|against:) $", re.IGNORECASE
)
_COUPLE = re.compile(r"\b([A-Z][a-z]+) and ([A-Z][a-z]+) ([A-Z][\w'-]+)")
_AGAIN = re.compile(
    r"(?<=[a-z.]) (?=(?:Commissioner|Council ?[Mm]ember|Council(?:wo)?man|Trustee|Supervisor|Alderman|Selectman"
    r"|Mr\.|Mrs\.|Ms\.|Dr\.) )"
)  # another title: another person
_THE = re.compile(r"\b(?:the|The|a|an) $")


def runs(text: str) -> list[re.Match[str]]:
    return list(RUN.finditer(text))


def in_sentences(text: str, found: list[re.Match[str]], things: list[Thing]) -> Iterator[Mention]:
    for couple in _COUPLE.finditer(text):
        if fold(couple[1]) in GIVEN_NAMES and fold(couple[2]) in GIVEN_NAMES and fold(couple[3]) not in NOT_NAMES:
            yield Mention(Name(f"{couple[1]} {couple[3]}"), 0.8)
    taken = _spans(things)
    for run in found:
        if " " not in run[0] or not _is_free(taken, run.start(), run.end()):
            continue  # one word alone has no title: who is known by it is looked up later
        start = run.start()
        for end in [*(again.start() for again in _AGAIN.finditer(run[0])), len(run[0])]:
            mention = _person(text, start, run.start() + end)
            start = run.start() + end + 1
            if mention is not None:
                yield mention


def _person(text: str, start: int, end: int) -> Mention | None:
    run = text[start:end]
    name = parse(run)
    if name is None:
        return None
    if name.titled:
        return Mention(name, 0.85 if name.surname_only else 0.92, name.member)
    if name.surname_only or len(name.tokens) < 2 or parse(run, whole=True) is None or _is_thing(run):
        return None
    confidence = _evidence(text, start, end, name)
    return Mention(name, confidence) if confidence else None


def _evidence(text: str, start: int, end: int, name: Name) -> float:
    """How much speaks for a person, when no title stands before it."""
    run, before = text[start:end], text[max(0, start - 14) : start]
    if _THE.search(before):
        return 0.0
    title = _TITLE_AFTER.match(text, end)
    if title and _is_title(title["title"]):
        return 0.9
    if run.isupper():
        return 0.0  # a heading
    given = fold(run.split(" ")[0]) in GIVEN_NAMES
    if "," in name.text or (given and len(name.tokens) < 5) or _INITIALS.match(run):
        return 0.85
    spoken = SPEECH.match(text, end) or _ADDRESS_AFTER.match(text, end) or _CALLED.search(before)
    return 0.75 if spoken and len(name.tokens) < 4 else 0.5


def _is_title(text: str) -> bool:
    words = [fold(word) for word in text.split(" ")]
    return words[-1] in TITLE_HEADS and all(word in TITLE_PARTS or word in TITLE_HEADS for word in words[:-1])


def _spans(things: list[Thing]) -> tuple[list[int], list[int]]:
    """Where things are, as the starts and ends of stretches that do not overlap."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted((thing.start, thing.end) for thing in things):
        if ends and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _is_free(taken: tuple[list[int], list[int]], start: int, end: int) -> bool:
    starts, ends = taken
    last = bisect_left(starts, end) - 1
    return last < 0 or ends[last] <= start
