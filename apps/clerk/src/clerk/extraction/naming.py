"""Where people are named on a page: roll calls and other lists, titles, signatures, speakers."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from clerk.extraction.people import RUN, Name, fold, parse
from clerk.extraction.things import Thing
from clerk.extraction.vocabulary import COMPANIES, GIVEN_NAMES, NOT_NAMES, ORG_WORDS, PLURAL_TITLES, SPEECH, TITLE_HEADS, TITLE_PARTS


@dataclass(frozen=True)
class Mention:
    start: int
    name: Name
    confidence: float
    member: bool = False


# ---- lists of those present and absent

_LABEL = re.compile(
    r"(?:^[ ]*(?:[IVX\d]{1,4}[.)] *)?|(?<=[.;:] )|\bthe following )"
    r"(?P<label>(?:[A-Za-z][\w'/ ]{0,45} )??(?:present|absent|attendance|attendees|attending|excused|roll call|guests?|others?|staff|audience"
    r"|administrators|board members|council members|agency members|members|commissioners|directors|trustees)"
    r"(?: (?:were|was|are|included?|present|attending|in attendance|taken at [\d: apmAPM.]{3,10}))*)"
    r"(?: were)?(?:[ ]*[:\-](?=[ \n])|[ ]*\n|[ ]{2,}|(?<=ncluded) )(?P<list>(?:[^\n]*\n?)(?:[ ]*\S[^\n]*\n?){0,25})",
    re.IGNORECASE | re.MULTILINE,
)
_OTHERS = re.compile(r"\b(?:staff|also|others?|guests?|visitors?|public|audience|administrat\w+|citizens|speaking)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[a-z]{2}|[)A-Z]{2})\.\s+(?=[A-Z\d])")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Rev|Jr|Sr|Ald|Sel|Comm|Comms|Chrm|Chmn|St|Esq|Hon|Pct|Wm|Atty)$")
_ENTRY_BREAK = re.compile(r"[;,\n]|\band\b|[ ]{3,}|\.{3,}| - |:(?=\s)", re.IGNORECASE)
_ASIDE = re.compile(r"\([^()\n]{0,80}\)?")
_SUFFIX = re.compile(r", (?=(?:Jr|Sr)\b|I{2,3}\b)")
_REVERSED = re.compile(r"^[ ]*([A-Z][\w'-]+), ([A-Z][\w'-]+(?: [A-Z]\.?)?)[ ]*$|(?<= {3})([A-Z][\w'-]+), ([A-Z][\w'-]+(?: [A-Z]\.?)?)[ ]*$", re.MULTILINE)
_PLURAL = re.compile(rf"\b{PLURAL_TITLES}[ ]+(?=[A-Z])", re.IGNORECASE)
_BETWEEN = re.compile(r"(?: ?\([^()\n]{0,40}\))?(?:,? and |, ?|; ?|,?\n[ ]*)(?:and )?", re.IGNORECASE)


def in_lists(text: str) -> Iterator[Mention]:
    for found in _LABEL.finditer(text):
        block = found["list"]
        following = _LABEL.search(text, found.start("list"))
        if following and following.start() < found.end("list"):
            block = block[: max(0, following.start() - found.start("list"))]
        yield from _entries(block, found.start("list"), member=not _OTHERS.search(found["label"]))
    for found in _PLURAL.finditer(text):
        yield from _row(text, found.end())


def _entries(block: str, at: int, member: bool) -> Iterator[Mention]:
    reversed_names = list(_REVERSED.finditer(block))
    if len(reversed_names) > 1:
        for one in reversed_names:
            name = parse(f"{one[2] or one[4]} {one[1] or one[3]}", whole=True)
            if name is not None:
                yield Mention(at + one.start(), name, 0.95, member)
        return
    position = 0
    for entry in _pieces(_SUFFIX.sub("  ", _ASIDE.sub(lambda m: " " * len(m[0]), _first_sentence(block)))):
        start = block.find(entry.split(" ")[0], position) if entry else position
        position = max(start, position)
        run = RUN.fullmatch(entry)
        name = parse(re.sub(" +", " ", entry), whole=True, sure=True) if run else None
        if name is None or _is_thing(entry) or name.surname_only and not (member or name.titled):
            continue
        yield Mention(at + position, name, 0.95 if not name.surname_only else 0.85, member)


def _pieces(block: str) -> Iterator[str]:
    for entry in _ENTRY_BREAK.split(block):
        yield entry.strip(" ._*")


def _first_sentence(block: str) -> str:
    for end in _SENTENCE_END.finditer(block):
        if not _ABBREVIATION.search(block, max(0, end.start() - 6), end.start()):
            return block[: end.start()]
    return block


def _is_thing(entry: str) -> bool:
    words = entry.split(" ")
    return any(fold(word) in ORG_WORDS for word in words) or re.search(rf"\b(?:{COMPANIES})\b", entry) is not None


def _row(text: str, at: int) -> Iterator[Mention]:
    """The names after a title in the plural: "Trustees Lund, Cassidy and DiNapoli"."""
    for _ in range(30):
        run = RUN.match(text, at)
        name = parse(run[0], sure=True) if run else None
        if run is None or name is None:
            return
        yield Mention(at, name, 0.9 if not name.surname_only else 0.85, member=True)
        between = _BETWEEN.match(text, run.end())
        if between is None:
            return
        at = between.end()


# ---- everywhere else

_INITIALS = re.compile(r"(?:[A-Z]\. ?){1,3}[A-Z][a-z]|[A-Z][\w'-]+ (?:[A-Z]\. ?){1,2}[A-Z][a-z]")
_TITLE_AFTER = re.compile(r"(?:,| -| {3,}|\n)[ ]*(?P<title>(?:[A-Z][\w'-]+ ){0,4}[A-Z][\w.'-]+)")
_ADDRESS_AFTER = re.compile(r", (?:of )?\d{1,6} [A-Z]|, (?:a |an |the )?(?:resident|owner|director|president|representing|applicant|teacher|student)")
_BEFORE = re.compile(
    r"(?:\b(?:by|from|appoint|reappoint|hire|nominated?|to|of|is|heard from|appellant,?|applicant,?|speakers?:|favor:|against:|and|,)) $", re.IGNORECASE
)
_CALLED = re.compile(r"\b(?:by|from|appoint|reappoint|hire|nominate|nominated|elect|speakers?:|favor:|against:) $", re.IGNORECASE)
_COUPLE = re.compile(r"\b([A-Z][a-z]+) and ([A-Z][a-z]+) ([A-Z][\w'-]+)")
_THE = re.compile(r"\b(?:the|The|a|an) $")


def in_sentences(text: str, things: list[Thing]) -> Iterator[Mention]:
    for couple in _COUPLE.finditer(text):
        if fold(couple[1]) in GIVEN_NAMES and fold(couple[2]) in GIVEN_NAMES and fold(couple[3]) not in NOT_NAMES:
            yield Mention(couple.start(), Name(f"{couple[1]} {couple[3]}"), 0.8)
    taken = _spans(things)
    for run in RUN.finditer(text):
        if not _is_free(taken, run.start(), run.end()):
            continue
        mention = _person(text, run)
        if mention is not None:
            yield mention


def _person(text: str, run: re.Match[str]) -> Mention | None:
    name = parse(run[0])
    if name is None:
        return None
    if name.titled:
        return Mention(run.start(), name, 0.85 if name.surname_only else 0.92, name.member)
    if name.surname_only or len(name.tokens) < 2 or parse(run[0], whole=True) is None or _is_thing(run[0]):
        return None
    confidence = _evidence(text, run, name)
    return Mention(run.start(), name, confidence) if confidence else None


def _evidence(text: str, run: re.Match[str], name: Name) -> float:
    """How much speaks for a person, when no title stands before it."""
    before = text[max(0, run.start() - 14) : run.start()]
    if _THE.search(before):
        return 0.0
    title = _TITLE_AFTER.match(text, run.end())
    if title and _is_title(title["title"]):
        return 0.9
    if run[0].isupper():
        return 0.0  # a heading
    given = fold(run[0].split(" ")[0]) in GIVEN_NAMES
    if "," in name.text or given and len(name.tokens) < 5 or _INITIALS.match(run[0]):
        return 0.85
    spoken = SPEECH.match(text, run.end()) or _ADDRESS_AFTER.match(text, run.end()) or _CALLED.search(before)
    return 0.75 if spoken and len(name.tokens) < 4 else 0.5


def _is_title(text: str) -> bool:
    words = [fold(word) for word in text.split(" ")]
    return words[-1] in TITLE_HEADS and all(word in TITLE_PARTS or word in TITLE_HEADS for word in words[:-1]) or (
        words[0] in TITLE_HEADS and len(words) == 1
    )


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
