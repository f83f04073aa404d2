"""`migrate-stuck-sites`: the sites that an import found in ocr go on from their files, each with one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select, update

from clerk.app import open_mill
from clerk.config import Config
from clerk.db import older, tables
from clerk.legacy import evidence, rq
from clerk.legacy.going_on import FROM_FILES, left_unfinished, start
from clerk.legacy.rows import stage_totals
from clerk.legacy.rq import Cleared
from clerk.sites import Options

if TYPE_CHECKING:
    from gristmill import Mill


@dataclass(frozen=True)
class Stuck:
    """What the older clerk had done of a site. What it had not counts as failed, and the next run tries it again."""

    subdomain: str
    scraper: str
    completed: int
    total: int
    here: bool  # its documents are in the storage; else the next run has to fetch them

    @property
    def failed(self) -> int:
        return self.total - self.completed

    def line(self) -> str:
        return f"  {self.subdomain}: {self.completed}/{self.total} completed, {self.failed} failed"


@dataclass
class Migrated:
    dry_run: bool
    found: list[Stuck]
    migrated: int = 0
    cleared: Cleared | None = None  # None: no Redis was asked
    warnings: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        found = [asdict(stuck) | {"failed": stuck.failed} for stuck in self.found]
        return {**asdict(self), "found": found}

    def lines(self) -> list[str]:
        said = [f"Found {len(self.found)} stuck sites in OCR stage", *(stuck.line() for stuck in self.found)]
        said.append(f"{'Would migrate' if self.dry_run else 'Migrated'} {self.migrated} sites")
        return [*said, *(self.cleared.lines(self.dry_run) if self.cleared else [])]


def migrate_stuck_sites(config: Config, dry_run: bool = False) -> Migrated:
    """All sites in one transaction. What older queues hold of them is cleared after it, since it may go on without."""
    with older.looking(config.database_url) as connection:
        older.refuse(connection)
    with open_mill(config) as mill:
        report = Migrated(dry_run, _look(mill, config))
        if dry_run:
            report.migrated = len(report.found)
        else:
            with mill.transaction() as connection:
                report.migrated = sum(_migrate(mill, connection, stuck) for stuck in report.found)
    if config.redis_url:
        report.cleared, warning = rq.clear(config.redis_url, dry_run)
        report.warnings += [warning] if warning else []
    return report


def _look(mill: Mill, config: Config) -> list[Stuck]:
    site = tables.site
    wanted = select(site.c.subdomain, site.c.scraper).where(left_unfinished(), site.c.current_stage == "ocr")
    with mill.transaction() as connection:
        found = connection.execute(wanted.order_by(site.c.subdomain)).all()
        totals = stage_totals(connection)
    return [_stuck(config, row.subdomain, row.scraper, totals.get(row.subdomain, 0)) for row in found]


def _stuck(config: Config, subdomain: str, scraper: str, stage_total: int) -> Stuck:
    """Documents are counted; what the older clerk had counted is believed only where its files are not there at all."""
    files = evidence.look(config.storage, subdomain)
    total = files.total if files.is_there else stage_total
    return Stuck(subdomain, scraper, files.completed, total, here=files.total > 0)


def _migrate(mill: Mill, connection: Connection, stuck: Stuck) -> bool:
    """False: meanwhile it has got a run."""
    site = tables.site
    mine = (site.c.subdomain == stuck.subdomain) & left_unfinished()
    if stuck.total:
        there = connection.execute(select(site.c.subdomain).where(mine)).first()
        options = FROM_FILES if stuck.here else Options(all_years=True)
        return there is not None and start(mill, connection, stuck.subdomain, options)
    now = datetime.now(UTC)
    error = {"last_error_stage": "fetch", "last_error_message": f"No PDFs found for {stuck.subdomain} ({stuck.scraper})"}
    ended = {"current_stage": "completed", "outcome": "no_documents", "unpublished": False, "updated_at": now}
    return connection.execute(update(site).where(mine).values(**error, last_error_at=now, **ended)).rowcount == 1
