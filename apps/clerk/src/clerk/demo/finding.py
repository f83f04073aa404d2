"""What the compiled database of a site knows: the pages with a word, and the votes on them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clerk.errors import ClerkError
from clerk.names import KINDS, Kind
from clerk.parts import Vote

MARKS: Final = ("\x02", "\x03")  # around the word in an excerpt; no text has them


@dataclass(frozen=True)
class Hit:
    kind: Kind
    meeting: str
    date: str
    page: int
    excerpt: str  # around the word, which is between MARKS
    votes: tuple[Vote, ...]  # those on that page


# The excerpt is of whichever column the word is in; 24 words are two lines of a terminal.
_QUERIES: Final = {
    kind: f"""
        SELECT p.meeting, p.date, p.page, snippet({kind}_fts, -1, ?, ?, ' … ', 24), p.votes_json
        FROM {kind}_fts JOIN {kind} AS p ON p.rowid = {kind}_fts.rowid
        WHERE {kind}_fts MATCH ? ORDER BY bm25({kind}_fts), p.date, p.page LIMIT ?
    """  # noqa: S608  # kind is one of two words
    for kind in KINDS
}


def search(database: Path, word: str, limit: int = 10) -> list[Hit]:
    """The pages that have the word (or words, as a phrase), minutes first, the best first."""
    phrase = '"' + word.replace('"', '""') + '"'
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return [
                Hit(kind, meeting, date, page, " ".join(excerpt.split()), _votes(votes))
                for kind in KINDS
                for meeting, date, page, excerpt, votes in connection.execute(_QUERIES[kind], (*MARKS, phrase, limit))
            ][:limit]
    except sqlite3.Error as error:
        raise ClerkError(f"{database} cannot be searched: {error}; `clerk update` compiles it anew") from error


def _votes(text: str | None) -> tuple[Vote, ...]:
    return tuple(json.loads(text or "{}").get("votes", ()))
