"""Motions and what became of them: a passage for each motion, its result, its count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clerk.extraction.ballots import Count, count
from clerk.extraction.motions import Motion, lacks_second, motions, seconder
from clerk.extraction.people import People
from clerk.parts import MemberVote, Vote

_LONGEST_PASSAGE = 2500
_LONGEST_RAW = 1000
_SUBJECT = r"\b(?:motion|amendment|resolution|ordinance|article|bill|measure|question|item|variance|permit)\b"
_FAILED = re.compile(
    rf"{_SUBJECT}(?:(?!\bbe\b)[^.;\n]){{0,60}}?\b(?:fail(?:ed|s)?|defeated|lost|die[sd]|did\s+not\s+(?:carry|pass)|does\s+not\s+carry|not\s+carried|tied|denied)\b"
    r"|(?:^|[.;:,)\]\"]\s+|\band\s+)(?:failed|defeated|denied|lost)\b"
    r"|\bfailed\s+(?:of\s+adoption|by|for|to\s+receive|\d)|\b(?:was|were|is)\s+(?:denied|defeated|rejected|lost)\b|\bnot\s+seconded\b|\bno\s+second\b",
    re.IGNORECASE | re.MULTILINE,
)
_PASSED = re.compile(
    rf"{_SUBJECT}(?:(?!\bbe\b)[^.;\n]){{0,60}}?\b(?:carrie[sd]|pass(?:ed|es)|prevail(?:ed|s)|(?<!be )adopted|(?<!be )approved)\b"
    r"|(?:^|[.;:,)\]\"]\s+|\band\s+|\bunanimously\s+)(?:duly\s+|unanimously\s+)?(?:carried|passed|approved|adopted|so\s+voted|so\s+ordered)\b"
    r"|\b(?:carried|passed|adopted)\s+unanimously|\ball\s+(?:in\s+favor|ayes?|voted\s+(?:aye|yes|in\s+favor)|voting\s+aye|yes)\b|\bayes?:?\s+all\b"
    r"|\bvoted\s+unanimously|\bvote:?\s+(?:was\s+)?unanimous|\bunanimous\s+vote|\bunanimous\b|\bso\s+voted\b",
    re.IGNORECASE | re.MULTILINE,
)
_PROBABLY_PASSED = re.compile(
    r"\b(?:was|were|is)\s+(?:unanimously\s+)?(?:granted|adopted|approved|accepted)\b|\bdeclared[^.]{0,60}\b(?:adopted|carried|approved)\b|\bvoted\s+to\b", re.IGNORECASE
)
_WITHDRAWN = re.compile(r"\b(?:withdrew|withdrawn|rescinded)\b[^.]{0,30}\bmotion|\bmotion\b[^.]{0,30}\bwithdrawn", re.IGNORECASE)
_MAIN = re.compile(r"\b(?:main|original|underlying)\s+(?:motion|question)\b|\bmotion,?\s+as\s+amended\b", re.IGNORECASE)
_TABLE = re.compile(
    r"\bto\s+(?:table|postpone|defer)\b|\bto\s+continue\b(?!\s+(?:to|with)\b)(?=[^.]{0,120}\b(?:to|until|hearing|item|matter|application|indefinitely)\b)"
    r"|\bto\s+continue\s+to\s+\w+\.?\s+\d|\bto\s+lay\b[^.]{0,80}\bon\s+the\s+table|\bto\s+take\b[^.]{0,80}\bunder\s+advisement|\bto\s+(?:pass\s+on|hold\s+over)\b",
    re.IGNORECASE,
)
_TABLED = re.compile(
    r"\bbe\s+(?:tabled|continued|postponed|deferred)\b|\b(?:matter|item|hearing|application|request|appeal)\b[^.]{0,40}\bwas\s+(?:continued|tabled|postponed|deferred)\b",
    re.IGNORECASE,
)
_INFINITIVE = re.compile(r"\bto\s+(?!the\b|an?\b|\d|\w+,)(?!(?-i:[A-Z][a-z]))\w+", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n[ ]*(?:\f[ ]*)?\n\s*")
_VOTE_BLOCK = re.compile(
    r"\s*(?:ayes?|noes|nays?|yeas?|yes|no|abstain\w*|absent|roll\s+call|vote|those\s+voting|members?\s{2,}|name\s{2,}|motion\s+(?:carried|passed|failed)|the\s+motion|there\s+being\s+\w+\s+affirmative|the\s+(?:chairman|president|mayor|chair)\b[^.]{0,30}\bdeclared)\b",
    re.IGNORECASE,
)
_SPACE = re.compile(r"\s+")


@dataclass
class Found:
    """A vote, where it begins, and where people are named in it."""

    start: int
    vote: Vote
    named: list[tuple[str, int]]


def find(text: str, people: People) -> Iterator[Found]:
    made = list(motions(text, people))
    pending: list[Found] = []
    for motion, following in zip(made, [*made[1:], None], strict=False):
        limit = min(len(text), motion.start + _LONGEST_PASSAGE)
        if following:
            limit = min(limit, max(motion.end, _sentence_start(text, following.start)))
        passage = text[motion.start : limit]
        main = _MAIN.search(passage, motion.end - motion.start)
        if main and pending:
            _settle(pending.pop(), passage[main.start() :], people)
            passage = passage[: main.start()]
        found = _vote(text, motion, passage, people)
        if motion.mover is None and not found.vote["individual_votes"] and found.vote["result"] == "unknown":
            continue
        if found.vote["result"] == "unknown":
            pending.append(found)
        elif not main:
            pending = pending if found.vote["result"] in {"tabled"} else pending[-3:]
        yield found


def _settle(earlier: Found, text: str, people: People) -> None:
    """What is said of the main motion after a motion to amend it."""
    passage = _told(text)
    counted = count(passage, people)
    earlier.vote["result"] = _result(passage, counted, None)
    _fill(earlier, counted, 0)


def _vote(text: str, motion: Motion, passage: str, people: People) -> Found:
    passage = _told(passage, motion.end - motion.start)
    own = motion.end - motion.start
    second = (motion.seconder, motion.seconder_at) if motion.seconder else seconder(text, motion.end, motion.start + len(passage), people)
    lacking = lacks_second(passage)
    counted = Count() if lacking else count(passage[own:], people)
    result = "failed" if lacking else _result(passage[own:], counted, motion.implied)
    if result == "passed" and _is_to_table(passage):
        result = "tabled"
    vote: Vote = {
        "motion_by": motion.mover,
        "seconded_by": second[0] if second and not lacking else None,
        "result": result,
        "tally": {"ayes": None, "nays": None, "abstain": None, "absent": None},
        "individual_votes": [],
        "raw_text": _SPACE.sub(" ", text[_sentence_start(text, motion.start) : motion.start] + passage).strip()[:_LONGEST_RAW],
    }
    named = [(motion.mover, motion.mover_at)] if motion.mover else []
    if second and second[0] and not lacking:
        named.append((second[0], second[1]))
    found = Found(motion.start, vote, named)
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


def _told(passage: str, own: int = 0) -> str:
    """Up to the paragraph that says what became of it, with the lists of votes that follow it."""
    first = min((m.end() for m in (_FAILED.search(passage, own), _PASSED.search(passage, own)) if m), default=None)
    end = len(passage)
    for gap in _PARAGRAPH.finditer(passage):
        if first is not None and gap.start() >= first and not _VOTE_BLOCK.match(passage, gap.end()) and passage[gap.start() - 1] != ":":
            end = gap.start()
            break
    return passage[:end]


def _result(text: str, counted: Count, implied: str | None) -> str:
    failed, passed = _FAILED.search(text), _PASSED.search(text)
    withdrawn = _WITHDRAWN.search(text)
    if withdrawn and not (passed or failed):
        return "unknown"
    if failed and passed:
        return "failed" if failed.end() <= passed.end() else "passed"
    if failed or passed:
        return "failed" if failed else "passed"
    if counted.ayes is not None and (counted.nays is not None or counted.votes):
        return "passed" if counted.ayes > (counted.nays or 0) else "failed"
    if implied:
        return implied
    return "passed" if _PROBABLY_PASSED.search(text) else "unknown"


def _is_to_table(passage: str) -> bool:
    table = _TABLE.search(passage)
    if table is None:
        return _TABLED.search(passage) is not None
    first = _INFINITIVE.search(passage)
    return first is None or table.start() <= first.start()
