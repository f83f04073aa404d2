"""Minutes and agendas of the demonstration's municipalities, the same for the same seed, and the truth about them: which
words and which votes are on which page."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Final, Literal

from clerk.demo.matters import COMMENTS, CONSENT, DEPARTMENTS, FIRMS, MATTERS, RARE, REMARKS, REPORTS, RESIDENTS, Matter
from clerk.demo.towns import Body, Member, Style, Town
from clerk.names import Kind
from clerk.parts import MemberVote, Tally, Vote

COLUMNS: Final = 80  # characters in a line
_VOTES: Final = ("aye", "nay", "abstain", "absent")
LINES: Final = 40  # on a page, its foot not counted

Look = Literal["title", "heading", "plain", "foot"]


@dataclass(frozen=True)
class Line:
    text: str
    look: Look = "plain"


@dataclass(frozen=True)
class Page:
    lines: tuple[Line, ...]
    votes: tuple[Vote, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    def has(self, word: str) -> bool:
        return word.lower() in self.text.lower()


@dataclass(frozen=True)
class Block:
    """Lines that stay together on a page, so that a vote is on one page and the truth about it is simple."""

    lines: tuple[Line, ...]
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True)
class Meeting:
    town: Town
    body: Body
    day: date

    @property
    def said_date(self) -> str:
        return f"{self.day:%B} {self.day.day}, {self.day.year}"


def minutes(meeting: Meeting, seed: int, pages: int, rare: str | None = None, topic: str | None = None) -> tuple[Page, ...]:
    """The minutes of a meeting: exactly that many pages. `rare`: a word of `matters.RARE`, which is on one of them."""
    return _Session(meeting, seed).minutes(pages, rare, topic or meeting.body.topic)


def agenda(meeting: Meeting, seed: int, pages: int = 1) -> tuple[Page, ...]:
    """What was announced: the matters, no votes."""
    return _Session(meeting, seed).agenda(pages)


def prose(seed: int, words: int) -> str:
    """That many words in sentences as minutes have them, for pages of a given size."""
    rng = Random(f"prose/{seed}")
    found: list[str] = []
    while len(found) < words:
        report = rng.choice(MATTERS["council"] + MATTERS["planning"]).report
        found += _filled(rng, report, street="Cooper Street").split()
    return " ".join(found[:words])


def wrapped(text: str) -> tuple[Line, ...]:
    return tuple(Line(part) for part in textwrap.wrap(text, COLUMNS, break_long_words=False, break_on_hyphens=False))


def _filled(rng: Random, template: str, **known: str) -> str:
    values = {
        "number": str(rng.randint(12, 990)),
        "amount": f"${rng.randint(18, 940)},{rng.randint(0, 999):03}",
        "percent": str(rng.randint(11, 48)),
        "days": str(rng.randint(2, 18) * 5),
        "firm": rng.choice(FIRMS),
        "person": rng.choice(RESIDENTS),
        "resolution": f"{rng.randint(1, 99):03}",
        "ordinance": str(rng.randint(1200, 1499)),
        "parcel": f"{rng.randint(10, 99)}-{rng.randint(100, 999)}",
        "department": rng.choice(DEPARTMENTS),
    }
    return template.format_map({**values, **known})


class _Session:
    """One meeting, while its papers are written."""

    def __init__(self, meeting: Meeting, seed: int) -> None:
        self.town, self.body, self.meeting = meeting.town, meeting.body, meeting
        self.rng = Random(f"{seed}/{meeting.town.subdomain}/{meeting.body.name}/{meeting.day}")
        late = self.rng.choice(self.body.members[1:]) if self.rng.random() < 0.5 else None
        self.absent = tuple(member for member in self.body.members if member is late)
        self.present = tuple(member for member in self.body.members if member is not late)

    # ---- the papers

    def minutes(self, pages: int, rare: str | None, topic: str) -> tuple[Page, ...]:
        blocks, closing = [*self._opening("minutes"), *self._roll_call(), *self._routine()], list(self._closing())
        subjects, number = self._subjects(topic), 4
        reached = len(_paged(blocks + closing))
        while reached <= pages:
            before, special = blocks, rare is not None and reached > pages // 2
            if rare and special:
                item = [_joined(self._item(number, RARE[rare]))]  # report and vote on one page: what a search then shows
                rare = None
            else:
                item = self._item(number, next(subjects))
            blocks, number = [*blocks, *item], number + 1
            reached = len(_paged(blocks + closing))
        if number == 4 or special or rare:
            raise ValueError(f"{pages} pages are too few for minutes of {self.body.name}")
        return self._with_feet(_paged(before + closing), "minutes")

    def agenda(self, pages: int) -> tuple[Page, ...]:
        blocks = list(self._opening("agendas"))
        for number, heading in enumerate(("Call to Order and Roll Call", "Public Comment", "Consent Calendar"), 1):
            blocks.append(_block("", Line(f"{number}. {heading}", "heading")))
        blocks += [_block(f"- {self._fill(text)}") for text in self.rng.sample(CONSENT, 4)]
        subjects, number = self._subjects(self.body.topic), 4
        while True:
            matter = self._fill_matter(next(subjects))
            motion = matter.motion.removeprefix("to ")
            item = _block(
                "", Line(f"{number}. {matter.heading}", "heading"), matter.report, f"Recommended action: {motion}."
            )
            if len(_paged([*blocks, item])) > pages:
                return self._with_feet(_paged(blocks), "agendas")
            blocks.append(item)
            number += 1

    def _with_feet(self, pages: Sequence[Page], kind: Kind) -> tuple[Page, ...]:
        what = "Minutes" if kind == "minutes" else "Agenda"
        name = f"{self.body.name} {what}, {self.meeting.said_date}"
        feet = (Line(f"{name} - Page {number} of {len(pages)}", "foot") for number in range(1, len(pages) + 1))
        return tuple(Page((*page.lines, foot), page.votes) for page, foot in zip(pages, feet, strict=True))

    # ---- their parts

    def _opening(self, kind: Kind) -> Iterator[Block]:
        what = "MINUTES" if kind == "minutes" else "AGENDA"
        day = self.meeting.day
        yield _block(
            Line(self.town.name.upper(), "title"),
            Line(f"{self.body.name.upper()} {what}", "title"),
            Line(f"Regular Meeting of {day:%A}, {self.meeting.said_date}, {self.body.time}", "title"),
            Line(self.body.place, "title"),
        )

    def _roll_call(self) -> Iterator[Block]:
        chair, clerk = self.body.members[0], self.town.staff[-1]
        absent = f"Absent: {', '.join(member.full for member in self.absent)}." if self.absent else "Absent: None."
        yield _block(
            "",
            Line("1. Call to Order and Roll Call", "heading"),
            f"{chair.full} called the meeting to order at {self.body.time}",
            f"Present: {', '.join(member.full for member in self.present)}.",
            absent,
            f"Staff present: {', '.join(self.town.staff)}.",
            f"{clerk} recorded the minutes.",
        )

    def _routine(self) -> Iterator[Block]:
        yield _block("", Line("2. Public Comment", "heading"))
        for person, what in zip(self.rng.sample(RESIDENTS, 3), self.rng.sample(COMMENTS, 3), strict=True):
            yield _block(f"{person}, {self.rng.randint(12, 990)} {self.rng.choice(self.town.streets)}, {what}.")
        yield _block("", Line("3. Consent Calendar", "heading"))
        for letter, item in zip("abcd", self.rng.sample(CONSENT, 4), strict=True):
            yield _block(f"{letter}. {self._fill(item)}")
        yield self._vote("to approve the consent calendar and the minutes of the previous meeting", in_one_voice=True)

    def _item(self, number: int, matter: Matter) -> list[Block]:
        matter = self._fill_matter(matter)
        speaker = self.rng.choice(self.town.staff[:-1])
        blocks = [
            _block(
                "", Line(f"{number}. {matter.heading}", "heading"), f"{speaker} presented the staff report. {matter.report}"
            )
        ]
        members = self.rng.sample(self.present, self.rng.randint(1, 2))
        for member, remark in zip(members, self.rng.sample(REMARKS, len(members)), strict=True):
            blocks.append(_block(f"{member.short} {remark}."))
        if self.rng.random() < 0.5:
            person, street = self.rng.choice(RESIDENTS), self.rng.choice(self.town.streets)
            side = self.rng.choice(("in favor", "against it", "with questions about the cost"))
            blocks.append(_block(f"{person}, {self.rng.randint(12, 990)} {street}, spoke {side}."))
        return [*blocks, self._vote(matter.motion)]

    def _closing(self) -> Iterator[Block]:
        reports = [self._fill(text) for text in self.rng.sample(REPORTS, 2)]
        hour = f"{self.rng.randint(8, 10)}:{self.rng.randint(10, 59)} p.m."
        yield _block("", Line("Reports and Announcements", "heading"), *reports)
        yield _block(
            "",
            Line("Adjournment", "heading"),
            f"There being no further business, {self.body.members[0].short} adjourned the meeting at {hour}",
            "",
            f"Respectfully submitted, {self.town.staff[-1]}",
        )

    def _subjects(self, topic: str) -> Iterator[Matter]:
        while True:
            yield from self.rng.sample(MATTERS[topic], len(MATTERS[topic]))

    # ---- filling in

    def _fill(self, template: str) -> str:
        known = {"street": self.rng.choice(self.town.streets), "staff": self.rng.choice(self.town.staff)}
        if self.town.schools:
            known["school"] = self.rng.choice(self.town.schools)
        return _filled(self.rng, template, **known)

    def _fill_matter(self, matter: Matter) -> Matter:
        """One filling for all three texts, so that the firm that is reported on is the one that gets the contract."""
        heading, report, motion = self._fill("\n".join((matter.heading, matter.report, matter.motion))).split("\n")
        return Matter(heading, report, motion)

    # ---- votes

    def _vote(self, motion: str, in_one_voice: bool = False) -> Block:
        mover, second = self.rng.sample(self.present[1:], 2)
        if in_one_voice:
            return _voice_vote(mover, second, motion)
        others = [member for member in self.present if member not in (mover, second)]
        cast = {mover: "aye", second: "aye"}
        weights = self.rng.choice(((1, 0, 0), (6, 1, 1), (4, 3, 0), (1, 6, 0)))
        cast.update({member: self.rng.choices(("aye", "nay", "abstain"), weights)[0] for member in others})
        cast.update(dict.fromkeys(self.absent, "absent"))
        return _STYLES[self.body.style](_Cast(mover, second, motion, {member: cast[member] for member in self.body.members}))


@dataclass(frozen=True)
class _Cast:
    """A vote as it was cast."""

    mover: Member
    second: Member
    motion: str
    votes: dict[Member, str]

    def by(self, vote: str) -> list[Member]:
        return [member for member, cast in self.votes.items() if cast == vote]

    @property
    def ayes(self) -> int:
        return len(self.by("aye"))

    @property
    def nays(self) -> int:
        return len(self.by("nay"))

    @property
    def passed(self) -> bool:
        return self.ayes > self.nays

    def lists(self, titles: Sequence[str]) -> list[tuple[str, list[Member]]]:
        return [(title, self.by(vote)) for title, vote in zip(titles, _VOTES, strict=True)]

    def truth(self, lines: Sequence[str], named: Collection[str] = _VOTES) -> Vote:
        """`named`: the votes whose members the clerk there writes down. What is not written is not in the truth."""
        abstain = len(self.by("abstain")) if self.by("abstain") or named == _VOTES else None
        return Vote(
            motion_by=self.mover.name,
            seconded_by=self.second.name,
            result="passed" if self.passed else "failed",
            tally=Tally(
                ayes=self.ayes,
                nays=self.nays,
                abstain=abstain,
                absent=len(self.by("absent")) if "absent" in named else None,
            ),
            individual_votes=[MemberVote(name=m.name, vote=vote) for m, vote in self.votes.items() if vote in named],
            raw_text="\n".join(lines),
        )


def _in_columns(cast: _Cast) -> Block:
    lines = [
        f"Moved by {cast.mover.short}, seconded by {cast.second.short}, {cast.motion}.",
        *(f"{title}: {_lasts(members)}" for title, members in cast.lists(("AYES", "NOES", "ABSTAIN", "ABSENT"))),
        f"The motion {'carried' if cast.passed else 'failed'} {cast.ayes}-{cast.nays}.",
    ]
    return _block(*lines, votes=(cast.truth(lines),))


def _in_a_sentence(cast: _Cast) -> Block:
    opposed, abstaining = cast.by("nay"), cast.by("abstain")
    parts = [f"{cast.ayes} in favor", f"{len(opposed)} opposed" + (f" ({_lasts(opposed)})" if opposed else "")]
    if abstaining:
        parts.append(f"{len(abstaining)} abstaining ({_lasts(abstaining)})")
    lines = [
        f"{cast.mover.short} moved {cast.motion}. The motion was seconded by {cast.second.short}.",
        f"Vote: {', '.join(parts)}. Motion {'passed' if cast.passed else 'failed'}.",
    ]
    return _block(*lines, votes=(cast.truth(lines, ("nay", "abstain")),))


def _counted(cast: _Cast) -> Block:
    lists = cast.lists(("Ayes", "Nays", "Abstain", "Absent"))
    parts = [f"{title} {len(members)}" + (f" ({_lasts(members)})" if members else "") for title, members in lists]
    lines = [
        f"On motion of {cast.mover.short}, seconded by {cast.second.short}, it was moved {cast.motion}.",
        f"Roll call: {', '.join(parts)}. Motion {'carried' if cast.passed else 'defeated'}.",
    ]
    return _block(*lines, votes=(cast.truth(lines),))


def _called(cast: _Cast) -> Block:
    calls = "; ".join(f"{member.last} - {vote}" for member, vote in cast.votes.items())
    lines = [
        f"It was moved by {cast.mover.short} and seconded by {cast.second.short} {cast.motion}.",
        f"Roll call vote: {calls}. The motion {'passed' if cast.passed else 'failed'} {cast.ayes}-{cast.nays}.",
    ]
    return _block(*lines, votes=(cast.truth(lines),))


_STYLES: Final[dict[Style, Callable[[_Cast], Block]]] = {
    "columns": _in_columns,
    "sentence": _in_a_sentence,
    "counted": _counted,
    "called": _called,
}


def _voice_vote(mover: Member, second: Member, motion: str) -> Block:
    """Nobody is counted."""
    text = f"{mover.short} moved {motion}. {second.short} seconded. The motion passed unanimously by voice vote."
    vote = Vote(
        motion_by=mover.name,
        seconded_by=second.name,
        result="passed",
        tally=Tally(ayes=None, nays=None, abstain=None, absent=None),
        individual_votes=[],
        raw_text=text,
    )
    return _block(text, votes=(vote,))


def _lasts(members: Sequence[Member]) -> str:
    return ", ".join(member.last for member in members) or "None"


# ---- laying out


def _block(*parts: str | Line, votes: tuple[Vote, ...] = ()) -> Block:
    """Each text becomes a paragraph, "" an empty line."""
    lines: list[Line] = []
    for part in parts:
        lines += [part] if isinstance(part, Line) else wrapped(part) or [Line("")]
    return Block(tuple(lines), votes)


def _joined(blocks: Sequence[Block]) -> Block:
    return Block(
        tuple(line for block in blocks for line in block.lines), tuple(vote for block in blocks for vote in block.votes)
    )


def _paged(blocks: Sequence[Block]) -> list[Page]:
    pages: list[list[Block]] = [[]]
    used = 0
    for block in blocks:
        if used + len(block.lines) > LINES:
            pages.append([])
            used = 0
        pages[-1].append(block)
        used += len(block.lines)
    whole = [_joined(page) for page in pages]
    return [Page(_stripped(block.lines), block.votes) for block in whole]


def _stripped(lines: Sequence[Line]) -> tuple[Line, ...]:
    """A page does not begin with an empty line."""
    return tuple(lines[1:] if lines and not lines[0].text else lines)
