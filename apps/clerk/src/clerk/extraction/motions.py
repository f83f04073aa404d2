"""Where motions are made in a text, by whom, and who seconds them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clerk.extraction.ballots import name_at
from clerk.extraction.people import RUN, People, parse


@dataclass(frozen=True)
class Motion:
    start: int
    end: int  # of the words that say who makes it
    mover: str | None
    mover_at: int
    seconder: str | None = None
    seconder_at: int = 0
    implied: str | None = None  # the result that its words imply: "On motion of ...", "M/S/C", "Failed with a motion by"


_TRIGGER = re.compile(
    r"\b(?=[miao])(?:moved|moves|motioned|motion|introduced|offered|adopted)\b|(?<=[\w.])[ ]?/[ ]?(?-i:(?=[A-Z]))"
    r"|(?-i:^[ ]{0,40}[A-Z][A-Z' ]{1,30} - [A-Z][A-Z' ]{1,30}$)",
    re.IGNORECASE | re.MULTILINE,
)
_PLAIN = r"(?:\s+(?:was|is|were|has|been|then|duly|properly|made|and|offered|so|first))"
_BY = re.compile(
    rf"(?:{_PLAIN}{{0,5}}\s+(?:by|of|from)\s+|\s*\((?=[A-Z])|\s*:\s*(?=[A-Z])"
    rf"|\s+(?=[A-Z][a-z]+(?:-[A-Z][a-z]+)?,\s+(?:2nd|second)))(?:the\s+)?",
    re.IGNORECASE,
)
_TO_BY = re.compile(
    r"\s+(?:to|for|that)\s(?:(?!\bsecond|\bsupport|\n\n)[^.;:]){1,240}?\s(?P<made>(?:made|offered)\s+)?by\s+(?=[A-Z])",
    re.IGNORECASE,
)
_MADE_A = re.compile(
    r"\s*,?\s+(?:(?:then|also|again)\s+)?(?:made|makes|offered|offers|gave|put|introduced|entered)\s+(?:a|the|another"
    r"|an)(?:\s+\w+)?\s+$"
)
_FOLLOWING = re.compile(r"\s+the\s+following\s+(?:resolution|ordinance|motion)", re.IGNORECASE)
_MOVED_WHAT = re.compile(
    r"\s*(?:[,;:(]|\s(?:and|to\s+[a-z]|that|for|adoption|approval|passage|acceptance|the\s|seconded|second|its|an?\s"
    r"|[A-Z]{2,}|Resolution|Ordinance|Item"
    r"|denial|confirmation|introduction|we\s))"
)
_ANONYMOUS = re.compile(
    r"(?:\s+(?:was|is|duly|properly|made)){0,4}\s*,?\s+(?:and\s+)?(?:duly\s+|properly\s+)?(?:seconded|supported"
    r"|second)\b(?!\s*(?:by|:|\())(?=,?\s+(?:and|to|that|it)\b|,)",
    re.IGNORECASE,
)
_VOTE_ON = re.compile(r"\bvote\s+on\s+(?:the\s+)?(?:\w+\s+)?$", re.IGNORECASE)
_UPON = re.compile(r"\b(?:on|upon)\s+(?:an?\s+|the\s+)?(?:duly\s+made\s+)?$", re.IGNORECASE)
_CAME_OF_IT = re.compile(
    r"\b(?P<word>passed|carried|approved|adopted|failed|defeated)\s+(?:with|on|upon|by)\s+an?\s+$", re.IGNORECASE
)
_BY_VOTE = re.compile(r"\b[^.]{0,240}?\bby\s+the\s+following\s+(?:roll\s+call\s+|called\s+)?vote", re.IGNORECASE)
_BACK = 90


def name_before(text: str, end: int, people: People) -> tuple[str, int] | None:
    """The person whose name ends here, and where it begins."""
    begin = max(0, end - _BACK)
    piece = text[begin:end].replace("\n\n", ";\n").replace("\n", " ").replace("\f", " ")
    runs = list(RUN.finditer(piece))
    if not runs or runs[-1].end() < len(piece.rstrip(' "')):
        return None
    run = runs[-1]
    words = run[0].split(" ")
    for i in range(len(words)):
        name = parse(" ".join(words[i:]), whole=True, sure=True)
        who = people.resolve(name.text) if name else None
        if who is not None:
            return who, begin + run.start() + len(" ".join(words[:i])) + (i > 0)
    name = parse(run[0], whole=True, sure=True)
    return (people.nearest(name.text) or name.text, begin + run.start()) if name else None


def motions(text: str, people: People) -> Iterator[Motion]:
    """Each motion, in order. One that is told twice is found once."""
    end = -1
    for trigger in _TRIGGER.finditer(text):
        if trigger.start() < end:
            continue
        motion = _motion(text, trigger, people)
        if motion is not None and motion.start >= end:
            end = motion.end
            yield motion


def _motion(text: str, trigger: re.Match[str], people: People) -> Motion | None:
    word = trigger[0].strip().lower()
    if " - " in word or word == "/":
        return _pair(text, trigger, people)
    if word == "adopted":
        by_vote = _BY_VOTE.match(text, trigger.end())
        return Motion(trigger.start(), by_vote.end(), None, 0) if by_vote and "\n\n" not in by_vote[0] else None
    if word in {"moved", "moves", "motioned"}:
        return _made_by(text, trigger, people) or _mover_first(text, trigger, people) or _nobody(text, trigger)
    if word == "motion":
        return _made_by(text, trigger, people) or _made_a_motion(text, trigger, people) or _nobody(text, trigger)
    if word in {"introduced", "offered"}:
        return _introduced(text, trigger, people)
    return None


def _pair(text: str, trigger: re.Match[str], people: People) -> Motion | None:
    """ "M/S/C (Park/Tso)", "KEY - SPRINGER": both are known, or it is something else."""
    if trigger[0].strip() == "/":
        first, second_at = name_before(text, trigger.start(), people), trigger.end()
    else:
        at = trigger.start() + len(trigger[0]) - len(trigger[0].lstrip())
        known = name_at(text, at, people)
        first, second_at = (known[0], at) if known else None, trigger.start() + trigger[0].index(" - ") + 3
    second = name_at(text, second_at, people)
    if first is None or second is None or people.resolve(first[0]) is None or people.resolve(second[0]) is None:
        return None
    carried = re.search(r"M\s?/\s?S\s?/\s?([CPF])[\s(:]*$", text[max(0, first[1] - 12) : first[1]])
    implied = {"C": "passed", "P": "passed", "F": "failed"}[carried[1]] if carried else None
    return Motion(first[1], second[1], first[0], first[1], second[0], second_at, implied)


def _made_by(text: str, trigger: re.Match[str], people: People) -> Motion | None:
    before = text[max(0, trigger.start() - 40) : trigger.start()]
    if _VOTE_ON.search(before):
        return None
    by = _BY.match(text, trigger.end())
    sure = by is not None
    if by is None and trigger[0].lower() == "motion":
        by = _TO_BY.match(text, trigger.end())
        sure = by is not None and by["made"] is not None
    who = name_at(text, by.end(), people) if by else None
    if by is None or who is None or not (sure or people.resolve(who[0])):
        return None
    implied = "passed" if _UPON.search(before) else None
    came = _CAME_OF_IT.search(before)
    if came:
        implied = "failed" if came["word"].lower() in {"failed", "defeated"} else "passed"
    return Motion(trigger.start(), who[1], who[0], by.end(), implied=implied)


def _mover_first(text: str, trigger: re.Match[str], people: People) -> Motion | None:
    if not _MOVED_WHAT.match(text, trigger.end()):
        return None
    gap = re.search(r"(?:,?\s+(?:then|also|again|so)|,)?\s+$", text[max(0, trigger.start() - 12) : trigger.start()])
    who = name_before(text, trigger.start() - (len(gap[0]) if gap else 0), people)
    return Motion(who[1], trigger.end(), who[0], who[1]) if who else None


def _made_a_motion(text: str, trigger: re.Match[str], people: People) -> Motion | None:
    begin = max(0, trigger.start() - 40)
    made = _MADE_A.search(text[begin : trigger.start()])
    who = name_before(text, begin + made.start(), people) if made else None
    return Motion(who[1], trigger.end(), who[0], who[1]) if who else None


def _introduced(text: str, trigger: re.Match[str], people: People) -> Motion | None:
    by = re.compile(r"\s+by\s+").match(text, trigger.end())
    if by:
        who = name_at(text, by.end(), people)
        seconded = who and re.compile(r",?\s+(?:and\s+)?(?:seconded|supported)", re.IGNORECASE).match(text, who[1])
        return Motion(trigger.start(), who[1], who[0], by.end()) if who and seconded else None
    if _FOLLOWING.match(text, trigger.end()):
        before = name_before(text, trigger.start() - 1, people)
        rest = re.compile(r"[^.]{0,60}\bmoved\b").match(text, trigger.end())
        return Motion(before[1], rest.end() if rest else trigger.end(), before[0], before[1]) if before else None
    return None


def _nobody(text: str, trigger: re.Match[str]) -> Motion | None:
    """ "It was moved, seconded and voted 3-0"."""
    anonymous = _ANONYMOUS.match(text, trigger.end())
    return Motion(trigger.start(), anonymous.end(), None, 0) if anonymous else None


# ---- who seconds

_SECOND = re.compile(r"(?<![A-Za-z])(?:seconded|seconds|second|supported|support|2nd)\b", re.IGNORECASE)
_SECOND_BY = re.compile(
    r"(?:\s+(?:was|were|the|motion|made|offered|came|given))*\s*(?:by|from|:|\()\s*(?:the\s+)?(?=['\"]?[A-Z])", re.IGNORECASE
)
_NO_SECOND = re.compile(
    r"\b(?:lack|want|absence)\s+of\s+(?:a\s+)?second|\b(?:no|without\s+a)\s+second\b|\bnot\s+(?:receive\s+a\s+second"
    r"|seconded)|\bno\s+one\s+seconded",
    re.IGNORECASE,
)


def seconder(text: str, motion: Motion, end: int, people: People) -> tuple[str, int] | None:
    """Who seconds it, in the text up to `end`, and where that is said."""
    if motion.seconder:
        return motion.seconder, motion.seconder_at
    start = motion.end
    for word in _SECOND.finditer(text, start, end):
        by = _SECOND_BY.match(text, word.end())
        if by:
            who = name_at(text, by.end(), people)
            if who:
                return who[0], by.end()
            continue
        before = name_before(text, word.start() - 1, people)
        if before and before[1] >= start:
            return before
        direct = name_at(text, word.end() + 1, people)
        if direct and people.resolve(direct[0]):
            return direct[0], word.end() + 1
    return None


def lacks_second(text: str) -> bool:
    return _NO_SECOND.search(text) is not None
