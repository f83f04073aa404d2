"""Motions and what became of them: a passage for each motion, its result, its count."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from clerk.extraction.ballots import Count, count
from clerk.extraction.motions import Motion, lacks_second, motions, seconder
from clerk.extraction.people import People
from clerk.parts import MemberVote, Vote

_LONGEST_PASSAGE = 2500
_LONGEST_COUNT = 800  # after the words that say what became of it
_LONGEST_RAW = 1000
# The words that can say what became of a motion; whether they do is for what stands before them to say.
_OUTCOME = re.compile(
    r"\b(?=[acdflnprstu])(?:(?P<failed>fail(?:ed|s)?|defeated|lost|die[sd]|tied|denied|rejected)"
    r"|(?P<passed>carrie[sd]|pass(?:ed|es)|prevail(?:ed|s)|adopted|approved)"
    r"|(?P<surely_failed>did\s+not\s+(?:carry|pass)|does\s+not\s+carry|not\s+(?:carried|seconded)|no\s+second)"
    r"|(?P<surely_passed>so\s+(?:voted|ordered)|unanimous|(?<=voted )unanimously|ayes?:?\s+all"
    r"|all\s+(?:in\s+favor|ayes?|voted\s+(?:aye|yes|in\s+favor)|voting\s+aye|yes)))\b",
    re.IGNORECASE,
)
_OF_A_MOTION = re.compile(
    r"\b(?:motion|amendment|resolution|ordinance|article|bill|measure|question|item|variance|permit)\b(?!.*\bbe\b)",
    re.IGNORECASE,
)
_BY_ITSELF = re.compile(
    r"(?:^|[:,)\]\"]|\band|\bunanimously|\b(?:was|were|is))\s*(?:duly\s+|unanimously\s+)?$", re.IGNORECASE
)
_WAS = re.compile(r"\b(?:was|were|is)\s+(?:unanimously\s+)?$", re.IGNORECASE)
_FAILED_OF = re.compile(r"\s+(?:of\s+adoption|by|for|to\s+receive|\d)|\s+unanimously", re.IGNORECASE)
_PROBABLY_PASSED = re.compile(
    r"\b(?:was|were|is)\s+(?:unanimously\s+)?(?:granted|adopted|approved|accepted)\b|\bdeclared[^.]{0,60}\b(?:adopted"
    r"|carried|approved)\b|\bvoted\s+to\b",
    re.IGNORECASE,
)
_WITHDRAWN = re.compile(
    r"\b(?:withdrew|withdrawn|rescinded)\b[^.]{0,30}\bmotion|\bmotion\b[^.]{0,30}\bwithdrawn", re.IGNORECASE
)
_MAIN = re.compile(r"\b(?:main|original|underlying)\s+(?:motion|question)\b|\bmotion,?\s+as\s+amended\b", re.IGNORECASE)
_TABLE = re.compile(
    r"\bto\s+(?:table|postpone|defer)\b|\bto\s+continue\b(?!\s+(?:to|with)\b)(?=[^.]{0,120}\b(?:to|until|hearing|item"
    r"|matter|application|indefinitely)\b)"
    r"|\bto\s+continue\s+to\s+\w+\.?\s+\d|\bto\s+lay\b[^.]{0,80}\bon\s+the\s+table"
    r"|\bto\s+take\b[^.]{0,80}\bunder\s+advisement|\bto\s+(?:pass\s+on|hold\s+over)\b",
    re.IGNORECASE,
)
_TABLED = re.compile(
    r"\bbe\s+(?:tabled|continued|postponed|deferred)\b|\b(?:matter|item|hearing|application|request"
    r"|appeal)\b[^.]{0,40}\bwas\s+(?:continued|tabled|postponed|deferred)\b",
    re.IGNORECASE,
)
_INFINITIVE = re.compile(r"\bto\s+(?!the\b|an?\b|\d|\w+,)(?!(?-i:[A-Z][a-z]))\w+", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[.;\n]\s")
_PARAGRAPH = re.compile(r"\n[ ]*(?:\f[ ]*)?\n\s*")
_VOTE_BLOCK = re.compile(
    r"\s*(?:ayes?|noes|nays?|yeas?|yes|no|abstain\w*|absent|roll\s+call|vote|those\s+voting|members?\s{2,}|name\s{2,}"
    r"|motion\s+(?:carried|passed|failed)|the\s+motion|there\s+being\s+\w+\s+affirmative|the\s+(?:chairman|president"
    r"|mayor|chair)\b[^.]{0,30}\bdeclared)\b",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\s+")


@dataclass
class Found:
    """A vote, where it begins, and where people are named in it."""

    start: int
    vote: Vote
    named: list[tuple[str, int]]


def find(text: str, people: People) -> list[Found]:
    """Each vote, in the order in which the motions are made."""
    made = list(motions(text, people))
    votes: list[Found] = []
    for motion, following in zip(made, [*made[1:], None], strict=False):
        limit = min(len(text), motion.start + _LONGEST_PASSAGE)
        if following:
            limit = min(limit, max(motion.end, _sentence_start(text, following.start)))
        passage = text[motion.start : limit]
        main, earlier = _MAIN.search(passage, motion.end - motion.start), _unsettled(votes, motion)
        if main and earlier:
            _settle(earlier, passage[main.start() :], people)
            passage = passage[: main.start()]
        found = _vote(text, motion, passage, people)
        if motion.mover or found.vote["individual_votes"] or found.vote["result"] != "unknown":
            votes.append(found)
    return votes


def _unsettled(votes: list[Found], motion: Motion) -> Found | None:
    """The main motion that this one may amend: the last of which nothing more was said."""
    near = (one for one in reversed(votes[-5:]) if motion.start - one.start < 2 * _LONGEST_PASSAGE)
    return next((one for one in near if one.vote["result"] == "unknown"), None)


def _settle(earlier: Found, text: str, people: People) -> None:
    """What is said of the main motion after a motion to amend it."""
    told = _told(text, 0)
    counted = count(told.passage, people)
    earlier.vote["result"] = _result(told, counted, None)
    _fill(earlier, counted, 0)


def _vote(text: str, motion: Motion, passage: str, people: People) -> Found:
    own = motion.end - motion.start
    told = _told(passage, own)
    passage = told.passage
    second = seconder(text, motion, motion.start + len(passage), people)
    lacking = lacks_second(passage)
    counted = Count() if lacking else count(passage[own:], people)
    result = "failed" if lacking else _result(told, counted, motion.implied)
    if result == "passed" and _is_to_table(passage):
        result = "tabled"
    raw = text[_sentence_start(text, motion.start) : motion.start] + passage
    named = [one for one in ((motion.mover, motion.mover_at), None if lacking else second) if one and one[0]]
    vote: Vote = {
        "motion_by": motion.mover,
        "seconded_by": second[0] if second and not lacking else None,
        "result": result,
        "tally": {"ayes": None, "nays": None, "abstain": None, "absent": None},
        "individual_votes": [],
        "raw_text": _SPACE.sub(" ", raw).strip()[:_LONGEST_RAW],
    }
    found = Found(motion.start, vote, [(who, at) for who, at in named if who])
    _fill(found, counted, motion.end)
    return found


def _fill(found: Found, counted: Count, offset: int) -> None:
    found.vote["tally"] = {"ayes": counted.ayes, "nays": counted.nays, "abstain": counted.abstain, "absent": counted.absent}
    found.vote["individual_votes"] = [MemberVote(name=who, vote=kind) for who, kind in counted.votes.items()]
    if offset:
        found.named += [(who, offset + at) for who, at in counted.places.items()]


def _sentence_start(text: str, at: int) -> int:
    begin = max(0, at - 150)
    piece = text[begin:at]
    return begin + max(piece.rfind("\n") + 1, piece.rfind(". ") + 2 if ". " in piece else 0)


class _Told(NamedTuple):
    """A passage up to where it says what became of the motion, and how it says it."""

    passage: str
    own: int  # where the words that make the motion end
    result: str | None


def _told(passage: str, own: int) -> _Told:
    """Up to the paragraph that says what became of it, with the lists of votes that follow it."""
    said = next((one for one in _OUTCOME.finditer(passage, own) if _is_outcome(passage, one, own)), None)
    if said is None:
        return _Told(passage, own, None)
    end = min(len(passage), said.end() + _LONGEST_COUNT)
    for gap in _PARAGRAPH.finditer(passage, said.end(), end):
        if not _VOTE_BLOCK.match(passage, gap.end()) and passage[gap.start() - 1] != ":":
            end = gap.start()
            break
    return _Told(passage[:end], own, "failed" if said["failed"] or said["surely_failed"] else "passed")


def _is_outcome(passage: str, word: re.Match[str], own: int) -> bool:
    """ "The motion ... carried", "Approved 5-0": not "that the plan approved in May be changed"."""
    if word["surely_failed"] or word["surely_passed"]:
        return True
    before = passage[max(own, word.start() - 70) : word.start()]
    clause = _CLAUSE_END.split(before)[-1]
    if _OF_A_MOTION.search(clause):
        return True
    if _WAS.search(clause):
        return word["failed"] is not None  # that something was approved may be told of earlier times
    if _BY_ITSELF.search(clause):
        return True
    return word[0].lower() not in {"denied", "rejected"} and _FAILED_OF.match(passage, word.end()) is not None


def _result(told: _Told, counted: Count, implied: str | None) -> str:
    if told.result is not None:
        return told.result
    if _WITHDRAWN.search(told.passage, told.own):
        return "unknown"
    if counted.ayes is not None and (counted.nays is not None or counted.votes):
        return "passed" if counted.ayes > (counted.nays or 0) else "failed"
    if implied:
        return implied
    return "passed" if _PROBABLY_PASSED.search(told.passage, told.own) else "unknown"


def _is_to_table(passage: str) -> bool:
    table = _TABLE.search(passage)
    if table is None:
        return _TABLED.search(passage) is not None
    first = _INFINITIVE.search(passage)
    return first is None or table.start() <= first.start()
