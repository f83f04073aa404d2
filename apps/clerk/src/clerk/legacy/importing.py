"""`import-legacy`: what the older tables and the files say becomes clerk's own; the older tables are put aside.

Files are read first, since that takes long. Then one transaction does the rest, so a broken import is begun again, and a
repeated one finds nothing to do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, func, insert, select, text

from clerk.app import database, open_mill
from clerk.config import Config
from clerk.config import database as address
from clerk.db import older, tables
from clerk.errors import ClerkError
from clerk.legacy import evidence, rows
from clerk.legacy.evidence import Evidence
from clerk.legacy.going_on import FROM_FILES, start
from clerk.legacy.rows import OldClerk, OldSite
from clerk.masking import masked
from clerk.sites import Options

if TYPE_CHECKING:
    from gristmill import Mill

_BESIDE: Final = "clerk.legacy.beside"
_ORDER: Final = ("fetch", "ocr", "compilation", "deploy", "completed")
_YOUNG: Final = 24  # hours after a write of an older worker in which another may come
_BATCH: Final = 1000


@dataclass
class Imported:
    """What an import did, or would do."""

    dry_run: bool = False
    sites: list[str] = field(default_factory=list)  # that are new here
    known: int = 0  # that were here already, and stay as they are
    stages: Counter[str] = field(default_factory=Counter)  # of the new ones
    documents: int = 0
    read: int = 0
    unfinished: int = 0  # rows of site_progress
    jobs: int = 0  # of the older queue, which are left to it
    put_aside: list[str] = field(default_factory=list)  # tables that have another name now
    warnings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        put_aside = {name: older.aside(name) for name in self.put_aside}
        return {**vars(self), "stages": dict(self.stages), "put_aside": put_aside}

    def lines(self) -> list[str]:
        would = "Would import" if self.dry_run else "Imported"
        found = [
            f"{would} {len(self.sites)} sites, {self.read} of {self.documents} documents read; {self.known} known before"
        ]
        found += [f"  {stage}: {self.stages[stage]}" for stage in ("new", *_ORDER) if self.stages[stage]]
        if self.put_aside:
            names = ", ".join(f"{name} to {older.aside(name)}" for name in self.put_aside)
            found.append(f"{'Would rename' if self.dry_run else 'Renamed'} {names}")
        if self.stages["ocr"]:
            found.append(f"{self.stages['ocr']} sites were in ocr; `clerk migrate-stuck-sites` lets them go on")
        return found


def import_legacy(
    config: Config,
    source: str | None = None,
    storage_dir: Path | None = None,
    dry_run: bool = False,
) -> Imported:
    """`source`: another database that the older tables are in, which stays as it is."""
    root = storage_dir or config.storage
    if not root.is_dir():
        raise ClerkError(f"{root} is not there: say with --storage-dir where the files of the sites are")
    source = None if source is None or address(source) == config.database_url else address(source)
    with older.looking(source or config.database_url) as connection:
        if connection is None and source is not None:
            raise ClerkError(f"there is no database {masked(source)} to import from")
        if connection is None or not older.tables(connection, ["sites", older.aside("sites")]):
            return Imported(dry_run, warnings=["there are no tables of an older clerk"])
        old, in_the_way = rows.read(connection), older.tables(connection)
    files = {site.subdomain: evidence.look(root, site.subdomain) for site in old.sites}
    if dry_run:
        return _planned(config, old, files, [] if source else in_the_way)
    if in_the_way and source is None:
        _make_tables(config)
    return _import(config, root, old, files, source is not None)


def _make_tables(config: Config) -> None:
    """clerk's, beside the older ones: nobody notices."""
    done = database(config, "upgrade", application=_BESIDE)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it ended without a word"]
        raise ClerkError(f"clerk's tables could not be made: {said[-1].removeprefix('Error: ')}")


def _planned(config: Config, old: OldClerk, files: Mapping[str, Evidence], in_the_way: list[str]) -> Imported:
    with older.looking(config.database_url) as connection:
        here = connection is not None and older.tables(connection, [tables.site.name])
        known = _known(connection) if connection is not None and here else set()
    report = _report(old, dry_run=True)
    report.put_aside = in_the_way
    for site in old.sites:
        _tell(report, site, files[site.subdomain], known)
    return report


def _import(config: Config, root: Path, old: OldClerk, files: Mapping[str, Evidence], elsewhere: bool) -> Imported:
    with open_mill(config, importing=True) as mill:
        with mill.transaction() as connection:
            known = _known(connection)
        found = {name: list(evidence.rows(files[name])) for name in files.keys() - known}
        with mill.transaction() as connection:
            if not elsewhere:
                put_aside = older.tables(connection)
                older.put_aside(connection, put_aside)
                old = rows.read(connection)  # once more: its workers have gone on, until now
            report = _report(old)
            report.put_aside = [] if elsewhere else put_aside
            known = _known(connection)
            for site in old.sites:
                proof = files.get(site.subdomain) or evidence.look(root, site.subdomain)  # it may be new since
                if _tell(report, site, proof, known):
                    _add(mill, connection, site, proof, found.get(site.subdomain) or list(evidence.rows(proof)))
            if elsewhere:
                _keep_totals(connection, old, report.sites)
    return report


def _report(old: OldClerk, dry_run: bool = False) -> Imported:
    odd = [said for site in old.sites for said in site.odd]
    return Imported(dry_run, unfinished=old.unfinished, jobs=old.jobs, warnings=[*old.skipped, *odd])


def _tell(report: Imported, site: OldSite, files: Evidence, known: set[str]) -> bool:
    """Whether it is new."""
    if site.subdomain in known:
        report.known += 1
        return False
    report.sites.append(site.subdomain)
    report.stages[stage_of(site, files) or "new"] += 1
    report.documents += files.total
    report.read += files.completed
    return True


def stage_of(site: OldSite, files: Evidence) -> str | None:
    """Where sources disagree, files decide: the latest that they allow, else the earliest."""
    said = sorted(site.stages, key=_ORDER.index)
    if len(said) < 2:
        return said[0] if said else None
    return next((stage for stage in reversed(said) if files.allows(stage)), said[0])


def _known(connection: Connection) -> set[str]:
    return set(connection.execute(select(tables.site.c.subdomain)).scalars())


# ---- one site


def _add(mill: Mill, connection: Connection, site: OldSite, files: Evidence, documents: list[dict[str, Any]]) -> None:
    stage = stage_of(site, files)
    connection.execute(insert(tables.site).values(_values(site, files, stage)))
    for first in range(0, len(documents), _BATCH):
        connection.execute(insert(tables.document), documents[first : first + _BATCH])
    _remember(connection, site, stage)
    if stage not in (None, "ocr", "completed"):
        start(mill, connection, site.subdomain, Options() if stage == "fetch" else FROM_FILES)


def _values(site: OldSite, files: Evidence, stage: str | None) -> dict[str, Any]:
    now = datetime.now(UTC)
    values = {
        **asdict(site.description),
        "extra": json.dumps(dict(site.description.extra), sort_keys=True),
        "created_at": now,
        "current_stage": stage,
        "started_at": site.started_at,
        "updated_at": (site.updated_at or site.last_updated or now) if stage else None,
        "pages": site.pages,
        "unpublished": stage not in (None, "completed"),  # whatever it was at, the end of it was not seen
        "last_updated": site.last_updated,
        "last_deployed": site.last_deployed,
        "last_extracted": site.last_extracted,
    }
    if stage == "completed":
        values["outcome"] = "no_documents" if site.no_documents and not files.total else "completed"
    return values


def _remember(connection: Connection, site: OldSite, stage: str | None) -> None:
    """Its last good run is history: the next one asks its source from that year on, not for everything. The ledger knows
    no such run, so its number is below zero."""
    ended = site.last_deployed or (site.last_updated or site.updated_at if stage == "completed" else None)
    if ended is None:
        return
    run = tables.run
    lowest = connection.execute(select(func.coalesce(func.min(run.c.run_id), 0))).scalar_one()
    number = min(lowest, 0) - 1
    values = {"run_id": number, "subdomain": site.subdomain, "started_at": ended, "finished_at": ended}
    connection.execute(insert(run).values(**values, outcome="completed", listed=ended))


def _keep_totals(connection: Connection, old: OldClerk, new: list[str]) -> None:
    """From a database elsewhere: what `migrate-stuck-sites` asks of its site_progress."""
    name = older.aside("site_progress")
    if older.tables(connection, [name]):
        return
    connection.exec_driver_sql(f"CREATE TABLE {name} (site_id text PRIMARY KEY, current_stage text, stage_total integer)")
    kept = [
        {"site": site.subdomain, "total": site.stage_total, "stage": min(site.stages, key=_ORDER.index, default=None)}
        for site in old.sites
        if site.subdomain in new
    ]
    if kept:
        connection.execute(text(f"INSERT INTO {name} VALUES (:site, :stage, :total)"), kept)  # noqa: S608 - a constant


# ---- the end of it


@dataclass(frozen=True)
class Finished:
    """What was dropped, or would be."""

    dry_run: bool
    dropped: list[str]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        return [f"{'Would drop' if self.dry_run else 'Dropped'} {', '.join(self.dropped) or 'nothing: there is no import'}"]


def finish_import(config: Config, dry_run: bool = False) -> Finished:
    """Drops what was put aside, unless an older worker may still write."""
    with open_mill(config) as mill, mill.transaction() as connection:
        there = older.tables(connection, [*older.ASIDE, older.WRITES])
        if older.WRITES in there:
            _refuse_if_written(connection)
        if not dry_run:
            older.drop(connection)
    return Finished(dry_run, there)


def _refuse_if_written(connection: Connection) -> None:
    sql = text(f"SELECT max(updated_at) AS last FROM {older.WRITES}")  # noqa: S608 - a constant
    last = connection.execute(sql.columns(last=tables.Moment)).scalar()
    if last is not None and (hours := (datetime.now(UTC) - last).total_seconds() / 3600) < _YOUNG:
        raise ClerkError(
            f"an older worker wrote {hours:.1f} hours ago, so one may still be running: stop it, and finish {_YOUNG} hours"
            f" after the last write; {older.WRITES} has them"
        )
