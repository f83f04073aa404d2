"""Backups: a compressed SQLite database with the ledger in it, of whichever database it was.

Of SQLite it is the whole file, an application's own tables included; of PostgreSQL the ledger's tables. So a backup goes
back into either kind, and any SQLite can look into it. The compression's checksum tells a damaged file.

A restore makes everything ready in a copy first, and then replaces the ledger in one transaction.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from gristmill.clock import to_datetime
from gristmill.errors import Invalid, Refused, SchemaMismatch
from gristmill.ledger import migrate
from gristmill.ledger.columns import REVISION, columns
from gristmill.ledger.engines import shown, sqlite_module
from gristmill.ledger.outbox import UNPUBLISH_ALL
from gristmill.ledger.schema import metadata, token, written
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Ledger, Tx
from gristmill.ledger.workers import lose_all
from gristmill.model import Backup
from gristmill.settings import VERSION

_PAGE = 1 << 20
_EPOCHS_BEGIN = 1_767_225_600  # 2026: epochs count its seconds, so that no worker's number was ever given out before
_NUMBERED = [table.name for table in metadata.sorted_tables if table.autoincrement_column is not None]
_NAMES = {
    "gm_queue": "id, name, weight, paused",
    "gm_task": "id, name, spec",
    "gm_class": "id, demand",
    "gm_limit": "id, name, key, declared",  # without what people chose: the limits of queues are as they were, too
}
_MEANING = {"gm_queue": 1, "gm_task": 2, "gm_class": 1, "gm_limit": 2}  # so many columns after the number never change
_TOKENS = f"SELECT {columns(written(token))} FROM gm_token ORDER BY id"
_COUNTED = ("gm_subject", "gm_run", "gm_job")
_ABOUT = "gm_backup"
_TABLES = Sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'")
_NUMBERS = Sql("SELECT pg_sequence_last_value(pg_get_serial_sequence(:name, 'id'))")
_SET_NUMBER = Sql("SELECT setval(pg_get_serial_sequence(:name, 'id'), :number)")
_SET_LINE = Sql(
    "SELECT setval('gm_line', greatest((SELECT last_value FROM gm_line), coalesce((SELECT max(ready) FROM gm_job), 1)))"
)
# In the order of every verb; then the names, or one that is made just now would be forgotten.
_LOCK = f"LOCK TABLE gm_worker, gm_run, gm_stage, gm_job, {', '.join(_NAMES)} IN ACCESS EXCLUSIVE MODE"
_SET_EPOCH = Sql("UPDATE gm_ledger SET epoch = :epoch")
_SET_WORKERS = (  # SQLite's own table has no key to replace by
    Sql("DELETE FROM sqlite_sequence WHERE name = 'gm_worker'"),
    Sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('gm_worker', :epoch - 1)"),
)
_WORKERS = Sql("SELECT max(seq) FROM sqlite_sequence WHERE name = 'gm_worker'")


# ---- taking one


def backup(ledger: Ledger, file: Path, *, force: bool = False) -> Backup:
    """Writes a backup while everything goes on; the file is there when it is whole, and not before."""
    if not file.parent.is_dir():
        raise Invalid(f"there is no folder {file.parent}")
    _refuse_existing(file, force)
    _check_revision(ledger)
    with _scratch(file.absolute().parent) as folder:
        copy = folder / "ledger.db"
        began = ledger.now() or time.time_ns() // 1000
        (_copy_file if ledger.is_sqlite else _copy_tables)(ledger, copy)
        about = _describe(ledger, copy, began)
        packed = folder / "packed"
        _pack(copy, packed)
        _refuse_existing(file, force)
        packed.replace(file)
        _sync(file.absolute().parent)
    return _backup(file, about)


def _refuse_existing(file: Path, force: bool) -> None:
    strange = file.exists() and not file.is_file()  # a folder, a device (/dev/null!), a pipe: never replaced
    if strange or (file.exists() and not force):
        raise Refused(f"{file} is there already" + (", and is no file" if strange else "; --force replaces it"))


def _check_revision(ledger: Ledger) -> None:
    ledger.check_schema()
    found = ledger.revision()
    if found != REVISION:
        raise SchemaMismatch(f"the database is at schema {found}, this code at {REVISION}: newer code must do this")


def _copy_file(ledger: Ledger, copy: Path) -> None:
    """In one step, which is one snapshot: with a write-ahead log nobody waits for it."""
    with closing(_sqlite(ledger.path)) as source, closing(_sqlite(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it


def _copy_tables(ledger: Ledger, copy: Path) -> None:
    """One snapshot of PostgreSQL, read page by page."""
    migrate.upgrade(f"sqlite:///{copy}")
    with ledger.reading() as tx, closing(_sqlite(copy)) as target:
        tx.script("SET LOCAL idle_in_transaction_session_timeout = 0")  # a slow disk here is no reason to give up
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "ignore_check_constraints = ON"):
            target.execute(f"PRAGMA {pragma}")
        indexes = target.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").fetchall()
        for name, _ in indexes:  # made at once in the end: that is faster
            target.execute(f"DROP INDEX {name}")
        for table in metadata.sorted_tables:
            target.execute(f"DELETE FROM {table.name}")
            names = columns(written(table))
            places = ", ".join("?" * (names.count(",") + 1))
            insert = f"INSERT INTO {table.name} ({names}) VALUES ({places})"
            order = ", ".join(column.name for column in table.primary_key)  # in which SQLite keeps them
            for rows in tx.pages(f"SELECT {names} FROM {table.name} ORDER BY {order}"):
                target.executemany(insert, rows)
        for _, made in indexes:
            target.execute(made)
        _set_workers(target, (tx.value(_NUMBERS, name="gm_worker") or 0) + 1)
        target.commit()


def _describe(ledger: Ledger, copy: Path, taken_at: int) -> dict[str, Any]:
    """Writes into the copy what it is; says that."""
    with closing(_sqlite(copy)) as target:
        counts = {name: target.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in _COUNTED}
        about = {
            "taken_at": taken_at,
            "database": "sqlite" if ledger.is_sqlite else "postgresql",
            "revision": REVISION,
            "version": VERSION,
            "counts": counts,
        }
        target.execute(f"CREATE TABLE {_ABOUT} (about TEXT NOT NULL)")
        target.execute(f"INSERT INTO {_ABOUT} VALUES (?)", [orjson.dumps(about).decode()])
        target.commit()
    return about


def _backup(file: Path, about: Mapping[str, Any]) -> Backup:
    subjects, runs, jobs = (about["counts"][name] for name in _COUNTED)
    return Backup(
        file=str(file),
        size=file.stat().st_size,
        taken_at=to_datetime(about["taken_at"]),
        database=about["database"],
        revision=about["revision"],
        version=about["version"],
        subjects=subjects,
        runs=runs,
        jobs=jobs,
    )


# ---- files


@contextlib.contextmanager
def _scratch(folder: Path | None) -> Iterator[Path]:
    """A folder for files that nobody else may read, gone in the end."""
    try:
        with tempfile.TemporaryDirectory(prefix=".gristmill-", dir=folder) as name:
            yield Path(name)
    except PermissionError as error:
        raise Invalid(f"cannot write in {folder}: {error.strerror}") from None


def _pack(source: Path, target: Path) -> None:
    """Jobs hold what people gave them: the file is its owner's alone."""
    with source.open("rb") as raw, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        with gzip.GzipFile("", "wb", 1, file, 0) as packed:
            shutil.copyfileobj(raw, packed, _PAGE)
        file.flush()
        os.fsync(file.fileno())


def _unpack(file: Path, copy: Path) -> dict[str, Any]:
    """The backup as a database; says what it is. Whatever is wrong with the file is found here."""
    try:
        with gzip.open(file) as packed, copy.open("wb") as raw:
            shutil.copyfileobj(packed, raw, _PAGE)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Invalid(f"{file} is no backup, or is damaged: {error}") from None
    except OSError as error:
        raise Invalid(f"cannot read {file}: {error.strerror or error}") from None
    module = sqlite_module()
    try:
        with closing(_sqlite(copy)) as source:
            about: dict[str, Any] = orjson.loads(source.execute(f"SELECT about FROM {_ABOUT}").fetchone()[0])
            source.execute(f"DROP TABLE {_ABOUT}")
            source.commit()
    except (module.DatabaseError, TypeError, ValueError):
        raise Invalid(f"{file} is no backup of a ledger") from None
    if about["revision"] > REVISION:
        raise SchemaMismatch(f"{file} was made at schema {about['revision']}, this code knows {REVISION}; update Gristmill")
    return about


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _sqlite(path: Path) -> Any:
    return sqlite_module().connect(path)


# ---- putting one back


def look(file: Path) -> Backup:
    """What a backup holds, after all of it was read."""
    with _scratch(None) as folder:
        return _backup(file, _unpack(file, folder / "ledger.db"))


def restore(url: str, file: Path, *, by: str, force: bool = False) -> Backup:
    """Makes the ledger what it was, all or nothing; workers of the time before find that they are lost."""
    ledger = Ledger(url)
    try:
        with _scratch(ledger.path.parent if ledger.is_sqlite else None) as folder:
            copy = folder / "ledger.db"
            about = _unpack(file, copy)
            migrate.upgrade(f"sqlite:///{copy}")
            _check_target(ledger, copy, about, force)
            _make_ready(copy, by, file)
            (_replace_file if ledger.is_sqlite else _replace_tables)(ledger, copy)
            return _backup(file, about)
    finally:
        ledger.close()


def _check_target(ledger: Ledger, copy: Path, about: Mapping[str, Any], force: bool) -> None:
    """Only a database without work in it is replaced without being told so; tables that are not ours never are."""
    if ledger.is_sqlite and not ledger.path.exists():
        return
    found = ledger.revision()
    if ledger.is_sqlite:
        strange = _tables(ledger.path) - _tables(copy)
        if strange := {name for name in strange if not name.startswith("gm_")}:
            raise Refused(
                f"{shown(ledger.url)} holds tables that the backup does not: {', '.join(sorted(strange)[:5])};"
                " restore into a new file"
            )
    if found is None:
        if not ledger.is_sqlite:
            migrate.upgrade(ledger.url.render_as_string(hide_password=False))
        return
    if not ledger.is_sqlite:
        _check_revision(ledger)
    if not force and ledger.glance(lambda tx: tx.value(_ANY)):
        raise Refused(f"{shown(ledger.url)} holds runs or jobs already; --force replaces all of them by the backup")


_ANY = Sql("SELECT EXISTS (SELECT 1 FROM gm_run) OR EXISTS (SELECT 1 FROM gm_job)")


def _tables(path: Path) -> set[str]:
    with closing(_sqlite(path)) as connection:
        return {name for (name,) in connection.execute(_TABLES.text)}


def _make_ready(copy: Path, by: str, file: Path) -> None:
    """The workers of the backup are lost, what they held is queued again, and the restore is recorded."""
    prepared = Ledger(f"sqlite:///{copy}")
    try:
        prepared.do(_forget_workers, by, file)
        with prepared.alone() as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    finally:
        prepared.close()


def _forget_workers(tx: Tx, by: str, file: Path) -> None:
    lose_all(tx)
    tx.run(UNPUBLISH_ALL)  # what Redis has of it is of another time
    audit(tx, by, "restore", f"backup {file.name}")


def _replace_file(ledger: Ledger, copy: Path) -> None:
    """Page by page into the same file, in one transaction: processes that have it open see the new content next."""
    with ledger.alone() as target, closing(_sqlite(copy)) as source:
        existing: dict[str, list[Sequence[Any]]] = {name: [] for name in _NAMES}
        last, tokens = 0, list[Sequence[Any]]()
        if ledger.revision() is not None:
            tokens = target.execute(_TOKENS).fetchall() if "gm_token" in _tables(ledger.path) else []
            existing = {name: target.execute(f"SELECT {what} FROM {name}").fetchall() for name, what in _NAMES.items()}
            last = target.execute(_WORKERS.text).fetchone()[0] or 0
        own = {name: source.execute(f"SELECT {what} FROM {name}").fetchall() for name, what in _NAMES.items()}
        for name, rows in _kept(existing, own).items():
            places = ", ".join("?" * len(rows[0]))
            source.executemany(f"INSERT INTO {name} ({_NAMES[name]}) VALUES ({places})", rows)
        if tokens:
            source.execute("DELETE FROM gm_token")
            places = ", ".join("?" * len(tokens[0]))
            source.executemany(f"INSERT INTO gm_token ({columns(written(token))}) VALUES ({places})", tokens)
        epoch = _epoch(last, source.execute(_WORKERS.text).fetchone()[0] or 0)
        source.execute("UPDATE gm_ledger SET epoch = ?", [epoch])
        _set_workers(source, epoch)
        source.commit()
        source.backup(target)


def _replace_tables(ledger: Ledger, copy: Path) -> None:
    ledger.do(_load, copy)
    with ledger.alone() as target:  # or the planner would know the empty tables for a while
        target.execute(f"ANALYZE {', '.join(table.name for table in metadata.sorted_tables)}")
        target.commit()


def _load(tx: Tx, copy: Path) -> None:
    """The whole of it in one transaction. No number that this database gave out is given again."""
    tx.script(_LOCK)
    existing = {name: tx.tuples(Sql(f"SELECT {what} FROM {name}")) for name, what in _NAMES.items()}
    tokens = tx.tuples(Sql(_TOKENS))
    tx.script(f"TRUNCATE {', '.join(table.name for table in metadata.sorted_tables)}")
    with closing(_sqlite(copy)) as source:
        for table in metadata.sorted_tables:
            names = columns(written(table))
            tx.add_stream(table.name, names, source.execute(f"SELECT {names} FROM {table.name}"))
        last = source.execute(_WORKERS.text).fetchone()[0] or 0
        own = {name: source.execute(f"SELECT {what} FROM {name}").fetchall() for name, what in _NAMES.items()}
    for name, rows in _kept(existing, own).items():
        tx.add_stream(name, _NAMES[name], rows)
    if tokens:  # who may look here is not a matter of the backup: one that was revoked since must not come back
        tx.script("DELETE FROM gm_token")
        tx.add_stream("gm_token", columns(written(token)), tokens)
    epoch = _epoch(last, tx.value(_NUMBERS, name="gm_worker") or 0)
    tx.run(_SET_EPOCH, epoch=epoch)
    for name in _NUMBERED:
        highest = tx.value(Sql(f"SELECT max(id) FROM {name}")) or 1
        number = epoch - 1 if name == "gm_worker" else max(highest, tx.value(_NUMBERS, name=name) or 1)
        tx.value(_SET_NUMBER, name=name, number=number)
    tx.value(_SET_LINE)


Names = Mapping[str, Sequence[Sequence[Any]]]


def _kept(existing: Names, own: Names) -> dict[str, list[Sequence[Any]]]:
    """Queues, tasks, classes and limits that came after the backup. Applications that run on know them by number, and they
    stay.

    If the numbers mean something else in the backup, it is of another ledger: then nothing is kept.
    """
    kept: dict[str, list[Sequence[Any]]] = {}
    for name, rows in existing.items():
        known = {row[0]: _meaning(name, row) for row in own[name]}
        meanings = set(known.values())
        if any(known.get(row[0], _meaning(name, row)) != _meaning(name, row) for row in rows):
            return {}
        if new := [row for row in rows if row[0] not in known and _meaning(name, row) not in meanings]:
            kept[name] = new
    return kept


def _meaning(name: str, row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(row[1 : 1 + _MEANING[name]])


def _epoch(*last: int) -> int:
    """Above every number of a worker that was ever given out: they come at less than one a second."""
    return max(*last, int(time.time()) - _EPOCHS_BEGIN) + 1


def _set_workers(connection: Any, epoch: int) -> None:
    for sql in _SET_WORKERS:
        connection.execute(sql.text, {"epoch": epoch})
