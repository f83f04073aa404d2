"""The pages of a site as they are on disk: text, and what was extracted from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from clerk.errors import Transient
from clerk.names import Kind
from clerk.parts import Entities, Entity, Extracted, MemberVote, Tally, Vote
from clerk.storage import Document, SiteFiles

_DIGITS = 12  # of the SHA-256; published links have that many
_MORE_DIGITS = 24  # for the second of two pages whose first digits are the same
_KIND_IN_ID = {"minutes": "minutes", "agendas": "agenda"}  # in the links that exist it is in the singular
_MOST_VOTES = 10**6
_CACHE = ".extracted.json"
_NOTHING = Extracted({"persons": [], "orgs": [], "locations": []}, {"votes": []})
_as_json = json.JSONEncoder(sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Page:
    document: Document
    number: int
    text: str
    extracted: Extracted

    @property
    def image(self) -> str:
        tree = "/_agendas" if self.document.kind == "agendas" else ""
        return f"{tree}/{self.document.meeting}/{self.document.date}/{self.number}.png"

    def ids(self) -> tuple[str, str]:
        """What it is known by, and what it would be known by if another page had that."""
        digest = _digest(self.document, self.number, self.text)
        return digest[:_DIGITS], digest[:_MORE_DIGITS]


def page_id(kind: Kind, meeting: str, date: str, page: int, text: str) -> str:
    """The key of a page: the same as long as its text is the same, so that links to it survive."""
    return _digest(Document(kind, meeting, date), page, text)[:_DIGITS]


def _digest(document: Document, page: int, text: str) -> str:
    known_by = {
        "kind": _KIND_IN_ID[document.kind],
        "meeting": document.meeting,
        "date": document.date,
        "page": page,
        "text": text,
    }
    return hashlib.sha256(_as_json(known_by).encode()).hexdigest()


def pages(files: SiteFiles, kind: Kind) -> Iterator[Page]:
    """By meeting, date and number; one at a time is in memory."""
    for document in files.documents(kind):
        caches = {path.name for path in files.text(document).glob("*" + _CACHE)}
        for path in files.pages(document):
            cached = path.name + _CACHE in caches  # asked once for all: a failing open for each page is slow
            yield Page(document, int(path.stem), _text(path), extraction(path) if cached else _NOTHING)


def _text(path: Path) -> str:
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        raise Transient(f"{path} went while it was compiled; compile again") from None
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")  # SQLite's text ends at a NUL


def extraction(page: Path) -> Extracted:
    """What the cache beside a page says. None, or one that cannot be read: nothing was found."""
    try:
        cache = orjson.loads(page.with_name(page.name + _CACHE).read_bytes())
        return Extracted(_entities(cache["entities"]), {"votes": [_vote(vote) for vote in cache["votes"]["votes"]]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _NOTHING


def _entities(given: dict[str, Any]) -> Entities:
    def some(of: str) -> list[Entity]:
        return [{"text": _line(one["text"]), "confidence": float(one["confidence"])} for one in given[of]]

    return {"persons": some("persons"), "orgs": some("orgs"), "locations": some("locations")}


def _vote(given: dict[str, Any]) -> Vote:
    tally = given["tally"]
    members: list[MemberVote] = [
        {"name": _line(one["name"]), "vote": _line(one["vote"])} for one in given["individual_votes"]
    ]
    counted: Tally = {
        "ayes": _count(tally["ayes"]),
        "nays": _count(tally["nays"]),
        "abstain": _count(tally["abstain"]),
        "absent": _count(tally["absent"]),
    }
    return {
        "motion_by": None if given["motion_by"] is None else _line(given["motion_by"]),
        "seconded_by": None if given["seconded_by"] is None else _line(given["seconded_by"]),
        "result": _line(given["result"]),
        "tally": counted,
        "individual_votes": members,
        "raw_text": _line(given["raw_text"]),
    }


def _line(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given.replace("\0", "")


def _count(given: Any) -> int | None:
    if given is None:
        return None
    if type(given) is not int or not 0 <= given <= _MOST_VOTES:
        raise ValueError
    return given
