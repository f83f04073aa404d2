"""How many and who voted how, in the passage of one motion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from clerk.extraction.people import RUN, People, fold, parse
from clerk.extraction.vocabulary import AMBIGUOUS, NOT_NAMES, TITLE_HEADS

Ballot = dict[str, str]  # who: aye, nay, abstain, absent
_KINDS = {"aye": "ayes", "nay": "nays", "abstain": "abstain", "absent": "absent"}


@dataclass
class Count:
    """What a passage says of a vote; `places`: where each member is named."""

    ayes: int | None = None
    nays: int | None = None
    abstain: int | None = None
    absent: int | None = None
    votes: Ballot = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def put(self, kind: str, number: int, over: bool = False) -> None:
        if over or getattr(self, _KINDS[kind]) is None:
            setattr(self, _KINDS[kind], number)

    def cast(self, who: str, kind: str, at: int) -> None:
        if who not in self.votes:
            self.votes[who], self.places[who] = kind, at


_AYE = r"(?:ayes?|yeas?|yes|in favor|for|affirmative)"
_NAY = r"(?:nays?|noes|no|opposed|against|negative)"
_ABSTAIN = r"(?:abstain(?:ed|ing|s)?|abstentions?|recused?)"
_ABSENT = r"(?:absent|excused|not voting|not present)"


def kind_of(word: str) -> str:
    for kind, pattern in (("aye", _AYE), ("nay", _NAY), ("abstain", _ABSTAIN), ("absent", _ABSENT)):
        if re.fullmatch(pattern, word.strip(), re.IGNORECASE):
            return kind
    return "nay" if re.match("dissent|oppos", word, re.IGNORECASE) else "aye"


def count(text: str, people: People) -> Count:
    """All that the passage says."""
    found = Count()
    text = _tables(text, people, found)
    rows = _rows_of_names(text, people) if _VOTE_WORD.search(text) else []
    _labelled(text, people, found)
    _member_by_member(text, rows, people, found)
    _numbers(text, found)
    _dissent(text, rows, people, found)
    _from_names(found)
    return found


def _from_names(found: Count) -> None:
    """Who is named as voting aye is counted; a lone dissenter is no tally."""
    if "aye" in found.votes.values():
        for kind in _KINDS:
            number = sum(vote == kind for vote in found.votes.values())
            if number:
                found.put(kind, number)


# ---- "AYES: Okafor, Quintero", "Nays - None", "Ayes 7", "ABSENT: 1 - Trustee Boateng"

_LABEL = re.compile(
    rf"\b(?:(?P<plural>ayes|noes|nays|yeas)|(?P<word>aye|yes|yea|nay|no|{_ABSTAIN}|{_ABSENT}|in favor|opposed"
    rf"|affirmative|negative))"
    r"(?P<sep>\"?(?: votes?)?[ ]*(?::|-(?= )|,(?= [A-Z])| by(?= )|(?=[ ]\d)|(?=[ ]{2,}[A-Z])|(?=[ ]*\n[ ]*[A-Z])"
    r"|(?= SUPERV| COUNCIL| COMMISS| TRUST| DIRECT)))",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[ ]*\(?(\d{1,4})\)?(?![\d.:]*\d)(?: ?- ?(?=[A-Z])| ?[:,](?= [A-Z][a-z])| )?")
_NUMBER_AFTER = re.compile(r"[ ]*(?:-|\()[ ]*(\d{1,3})\)?(?=[.;,\s]|$)")
_NONE = re.compile(r"[ \n]*(?:none|\(none\)|-0-|n/a)\b", re.IGNORECASE)
_ALL = re.compile(r"[ ]*all\b", re.IGNORECASE)
_GAP = re.compile(
    r"(?:[ ]*\(?(?:chair|absent|excused|remote)\)?)?(?:,? and |, ?|; ?|,?[ ]*\n[ ]*| & )(?:and )?", re.IGNORECASE
)
_NEXT = re.compile(r"[ ]*\n?[ ]*")
_IN_BRACKETS = re.compile(r"[ ]*\((?=[A-Z])")


def _labelled(text: str, people: People, found: Count) -> None:
    end = 0
    for label in _LABEL.finditer(text):
        if label.start() < end or not _is_label(text, label):
            continue
        kind = kind_of(label["plural"] or label["word"])
        if _NONE.match(text, label.end()):
            found.put(kind, 0)
            continue
        if _ALL.match(text, label.end()):
            continue
        end = _list_of(text, label.end(), kind, people, found)


def _is_label(text: str, label: re.Match[str]) -> bool:
    """`yes` and `no` are also what stands behind a name; before a name they begin a line or have a colon."""
    if label["plural"] or ":" in label["sep"]:
        return True
    line = text[max(0, label.start() - 40) : label.start()].rsplit("\n", 1)[-1]
    if not line.strip(' ".,;'):
        return True
    if label["sep"].strip() == "" and text[label.end() : label.end() + 2].strip()[:1].isdigit():
        return True  # "No 97"
    return label["sep"].strip() in {"by"} or (
        label["word"][0].isupper() and line.rstrip()[-1:] in {".", ";"} and label["sep"].strip() in {"-", "by"}
    )


def _list_of(text: str, at: int, kind: str, people: People, found: Count) -> int:
    number = _NUMBER.match(text, at)
    if number:
        found.put(kind, int(number[1]))
        at = number.end()
    bracket = _IN_BRACKETS.match(text, at)
    names, end = names_at(text, bracket.end() if bracket else at, people)
    for who, place in names:
        found.cast(who, kind, place)
    if names and not number:
        after = _NUMBER_AFTER.match(text, end)
        found.put(kind, int(after[1]) if after else len(names))
    return end if names else at


def names_at(text: str, at: int, people: People) -> tuple[list[tuple[str, int]], int]:
    """Names in a row, from here: whom they mean and where they are; and where the row ends."""
    names: list[tuple[str, int]] = []
    start = _NEXT.match(text, at)
    at = start.end() if start else at
    for _ in range(40):
        one = name_at(text, at, people)
        if one is None:
            break
        names.append((one[0], at))
        at = one[1]
        gap = _GAP.match(text, at)
        if gap is None:
            break
        at = gap.end()
    return names, at


def _name_starts(text: str) -> Iterator[int]:
    """Where a name may begin: at a capital letter; among capital letters, after a word that is none."""
    for run in RUN.finditer(text):
        start, after_word = run.start(), True
        for word in run[0].split(" "):
            is_word = fold(word) in NOT_NAMES and fold(word) not in AMBIGUOUS and fold(word) not in TITLE_HEADS
            if after_word and not is_word and word:
                yield start
            after_word = is_word
            start += len(word) + 1


def name_at(text: str, at: int, people: People) -> tuple[str, int] | None:
    """The person whose name begins here, and where it ends: the longest run of words that is somebody known."""
    if text[at : at + 1] in {"'", '"'}:
        at += 1  # a speck before the name
    run = RUN.match(text, at)
    if run is None:
        return None
    words = run[0].split(" ")
    for end in range(len(words), 0, -1):
        part = " ".join(words[:end])
        name = parse(part, whole=True, sure=True)
        if name is None:
            continue
        who = people.resolve(name.text)
        if who is not None:
            return who, at + len(part)
    name = parse(run[0], sure=True)
    if name is None:
        return None
    return people.nearest(name.text) or name.text, at + _end_of(run[0], name.text)


def _end_of(run: str, name: str) -> int:
    last = name.split(" ")[-1].rstrip(".").casefold()
    place = run.casefold().find(last)
    return place + len(last) if place >= 0 else len(run)


# ---- tables

_HEADER_CELL = re.compile(rf"\b(?:{_AYE}|{_NAY}|{_ABSTAIN}|{_ABSENT})\b", re.IGNORECASE)
_HEADER = re.compile(
    r"^[ ]*(?:(?:member|name|director|trustee|commissioner)s?[ ]{2,})?(?:(?:ayes?|yeas?|yes|nays?|noes|no|abstain\w*"
    r"|absent)(?:[ ]{2,}|[ ]*$)){2,}",
    re.I | re.M,
)
_ROW = re.compile(r"\n([ ]*\S[^\n]*)")


def _headers(text: str) -> Iterator[tuple[list[tuple[str, int]], int, int]]:
    """Lines that head a table of votes: the columns, where the line begins, and where the rows begin."""
    for header in _HEADER.finditer(text):
        cells = [(kind_of(c[0]), c.start()) for c in _HEADER_CELL.finditer(header[0])]
        if len(cells) > 1:
            yield cells, header.start(), header.end()


def _rows(text: str, at: int) -> Iterator[tuple[str, int]]:
    if text.startswith("\n\n", at):
        at += 1
    for _ in range(30):
        row = _ROW.match(text, at)
        if row is None:
            return
        yield row[1], row.start(1)
        at = row.end()


_MARK = re.compile(r"(?<= )(?:[xX✓✔*]|[xX]{2})(?= |$)")


def _tables(text: str, people: People, found: Count) -> str:
    """Members with an X under Yes or No, or names under AYES and NAYS. What is left is the text without them."""
    for cells, start, at in list(_headers(text)):
        rows = list(_rows(text, at))
        marked = any(_MARK.search(row) for row, _ in rows)
        end = at
        put = _marked_row if marked else _column_row
        for row, place in rows:
            if not put(row, place, cells, people, text, found):
                break
            end = place + len(row)
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _marked_row(row: str, at: int, cells: list[tuple[str, int]], people: People, text: str, found: Count) -> bool:
    mark = _MARK.search(row)
    one = name_at(text, at + len(row) - len(row.lstrip()), people) if mark else None
    if mark is None or one is None:
        return False
    found.cast(one[0], min(cells, key=lambda cell: abs(cell[1] + 1 - mark.start()))[0], at)
    return True


def _column_row(row: str, at: int, cells: list[tuple[str, int]], people: People, text: str, found: Count) -> bool:
    put = False
    for cell in re.finditer(r"\S+(?: \S+)*", row):
        kind = min(cells, key=lambda one: abs(one[1] - cell.start()))[0]
        one = name_at(text, at + cell.start(), people)
        if re.fullmatch(r"none\.?", cell[0], re.IGNORECASE):
            found.put(kind, 0)
            put = True
        elif one and (people.resolve(one[0]) or not people.has_members):
            found.cast(one[0], kind, at + cell.start())
            put = True
    return put


# ---- "Elliott - yes; Mace - no", "Babcock   Aye", "Yes   Clerk Ruiz", "(Pereira, Whitlock - No)"

_LINE_FIRST = re.compile(
    r"^[ ]*(?P<vote>yes|aye|yea|no|nay|abstain|absent|recused?)[ ]+(?=[A-Z])", re.IGNORECASE | re.MULTILINE
)
_ONE_VOTE = re.compile(
    r"(?:[ ]*\n?-|[ ]*(?:,|:|\.{2,}))?[ ]*\"?(?P<vote>ayes?|yeas?|yes|in favor|nays?|no|opposed|abstain(?:ed|s)?|abstention"
    r"|recused|absent)\b\"?",
    re.IGNORECASE,
)

_VOTE_WORD = re.compile(r"\b(?:ayes?|yeas?|yes|in favor|nays?|no|oppos|dissent|against|abst|recused|absent)", re.IGNORECASE)
_NO_VOTE = re.compile(r"[ ]*:|[ ]+\d|[ ]*-[ ]*(?:[A-Z]|none)| (?=[a-z])(?!and|with|on)")


class _Names(NamedTuple):
    start: int
    names: list[tuple[str, int]]
    end: int


def _rows_of_names(text: str, people: People) -> list[_Names]:
    """Every name of the passage, with those that follow it in a row."""
    rows = (_Names(start, *names_at(text, start, people)) for start in _name_starts(text))
    return [row for row in rows if row.names]


def _member_by_member(text: str, rows: list[_Names], people: People, found: Count) -> None:
    said: list[tuple[str, str, int]] = []
    for line in _LINE_FIRST.finditer(text):
        one = name_at(text, line.end(), people)
        if one:
            said.append((one[0], kind_of(line["vote"]), line.end()))
    end = 0
    for row in rows:
        vote = _ONE_VOTE.match(text, row.end) if row.start >= end else None
        if vote is None or text[row.end : row.end + 1] not in " -,:.\n" or _NO_VOTE.match(text, vote.end()):
            continue
        end = vote.end()
        said += [(who, kind_of(vote["vote"]), place) for who, place in row.names]
    known = [one for one in said if people.resolve(one[0])] if people.has_members else said
    if len(known) > 1:
        for who, kind, place in known:
            found.cast(who, kind, place)


# ---- "4-1", "3 yes, 1 no", "four to one"

_WORDS = {
    word: number
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    )
}
_AMOUNT = r"(?:\d{1,4}|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
_RESULT_WORD = (
    r"(?:carrie[sd]|pass(?:ed|es)|fail(?:ed|s)?|defeated|lost|approved|adopted|denied|granted|tied|voted?|hands|ballot"
    r"|count|roll call"
    r"|unanimous(?:ly)?|motion|tally|ayes|rejected)"
)
_TALLY = re.compile(
    rf"\b{_RESULT_WORD}\b[\"),:;.]?\s*(?:(?:by|on|with|of|was|to|a|an|the|roll|call|vote|votes|following|count|final"
    rf"|recorded|majority|board|council"
    rf"|motion|substitute|:|,|\()\s*){{0,8}}[(\[]?(?P<a>{_AMOUNT})\s?(?:-|to)\s?(?P<b>{_AMOUNT})(?:\s?(?:-|to)\s?(?P<c>\d{{1,3}}))?(?!\s?[-/]?\d)\b",
    re.IGNORECASE,
)
_BARE_TALLY = re.compile(
    r"(?<=[.;)] )(?<!No\. )(?<!Nos\. )\(?(?!0\d)(?P<a>\d{1,2})-(?!0\d)(?P<b>\d{1,2})(?:-(?P<c>\d{1,2}))?\)?(?=[.,;]?"
    r"(?:\s|$))(?! [a-z]{3,} of)|^[ ]*\(?(\d{1,2})-(\d{1,2})(?:-(\d{1,2}))?\)?[.]?$",
    re.M,
)
_COUNTED = re.compile(
    rf"\b(?P<n>{_AMOUNT})\s+(?:voting\s+|votes?\s+(?:in\s+)?)?\"?(?P<word>ayes?|yeas?|yes|in favor|for|nays?|noes|no"
    rf"|opposed|against|abstentions?|abstain(?:ed|ing)?|abstaining|absent)\b",
    re.IGNORECASE,
)


def _amount(text: str) -> int:
    return int(text) if text.isdigit() else _WORDS[text.lower()]


def _numbers(text: str, found: Count) -> None:
    tally = _TALLY.search(text) or _BARE_TALLY.search(text)
    if tally:
        a, b, c = tally.groups()[:3] if tally["a"] else tally.groups()[3:]
        found.put("aye", _amount(a), over=True)
        found.put("nay", _amount(b), over=True)
        if c is not None:
            found.put("abstain", _amount(c), over=True)
        return
    for one in _COUNTED.finditer(text):
        found.put(kind_of(one["word"]), _amount(one["n"]))


# ---- "(Lee dissenting)", "with Wilson voting against", "Ms. Pomeroy opposed", "except Mr. Seyler, who voted nay"

_DISSENT = re.compile(
    r"(?P<gap>[ ]*,?[ ]*(?:who |both |having )?-?[ ]*)(?:(?:vot(?:ing|ed)|was|were) (?:in )?)?[\"]?(?P<word>no|nay"
    r"|nays|against|opposition|aye|yes|dissent(?:ing|ed|s)?|oppos(?:ed|ing)|abstain(?:ing|ed|s)?|absent|recused)\b"
    r"(?=[\"]?[ ]*(?:[).,;\n]|$|and |the motion|from voting|to |to the motion|on the))",
    re.IGNORECASE,
)
_AFTER_RESULT = re.compile(rf"\b{_RESULT_WORD}\b|\d ?- ?\d|\bvote\b|\b\d to \d|\baye\b", re.IGNORECASE)
_COUNT_NAMES = re.compile(r"\b(?:no|nays?|noes|opposed|against)(?: votes?)?[ ]*\((?=[A-Z])", re.IGNORECASE)


def _dissent(text: str, rows: list[_Names], people: People, found: Count) -> None:
    after = _AFTER_RESULT.search(text)
    if after is None:
        return
    end = after.start()
    for row in rows:
        word = _DISSENT.match(text, row.end) if row.start >= end else None
        if word is None:
            continue
        end = word.end()
        for who, place in row.names:
            if people.resolve(who) or not people.has_members:
                found.cast(who, _kind_of_dissent(word["word"]), place)
    for counted in _COUNT_NAMES.finditer(text, after.start()):
        for who, place in names_at(text, counted.end(), people)[0]:
            if people.resolve(who):
                found.cast(who, "nay", place)


def _kind_of_dissent(word: str) -> str:
    word = word.lower()
    if word.startswith("abst") or word == "recused":
        return "abstain"
    return "absent" if word == "absent" else "aye" if word in {"aye", "yes"} else "nay"
