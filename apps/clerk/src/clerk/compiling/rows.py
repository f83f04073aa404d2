"""A page and what was extracted from it, as rows."""

from __future__ import annotations

import sqlite3
from typing import Any

import orjson

from clerk.compiling.pages import Page
from clerk.names import Kind
from clerk.parts import Extracted, Vote


def insert_page(db: sqlite3.Connection, page: Page) -> str | None:
    """Its key; none if that very page is there, as when `1.txt` and `01.txt` say the same."""
    entities, votes = as_json(page.extracted)
    rest = (page.document.meeting, page.document.date, page.number, page.text, page.image, entities, votes)
    insert = f"INSERT OR IGNORE INTO {page.document.kind} VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    for key in page.ids():
        if db.execute(insert, (key, *rest)).rowcount:
            return key
        if _is_there(db, key, page):
            return None
    return None


def find_page(db: sqlite3.Connection, page: Page) -> str | None:
    """The key under which that page is there."""
    return next((key for key in page.ids() if _is_there(db, key, page)), None)


def _is_there(db: sqlite3.Connection, key: str, page: Page) -> bool:
    found = db.execute(f"SELECT meeting, date, page, text FROM {page.document.kind} WHERE id = ?", (key,)).fetchone()
    return bool(found == (page.document.meeting, page.document.date, page.number, page.text))


def as_json(extracted: Extracted) -> tuple[str, str]:
    return orjson.dumps(extracted.entities).decode(), orjson.dumps(extracted.votes).decode()


def insert_extracted(db: sqlite3.Connection, kind: Kind, key: str, extracted: Extracted) -> None:
    named = {
        "person": extracted.entities["persons"],
        "org": extracted.entities["orgs"],
        "location": extracted.entities["locations"],
    }
    db.executemany(
        f"INSERT INTO entities ({kind}_id, kind, text, confidence) VALUES (?, ?, ?, ?)",
        [(key, what, one["text"], one["confidence"]) for what, some in named.items() for one in some],
    )
    for number, vote in enumerate(extracted.votes["votes"], 1):
        _insert_vote(db, kind, key, f"{key}-{number}", vote)


def _insert_vote(db: sqlite3.Connection, kind: Kind, key: str, vote_key: str, vote: Vote) -> None:
    tally = vote["tally"]
    values: tuple[Any, ...] = (
        vote_key,
        key,
        vote["motion_by"],
        vote["seconded_by"],
        vote["result"],
        *(tally["ayes"], tally["nays"], tally["abstain"], tally["absent"]),
        vote["raw_text"],
    )
    db.execute(
        f"INSERT INTO votes (id, {kind}_id, motion_by, seconded_by, result, ayes, nays, abstain, absent, raw_text)"
        f" VALUES ({', '.join('?' * len(values))})",
        values,
    )
    members = [(vote_key, one["name"], one["vote"]) for one in vote["individual_votes"]]
    db.executemany("INSERT INTO vote_members (vote_id, name, vote) VALUES (?, ?, ?)", members)


def replace_extracted(db: sqlite3.Connection, kind: Kind, key: str, extracted: Extracted) -> None:
    db.execute(f"UPDATE {kind} SET entities_json = ?, votes_json = ? WHERE id = ?", (*as_json(extracted), key))
    db.execute(f"DELETE FROM vote_members WHERE vote_id IN (SELECT id FROM votes WHERE {kind}_id = ?)", (key,))
    db.execute(f"DELETE FROM votes WHERE {kind}_id = ?", (key,))
    db.execute(f"DELETE FROM entities WHERE {kind}_id = ?", (key,))
    insert_extracted(db, kind, key, extracted)
