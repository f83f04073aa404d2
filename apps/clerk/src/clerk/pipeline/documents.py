"""ocr: a document becomes text, page by page; a long one in parts, so that no job is long."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import Connection, select, update

from clerk.config import load
from clerk.db import tables
from clerk.errors import Critical, Transient, Usage
from clerk.parts import OcrBackend
from clerk.pipeline import wiring
from clerk.pipeline.outcomes import note_change
from clerk.pipeline.working import Work, working
from clerk.reading.documents import Long, Part, Read, earlier, finish_document, give_up, read_document, read_part
from clerk.storage import Document, SiteFiles
from gristmill import Context

CHUNK: Final = "chunk"
# How errors begin that are not the fault of the pages; the last two are Gristmill's, of parts that nobody could end.
# Of a whole document terminal.READ says the same.
_PASSING: Final = (Critical.__name__, Transient.__name__, "DatabaseError", "Unavailable", "worker_lost", "cancelled")


def read(ctx: Context, sha256: str, backend: str, content_type: str) -> dict[str, Any]:
    """Says how many pages it has, and how many of them have no text."""
    with working(ctx) as work:
        document = Document.of_key(str(ctx.key))
        by = _reader(backend)
        came = read_document(work.files, document, sha256, work.config, by, html=content_type == "text/html")
        if isinstance(came, Long):
            _read_parts(work, document, sha256, backend, came)
            came = finish_document(work.files, document, sha256, came.parts, by)
        with ctx.transaction() as connection:
            note(connection, work.subdomain, document, came, sha256)
        if not work.config.keep_pdfs:
            _remove(work, document)
        return {"pages": came.pages, "without_text": len(came.errors)}


def _remove(work: Work, document: Document) -> None:
    """Its text is finished: that the file stays is a pity, and no fault of the document."""
    try:
        if source := work.files.source(document):
            source.unlink(missing_ok=True)
    except OSError as error:
        work.ctx.logger.warning("%s was read and is to go (KEEP_PDFS=0), but stays: %s", document.key, error)


def _reader(label: str) -> OcrBackend:
    """Who cannot read on this machine may do so on another, or here once somebody has looked: no document is at fault."""
    try:
        return wiring.reader(label)
    except Usage as error:
        raise Critical(str(error)) from error


def _read_parts(work: Work, document: Document, sha256: str, backend: str, long: Long) -> None:
    """Ends this attempt, until all parts have ended. Pages of one that cannot be read have that as their error."""
    about = {"document": document.key, "sha256": sha256, "backend": backend}
    keys = {f"{part.first:06}": part for part in long.parts}
    asked = [(key, {**about, "first": part.first, "last": part.last}) for key, part in keys.items()]
    for key, error in work.ctx.parts(CHUNK, asked).failed.items():
        if not error.strip() or error.startswith(_PASSING):
            raise Transient(f"pages from {keys[key].first} on: {error}")
        give_up(work.files, document, sha256, keys[key], _reader(backend), error)


def read_chunk(ctx: Context, document: str, sha256: str, backend: str, first: int, last: int) -> None:
    with working(ctx) as work:
        read_part(work.files, Document.of_key(document), sha256, Part(first, last), work.config, _reader(backend))
        with ctx.transaction() as connection:
            note_change(connection, ctx)


def has_been_read(ctx: Context, sha256: str) -> bool:
    """Its text is there, and what it was read from is what this item is about."""
    files = SiteFiles(load().storage, str(ctx.subject))
    return files.finished(Document.of_key(str(ctx.key))) == sha256


def note_adopted(work: Work) -> None:
    """Who was killed between the text of a document and its row: reconcile found the text, and took it as read."""
    table = tables.document
    mine = (table.c.subdomain == work.subdomain) & (table.c.run_id == work.run)
    unnoted = select(table.c.key, table.c.sha256).where(mine, table.c.state == "read", table.c.pages == 0)
    with work.ctx.transaction() as connection:
        for row in connection.execute(unnoted).all():
            document = Document.of_key(row.key)
            if came := earlier(work.files, document, row.sha256):
                note(connection, work.subdomain, document, came, row.sha256)


def note(connection: Connection, subdomain: str, document: Document, came: Read, sha256: str, **more: object) -> None:
    """What came of a document, in its row, if that is about the content that was read."""
    table = tables.document
    this = (table.c.subdomain == subdomain) & (table.c.key == document.key) & (table.c.sha256 == sha256)
    errors = json.dumps({str(number): error for number, error in came.errors.items()})
    connection.execute(update(table).where(this).values(pages=came.pages, page_errors=errors, **more))
