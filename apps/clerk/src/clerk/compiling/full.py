"""`STORAGE_DIR/meetings.db`, the pages of all sites, and `STORAGE_DIR/sites.db`, the list of them."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import orjson

from clerk.compiling import schema
from clerk.compiling.aside import building, read_only, replacing
from clerk.errors import ClerkError
from clerk.storage import SiteFiles

_log = logging.getLogger("clerk.compiling")
Sites = Callable[[], Iterable[Mapping[str, Any]]]  # asked for while nobody else writes a list: the last one is the newest

# Rows of the three tables keep their order; numbers that were only keys within a site are given anew.
_COPIED: dict[str, tuple[str, ...]] = {
    "minutes": schema.PAGE_COLUMNS,
    "agendas": schema.PAGE_COLUMNS,
    "entities": ("kind", "text", "confidence", "minutes_id", "agendas_id"),
    "votes": (
        *("id", "motion_by", "seconded_by", "result", "ayes", "nays", "abstain", "absent", "raw_text"),
        *("minutes_id", "agendas_id"),
    ),
    "vote_members": ("vote_id", "name", "vote"),
}
_IF_MISSING = {"entities_json": f"'{schema.NO_ENTITIES}'", "votes_json": f"'{schema.NO_VOTES}'"}  # in older databases


def build_full(storage: Path, sites: Sites) -> Path:
    """Both, each at once. A site without a database is left out; one whose database cannot be read too, with a warning."""
    write_sites(storage, sites)
    path = Path(storage) / "meetings.db"
    with building(path), replacing(path, os.getpid(), schema.check) as db:
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = TRUNCATE").fetchall()  # so that a site whose database is broken can be taken back
        schema.create_tables(db, all_sites=True)
        for subdomain in sorted(str(row["subdomain"]) for row in sites()):
            files = SiteFiles(storage, subdomain)
            if files.database.is_file():
                _add(db, files)
        db.execute("BEGIN")
        schema.finish(db)
    return path


def _add(db: sqlite3.Connection, files: SiteFiles) -> None:
    try:
        db.execute("ATTACH ? AS site", (read_only(files.database),))
    except sqlite3.DatabaseError as error:
        return _leave_out(files, error)
    try:
        db.execute("BEGIN")
        for table, columns in _COPIED.items():
            _copy(db, files.subdomain, table, columns)
        db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        db.execute("ROLLBACK")
        _leave_out(files, error)
    finally:
        db.execute("DETACH site")


def _leave_out(files: SiteFiles, error: sqlite3.DatabaseError) -> None:
    _log.warning("%s is left out of the database of all sites, it cannot be read: %s", files.database, error)


def _copy(db: sqlite3.Connection, subdomain: str, table: str, columns: tuple[str, ...]) -> None:
    there = {row[1] for row in db.execute(f"PRAGMA site.table_info({table})")}
    if there:
        values = ", ".join(_IF_MISSING[name] if name in _IF_MISSING and name not in there else name for name in columns)
        db.execute(
            f"INSERT INTO main.{table} (subdomain, {', '.join(columns)})"
            f" SELECT ?, {values} FROM site.{table} ORDER BY rowid",
            (subdomain,),
        )


def write_sites(storage: Path, sites: Sites) -> Path:
    """The list of sites as a table `sites` with the columns that the rows have."""
    path = Path(storage) / "sites.db"
    with building(path), replacing(path, os.getpid(), _check_sites) as db:
        rows = [dict(row) for row in sites()]
        columns = list(dict.fromkeys(["subdomain", *(name for row in rows for name in row)]))
        quoted = ['"' + name.replace('"', '""') + '"' for name in columns]
        db.execute(f"CREATE TABLE sites ({', '.join(['subdomain TEXT NOT NULL PRIMARY KEY', *quoted[1:]])})")
        db.executemany(
            f"INSERT INTO sites VALUES ({', '.join('?' * len(columns))})",
            ([_plain(row.get(name)) for name in columns] for row in rows),
        )
    return path


def _check_sites(db: sqlite3.Connection) -> None:
    wrong = [text for (text,) in db.execute("PRAGMA integrity_check(5)") if text != "ok"]
    if wrong:
        raise ClerkError(f"the list of sites that was built is broken and was thrown away: {'; '.join(wrong)}")


def _plain(value: Any) -> str | int | float | None:
    if value is None or isinstance(value, (str, int, float)):
        return value
    return value.isoformat() if isinstance(value, date) else orjson.dumps(value, default=str).decode()
