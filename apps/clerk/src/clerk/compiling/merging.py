"""Extraction works while the database is compiled; what it found later is merged into it before it is published."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from clerk.compiling import rows, schema
from clerk.compiling.aside import building, read_only, replacing
from clerk.compiling.building import Counter, Progress
from clerk.compiling.pages import Page, pages
from clerk.errors import ClerkError
from clerk.names import KINDS
from clerk.storage import SiteFiles


def merge_extractions(files: SiteFiles, run: int, progress: Progress | None = None) -> int:
    """How many pages of `meetings.db` got what their caches say now. None: the file is not touched."""
    if not files.database.is_file():
        raise ClerkError(f"there is no {files.database} to merge extractions into; compile {files.subdomain} first")
    with building(files.database):
        with contextlib.closing(sqlite3.connect(read_only(files.database), uri=True)) as present:
            if next(_differing(present, files, Counter(None)), None) is None:
                return 0
        changed = 0
        with replacing(files.database, run, schema.check, begin_with=files.database) as db:
            for page, key in _differing(db, files, Counter(progress)):
                rows.replace_extracted(db, page.document.kind, key, page.extracted)
                changed += 1
        return changed


def _differing(db: sqlite3.Connection, files: SiteFiles, count: Counter) -> Iterator[tuple[Page, str]]:
    """Pages whose rows say something else than their caches. One with other text than its row is for the next compile."""
    for kind in KINDS:
        for page in pages(files, kind):
            count.one_more()
            key = rows.find_page(db, page)
            stored = db.execute(f"SELECT entities_json, votes_json FROM {kind} WHERE id = ?", (key,)).fetchone()
            if key is not None and stored != rows.as_json(page.extracted):
                yield page, key
