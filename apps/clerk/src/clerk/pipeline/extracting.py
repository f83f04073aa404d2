"""extraction: names and votes on every page, kept beside the text. What is there from before is not done again."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from clerk.extraction.cache import extract_document
from clerk.names import KINDS
from clerk.pipeline import wiring
from clerk.pipeline.outcomes import note_change
from clerk.pipeline.working import Work, working
from gristmill import Context, Skip

LATEST: Final = timedelta(hours=2)  # after compilation; then the site is published without
_TELL_EVERY = 30.0  # seconds; a site's state may be silent for five minutes at most


def extract(ctx: Context) -> int:
    """Says how many pages there are."""
    with working(ctx) as work:
        _refuse_if_late(ctx)
        documents = [document for kind in KINDS for document in work.files.documents(kind)]
        telling = _Telling(work, sum(len(work.files.pages(document)) for document in documents))
        by = wiring.extractor(work.config, work.site.extra)
        for document in documents:
            extract_document(work.files, document, by, partial(telling.of_document, telling.done))
        telling.now(telling.total, last=True)
        return telling.total


def _refuse_if_late(ctx: Context) -> None:
    """One that was begun before, and has timed out or lost its worker, is tried again as any other."""
    compiled = ctx.counts("compilation").closed_at
    if ctx.attempt == 1 and compiled is not None and datetime.now(UTC) - compiled > LATEST:
        ctx.logger.warning("%s is published without new extractions: no worker began within 2 h", ctx.subject)
        raise Skip("not started within 2 h of compilation")


class _Telling:
    """How far it is, for whoever looks at the site: not at every page, but often enough not to look stuck."""

    def __init__(self, work: Work, total: int) -> None:
        self.total, self.done = total, 0
        self._work, self._told = work, 0.0
        self.now(0)

    def of_document(self, before: int, done: int, of: int) -> None:
        self.now(before + done)

    def now(self, done: int, last: bool = False) -> None:
        self.done = done
        self._work.ctx.progress(done, self.total, "pages")
        if last or time.monotonic() - self._told >= _TELL_EVERY:
            self._told = time.monotonic()
            with self._work.ctx.transaction() as connection:
                note_change(connection, self._work.ctx, extracted_pages=done, extraction_pages=self.total)
