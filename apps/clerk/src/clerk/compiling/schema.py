"""The tables that Datasette shows: pages, what was extracted from them, and the full-text indexes.

The database of all sites has the same tables with `subdomain` before every key: the same blank page of the same meeting
exists in more than one town.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from clerk.errors import ClerkError
from clerk.names import KINDS

PAGE_COLUMNS = ("id", "meeting", "date", "page", "text", "page_image", "entities_json", "votes_json")
NO_ENTITIES, NO_VOTES = '{"persons":[],"orgs":[],"locations":[]}', '{"votes":[]}'
_BUILDING, _AT_REST = 32 * 2**20, 2**20  # bytes of an index in memory before they are written: the more, the faster


def create_tables(db: sqlite3.Connection, all_sites: bool = False) -> None:
    for statement in _tables(all_sites):
        db.execute(statement)


def finish(db: sqlite3.Connection) -> None:
    """Indexes are made at the end, which costs a fraction of keeping them while rows come."""
    for statement in _indexes():
        db.execute(statement)
    for kind in KINDS:
        tell = f"INSERT INTO {kind}_fts ({kind}_fts, rank) VALUES (?, ?)"
        for order, value in (("hashsize", _BUILDING), ("rebuild", None), ("optimize", None), ("hashsize", _AT_REST)):
            db.execute(tell, (order, value))


def check(db: sqlite3.Connection) -> None:
    """Raises unless every page, row, reference and index entry is where it belongs."""
    wrong = [text for (text,) in db.execute("PRAGMA integrity_check(5)") if text != "ok"]
    wrong += [
        f"a row of {table} refers to nothing in {parent}" for table, _, parent, _ in db.execute("PRAGMA foreign_key_check")
    ]
    if wrong:
        raise ClerkError(f"the database that was built is broken and was thrown away: {'; '.join(wrong[:5])}")
    for kind in KINDS:
        try:  # 1: against the text, not only within itself
            db.execute(f"INSERT INTO {kind}_fts ({kind}_fts, rank) VALUES ('integrity-check', 1)")
        except sqlite3.DatabaseError as error:
            raise ClerkError(
                f"the full-text index of {kind} that was built is broken and was thrown away: {error}"
            ) from error


def _tables(all_sites: bool) -> Iterator[str]:
    site = "subdomain TEXT NOT NULL, " if all_sites else ""
    key = "subdomain, " if all_sites else ""
    of_page = (
        f"minutes_id TEXT, agendas_id TEXT, FOREIGN KEY ({key}minutes_id) REFERENCES minutes ({key}id),"
        f" FOREIGN KEY ({key}agendas_id) REFERENCES agendas ({key}id),"
        " CHECK ((minutes_id IS NULL) <> (agendas_id IS NULL))"
    )
    for kind in KINDS:
        yield (
            f"CREATE TABLE {kind} ({site}id TEXT NOT NULL, meeting TEXT NOT NULL, date TEXT NOT NULL,"
            " page INTEGER NOT NULL, text TEXT NOT NULL, page_image TEXT NOT NULL, entities_json TEXT NOT NULL,"
            f" votes_json TEXT NOT NULL, PRIMARY KEY ({key}id))"
        )
        yield (
            f"CREATE VIRTUAL TABLE {kind}_fts USING FTS5"
            f" (text, content=[{kind}], tokenize='porter unicode61 remove_diacritics 2')"
        )
    yield (
        f"CREATE TABLE entities (id INTEGER PRIMARY KEY, {site}kind TEXT NOT NULL, text TEXT NOT NULL,"
        f" confidence REAL NOT NULL, {of_page}, CHECK (kind IN ('person', 'org', 'location')))"
    )
    yield (
        f"CREATE TABLE votes ({site}id TEXT NOT NULL, motion_by TEXT, seconded_by TEXT, result TEXT NOT NULL,"
        " ayes INTEGER, nays INTEGER, abstain INTEGER, absent INTEGER, raw_text TEXT NOT NULL,"
        f" {of_page}, PRIMARY KEY ({key}id))"
    )
    yield (
        f"CREATE TABLE vote_members (id INTEGER PRIMARY KEY, {site}vote_id TEXT NOT NULL, name TEXT NOT NULL,"
        f" vote TEXT NOT NULL, FOREIGN KEY ({key}vote_id) REFERENCES votes ({key}id))"
    )


def _indexes() -> Iterator[str]:
    for kind in KINDS:
        yield f"CREATE INDEX {kind}_by_date ON {kind} (date, meeting, page)"
        yield f"CREATE INDEX entities_of_{kind} ON entities ({kind}_id) WHERE {kind}_id IS NOT NULL"
        yield f"CREATE INDEX votes_of_{kind} ON votes ({kind}_id) WHERE {kind}_id IS NOT NULL"
    yield "CREATE INDEX entities_by_text ON entities (text)"
    yield "CREATE INDEX members_of_votes ON vote_members (vote_id)"
    yield "CREATE INDEX votes_of_members ON vote_members (name)"
