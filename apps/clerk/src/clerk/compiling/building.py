"""Compilation: all text and cached extractions of a site become its `meetings.db`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from clerk.compiling import rows, schema
from clerk.compiling.aside import building, replacing
from clerk.compiling.pages import pages
from clerk.names import KINDS, Kind
from clerk.storage import SiteFiles

Progress = Callable[[int], None]  # is told how many pages are done; what it raises ends the work, and nothing changes
_PROGRESS_EVERY = 500


@dataclass(frozen=True)
class Compiled:
    minutes: int
    agendas: int

    @property
    def pages(self) -> int:
        return self.minutes + self.agendas


def compile_site(files: SiteFiles, run: int, progress: Progress | None = None) -> Compiled:
    """Builds `meetings.db` anew. The one before is then `meetings.db.bk`; on failure all stays as it was."""
    with building(files.database), replacing(files.database, run, schema.check, backup=True) as db:
        schema.create_tables(db)
        count = Counter(progress)
        done: dict[Kind, int] = {kind: _insert(db, files, kind, count) for kind in KINDS}
        schema.finish(db)
    return Compiled(minutes=done["minutes"], agendas=done["agendas"])


class Counter:
    """Tells of progress every so many pages."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._pages = progress, 0

    def one_more(self) -> None:
        self._pages += 1
        if self._progress is not None and self._pages % _PROGRESS_EVERY == 0:
            self._progress(self._pages)


def _insert(db: sqlite3.Connection, files: SiteFiles, kind: Kind, count: Counter) -> int:
    inserted = 0
    for page in pages(files, kind):
        key = rows.insert_page(db, page)
        if key is not None:
            rows.insert_extracted(db, kind, key, page.extracted)
            inserted += 1
        count.one_more()
    return inserted
