"""What is known of the documents of a site, and which of them are to be read in this run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert as insert_on_postgres
from sqlalchemy.dialects.sqlite import insert as insert_on_sqlite

from clerk.db import tables
from clerk.parts import Fetched, Found, Known
from clerk.pipeline.outcomes import kept, note_change
from clerk.pipeline.working import Work
from clerk.storage import Document

Item = tuple[str, dict[str, Any]]
Row = Mapping[str, Any]
_BLANK = {"pages": 0, "page_errors": "{}"}  # of a new row; else nothing


@dataclass
class Book:
    """The rows of a site's documents, as they were when this pass began and with what it has changed. Changes are in the
    database after `write`, which comes before an item is given away."""

    work: Work
    backend: str  # that reads what is new
    retry_failed: bool = False
    rows: dict[str, Row] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # that this pass has dealt with
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("listed", "new", "missing", "failed_before"), 0))
    notes_all: bool = False  # also what is as it was, so that a pass that is cut off need not ask for it again
    noted: int = 0  # so many that need not be asked for again in this run
    _unwritten: list[tuple[Row, Row]] = field(default_factory=list)

    @classmethod
    def of(cls, work: Work, backend: str, retry_failed: bool) -> Book:
        known = select(tables.document).where(tables.document.c.subdomain == work.subdomain)
        with work.ctx.transaction() as connection:
            rows: dict[str, Row] = {row["key"]: dict(row) for row in connection.execute(known).mappings()}
        return cls(work, backend, retry_failed, rows)

    @property
    def keys(self) -> dict[str, str]:
        """The document of each URL."""
        return {row["url"]: key for key, row in self.rows.items() if row["url"]}

    @property
    def minutes(self) -> set[tuple[str, str]]:
        """The meetings and days that there are minutes of."""
        here = (row for row in self.rows.values() if row["kind"] == "minutes" and row["sha256"] is not None)
        return {(row["meeting"], row["date"][:10]) for row in here}

    def known(self, document: Document) -> Known | None:
        """What a source may be asked about: only what is still here, or was read to the end."""
        row = self.rows.get(document.key)
        if row is None or row["sha256"] is None:
            return None
        files = self.work.files
        is_here = files.source(document) is not None or files.finished(document) == row["sha256"]
        return Known(row["sha256"], row["etag"], row["modified"]) if is_here else None

    def had(self, document: Document) -> bool:
        """Whether an earlier attempt of this run brought it: then there is nothing to ask."""
        row = self.rows.get(document.key)
        return row is not None and row["run_id"] == self.work.run and document.key not in self.seen

    def owed(self) -> list[Found]:
        """What was listed once and could not be had then. An agenda is only wanted until there are minutes."""
        missing = (row for row in self.rows.values() if row["state"] == "missing" and row["url"])
        founds = [Found(row["url"], row["kind"], row["meeting"], row["date"][:10]) for row in missing]
        return [one for one in founds if one.kind == "minutes" or (one.meeting, one.date) not in self.minutes]

    # ---- what a source said

    def received(self, document: Document, fetched: Fetched) -> Iterator[Item]:
        """It is here, new or as it was. An item, unless it was read before, or failed before and would again."""
        row = self.rows.get(document.key)
        sha256 = row["sha256"] if fetched.unchanged and row is not None else fetched.sha256
        if not fetched.unchanged:
            if row is not None and _is_text_only(row):
                self.work.files.adopt(document, fetched.sha256)
            self._change_received(document, fetched)
        elif row is not None:
            self._note_unchanged(document, fetched, row)
        self.seen.add(document.key)
        yield from self._item(document, sha256)

    def _note_unchanged(self, document: Document, fetched: Fetched, row: Row) -> None:
        notes = self.notes_all and row["run_id"] != self.work.run
        if notes or (fetched.etag, fetched.modified) != (row["etag"], row["modified"]):
            now = {"url": fetched.found.url, "etag": fetched.etag, "modified": fetched.modified, "state": row["state"]}
            # Next time it is asked for by these.
            self._change(self._identity(document) | now | (self._of_this_run(row) if notes else {}))

    def missing(self, document: Document, found: Found, error: str) -> None:
        """It is listed, and could not be had. What is here of it from before stays."""
        self.seen.add(document.key)
        self.counts["missing"] += 1
        values = self._identity(document) | {"url": found.url, "error": kept(error)}
        there = self.rows.get(document.key)
        values["state"] = "missing" if there is None else there["state"]
        self._change(values)

    def _change_received(self, document: Document, fetched: Fetched) -> None:
        row = self.rows.get(document.key)
        values = self._identity(document) | {
            "url": fetched.found.url,
            "sha256": fetched.sha256,
            "etag": fetched.etag,
            "modified": fetched.modified,
            "content_type": fetched.content_type,
            "fetched_at": datetime.now(UTC),
            **self._of_this_run(row),
        }
        # A server that cannot tell sends it again.
        same = row is not None and (row["sha256"] == fetched.sha256 or _is_text_only(row))
        values |= {} if same else {"state": "fetched", "error": None, "backend": self.backend}
        self._change(values | ({"state": row["state"]} if same and row is not None else {}))

    # ---- what is to be read

    def left(self) -> Iterator[Item]:
        """What an earlier run did not get to, or what is to be tried again: this pass has not come across it."""
        items: list[Item] = []
        for key in sorted(self.rows.keys() - self.seen):
            row = self.rows[key]
            if row["sha256"] is not None and self.work.files.source(Document.of_key(key)) is not None:
                self.seen.add(key)
                items += self._item(Document.of_key(key), row["sha256"])
        self.write()
        yield from items

    def add(self, document: Document, sha256: str, content_type: str) -> None:
        """A file that is in the storage, and that nobody knows of."""
        values = {"sha256": sha256, "content_type": content_type, "state": "fetched", "backend": self.backend}
        self._change(self._identity(document) | values | {"fetched_at": datetime.now(UTC), "run_id": self.work.run})

    def _item(self, document: Document, sha256: str) -> Iterator[Item]:
        row = self.rows[document.key]
        if self.work.files.finished(document) == sha256:
            return
        if row["state"] == "failed" and row["backend"] == self.backend and not self.retry_failed:
            self.counts["failed_before"] += 1
            return
        if row["backend"] != self.backend:
            self._change(self._identity(document) | {"state": row["state"], "backend": self.backend})
        self.counts["new"] += 1
        content_type = row["content_type"] or "application/pdf"
        yield document.key, {"sha256": sha256, "backend": self.backend, "content_type": content_type}

    # ---- rows

    def _identity(self, document: Document) -> dict[str, Any]:
        names = {"kind": document.kind, "meeting": document.meeting, "date": document.date}
        return {"subdomain": self.work.subdomain, "key": document.key, **names}

    def _of_this_run(self, row: Row | None) -> dict[str, Any]:
        """Once: what must be brought again by each attempt, since it vanishes, gets none of them further."""
        self.noted += row is None or row["run_id"] != self.work.run
        return {"run_id": self.work.run}

    def _change(self, values: dict[str, Any]) -> None:
        blank = {column.name: _BLANK.get(column.name) for column in tables.document.columns}
        whole = {**blank, **self.rows.get(values["key"], {}), **values}
        self.rows[values["key"]] = whole
        self._unwritten.append((whole, values))

    def write(self) -> None:
        """What has changed, in one transaction: one for each document would take longer than to fetch it."""
        if not self._unwritten:
            return
        with self.work.ctx.transaction() as connection:
            for whole, changed in self._unwritten:
                _upsert(connection, whole, changed)
            note_change(connection, self.work.ctx)
        self._unwritten.clear()


def _is_text_only(row: Row) -> bool:
    """The older clerk read it and deleted it: nobody knows the digest of what its text was read from."""
    return row["state"] == "read" and row["fetched_at"] is None


def _upsert(connection: Connection, whole: Row, changed: Row) -> None:
    """`whole`, since what a row must have is asked of it before it is found to be there already."""
    insert = insert_on_postgres if connection.dialect.name == "postgresql" else insert_on_sqlite
    changes = {name: value for name, value in changed.items() if name not in ("subdomain", "key")}
    statement = insert(tables.document).values(dict(whole))
    connection.execute(statement.on_conflict_do_update(index_elements=["subdomain", "key"], set_=changes))
