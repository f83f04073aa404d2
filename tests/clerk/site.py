"""A small site for tests: text, caches and PDFs as the stages before leave them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from clerk import storage
from clerk.storage import Document, SiteFiles

COUNCIL = Document("minutes", "CityCouncil", "2026-01-06")
PARKS = Document("minutes", "ParksAndRecreation", "2026-02-10")
AGENDA = Document("agendas", "CityCouncil", "2026-01-06")

CACHE: dict[str, Any] = {
    "sha256": "…",
    "entities": {
        "persons": [{"text": "Ada Lovelace", "confidence": 0.95}, {"text": "Ben Okri", "confidence": 0.8}],
        "orgs": [{"text": "Planning Commission", "confidence": 0.9}],
        "locations": [],
    },
    "votes": {
        "votes": [
            {
                "motion_by": "Ada Lovelace",
                "seconded_by": None,
                "result": "passed",
                "tally": {"ayes": 2, "nays": 0, "abstain": None, "absent": None},
                "individual_votes": [{"name": "Ada Lovelace", "vote": "aye"}, {"name": "Ben Okri", "vote": "aye"}],
                "raw_text": "Motion carried 2-0.",
            }
        ]
    },
}


def write_pages(files: SiteFiles, document: Document, *texts: str) -> None:
    files.text(document).mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts, 1):
        (files.text(document) / f"{number}.txt").write_text(text, encoding="utf-8")


def write_cache(files: SiteFiles, document: Document, page: int, content: object = CACHE) -> None:
    data = content if isinstance(content, bytes) else orjson.dumps(content)
    (files.text(document) / f"{page}.txt.extracted.json").write_bytes(data)


def write_pdf(files: SiteFiles, document: Document, content: bytes = b"%PDF-1.4 small") -> Path:
    """As a fetch does it: what is published may be the same file under another name, so it is never written into."""
    storage.write(files.pdf(document), content)
    return files.pdf(document)


def query(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return db.execute(sql, values).fetchall()


def search(path: Path, word: str, kind: str = "minutes") -> list[tuple[str, str, int]]:
    """As Datasette does it: rows whose rowid the index says."""
    matching = f"SELECT rowid FROM {kind}_fts WHERE {kind}_fts MATCH ?"
    return query(path, f"SELECT meeting, date, page FROM {kind} WHERE rowid IN ({matching}) ORDER BY date, page", word)


def assert_sound(path: Path) -> None:
    """Opens, is whole, and its indexes say what its text says; without writing to it, or beside it."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(path.read_bytes())
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA schema_version").fetchone() != (0,)
        for kind in ("minutes", "agendas"):
            db.execute(f"INSERT INTO {kind}_fts ({kind}_fts, rank) VALUES ('integrity-check', 1)")
