"""fetch: what a source lists is brought here; what of it is to be read becomes an item while others still come."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, update

from clerk import parts
from clerk.db import tables
from clerk.errors import Incomplete, Transient, Unreadable
from clerk.names import KINDS
from clerk.parts import Fetched
from clerk.pipeline import wiring
from clerk.pipeline.book import Book, Item
from clerk.pipeline.outcomes import PASSING, note_error
from clerk.pipeline.working import Work, working
from clerk.sites import Options
from clerk.storage import sha256_of
from gristmill import Context, Later

_LONG, _ENOUGH = 0.1, 0.8  # shares of a fetch's time: then it notes what it had; then it ends, and goes on from there
_EARLIEST = 1900  # a site without a start year: all that its source lists
_LATE = timedelta(days=90)  # that minutes may come after their meeting: those of December are published in spring


def documents(ctx: Context, options: Options) -> Generator[Item, None, dict[str, int]]:
    """Gives the documents to read, and says how many there were."""
    with working(ctx) as work:
        backend = wiring.backend_label(work.config, work.site.extra, options.ocr_backend)
        book = Book.of(work, backend, options.retry_failed)
        if options.skip_fetch:
            _add_strays(work, book)
        else:
            yield from _from_source(work, book, options)
        yield from book.left()
        return book.counts


def _from_source(work: Work, book: Book, options: Options) -> Iterator[Item]:
    failures: list[Exception] = []
    owed: list[Exception] = []  # again, of what an earlier run could not get
    incomplete: list[str] = []
    began = time.monotonic()
    try:
        for batch in wiring.downloads(work, book, wanted(work, options)):
            items: list[Item] = []
            for document, came, is_owed in batch:
                book.counts["listed"] += not is_owed
                if isinstance(came, Fetched):
                    items += book.received(document, came)
                else:
                    found, error = came
                    (owed if is_owed else failures).append(error)
                    book.missing(document, found, str(error))
            book.write()
            yield from items
            work.ctx.progress(book.counts["listed"], message=batch[-1].document.key)
            used = (time.monotonic() - began) / work.config.fetch_timeout
            book.notes_all = used > _LONG
            if used > _ENOUGH and book.noted:
                raise Later(0, f"it goes on after {book.counts['listed']} documents")
    except Incomplete as error:
        if work.ctx.attempt <= PASSING.times or not book.counts["listed"]:
            raise
        incomplete.append(str(error))  # what is listed must not wait for a page that never comes
    notes = [*incomplete, *_judged(book.counts["listed"], failures)]
    if owed:
        notes.append(f"{len(owed)} documents of earlier runs still could not be downloaded: {owed[0]}")
    _note(work, notes)
    if not incomplete:
        _note_listed(work)


def wanted(work: Work, options: Options) -> parts.Wanted:
    """From the year of the last run that ended well and had all that was listed, unless all years are asked for; never
    from before the site's start year."""
    site = work.site
    since = site.start_year or _EARLIEST
    if not options.all_years:
        run = tables.run
        listed = select(func.max(run.c.listed)).where(
            run.c.subdomain == site.subdomain, run.c.outcome.not_in(["failed", "cancelled", "no_documents"])
        )
        with work.ctx.transaction() as connection:
            last = connection.execute(listed).scalar()
        if last is not None:
            since = max(since, (last - _LATE).year)
    return parts.Wanted(site.subdomain, site.extra, since, options.all_agendas)


def _note_listed(work: Work) -> None:
    """A run that did not ask its source, or was not told all, says nothing of what there is."""
    with work.ctx.transaction() as connection:
        connection.execute(update(tables.run).where(tables.run.c.run_id == work.run).values(listed=datetime.now(UTC)))


def _judged(listed: int, failures: list[Exception]) -> list[str]:
    """Some that cannot be had are noted; none that can be had is a source that is out of order."""
    if not failures:
        return []
    text = f"{len(failures)} of {listed} documents could not be downloaded: {failures[0]}"
    if len(failures) == listed:
        passing = any(isinstance(failure, Transient) for failure in failures)
        raise (Transient if passing else Unreadable)(text)
    return [text]


def _note(work: Work, texts: list[str]) -> None:
    if texts:
        with work.ctx.transaction() as connection:
            note_error(connection, work.ctx, "fetch", "; ".join(texts))


def _add_strays(work: Work, book: Book) -> None:
    """Files that somebody put into the storage: without a fetch nobody else would tell of them."""
    for kind in KINDS:
        for document in work.files.documents(kind, under="pdfs"):
            path = work.files.source(document)
            if document.key not in book.rows and path is not None:
                book.add(document, sha256_of(path), "text/html" if path.suffix == ".html" else "application/pdf")
