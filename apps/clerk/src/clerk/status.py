"""What `status` says: how long each queue is, and where the sites are. On a large ledger, too, it takes under a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, text

from clerk import sites
from clerk.names import STAGES

if TYPE_CHECKING:
    from gristmill import Mill

HIGH: Final = "high"
LINES: Final[Mapping[str, str]] = {
    HIGH: "High priority",
    "fetch": "Fetch",
    "ocr": "OCR",
    "compilation": "Compilation",
    "extraction": "Extraction",
    "deploy": "Deploy",
}
_COUNTS_BEGIN: Final = 15  # characters before the number: it stands in column 16

# Each part is answered by an index of its own. A document in parts is one job, which waits for them: they are left out.
_QUEUED = text("""
    SELECT q.name AS queue, c.priority, sum(c.jobs) AS jobs FROM (
        SELECT queue_id, priority, count(*) AS jobs FROM gm_job WHERE ready IS NOT NULL GROUP BY queue_id, priority
        UNION ALL SELECT queue_id, priority, -count(*) FROM gm_job
        WHERE stage_id IS NULL AND parent_id IS NOT NULL AND ready IS NOT NULL GROUP BY queue_id, priority
        UNION ALL SELECT queue_id, priority, count(*) FROM gm_job
        WHERE run_at IS NOT NULL AND stage_id IS NOT NULL GROUP BY queue_id, priority
        UNION ALL SELECT queue_id, priority, count(*) FROM gm_job
        WHERE parts_left > 0 AND stage_id IS NOT NULL AND state = 0 AND ready IS NULL AND run_at IS NULL
        GROUP BY queue_id, priority
    ) c JOIN gm_queue q ON q.id = c.queue_id GROUP BY q.name, c.priority""")
_FAILED = text(
    f"SELECT {' + '.join(f'{stage}_failed' for stage in STAGES)} FROM sites WHERE subdomain = :subdomain"  # noqa: S608
)
_BY_STAGE = text("""
    SELECT coalesce(current_stage, 'never run') AS stage, count(*) AS sites FROM clerk_site
    GROUP BY coalesce(current_stage, 'never run')""")
_RATES = text("SELECT stage, total_jobs, succeeded, failed, success_rate FROM clerk_success_rate")


@dataclass(frozen=True)
class Depths:
    """Jobs that are queued, of each stage, by whether their run has high priority."""

    high: Mapping[str, int]
    others: Mapping[str, int]

    def lines(self) -> dict[str, int]:
        """The high ones of every stage first, then the others of each; the sum is the queue."""
        return {HIGH: sum(self.high.values()), **{stage: self.others.get(stage, 0) for stage in STAGES}}

    def of(self, stage: str) -> int:
        return self.high.get(stage, 0) + self.others.get(stage, 0)


def depths(connection: Connection) -> Depths:
    high: dict[str, int] = {}
    others: dict[str, int] = {}
    for row in connection.execute(_QUEUED):
        kind = high if row.priority == 0 else others
        kind[row.queue] = kind.get(row.queue, 0) + int(row.jobs)
    return Depths(high, others)


# ---- all of it


@dataclass(frozen=True)
class Overview:
    queues: Mapping[str, int]
    active: list[sites.Progress]

    def text(self) -> str:
        queues = [f"{LINES[name] + ':':<{_COUNTS_BEGIN}}{count} jobs" for name, count in self.queues.items()]
        active = [f"  {one.site_id}: {_where(one)}" for one in self.active] or ["  none"]
        return "\n".join(["=== Queue Status ===", *queues, "", "=== Active Sites ===", *active])

    def as_json(self) -> dict[str, Any]:
        return {"queues": dict(self.queues), "active_sites": [asdict(one) for one in self.active]}


def _where(one: sites.Progress) -> str:
    if one.stage_total < 2:
        return one.current_stage
    done = 100 * one.stage_completed // one.stage_total
    return f"{one.current_stage} ({one.stage_completed}/{one.stage_total}, {done}%)"


def overview(mill: Mill) -> Overview:
    with mill.transaction() as connection:
        queues = depths(connection).lines()
    return Overview(queues, sites.active(mill))


# ---- one site


@dataclass(frozen=True)
class SiteStatus:
    site: sites.Site
    progress: sites.Progress | None  # None: it has no run
    failed: int

    def text(self) -> str:
        if self.progress is None:
            return f"No progress tracking found for site: {self.site.subdomain}"
        one = self.progress
        share = (
            100 * one.stage_completed / one.stage_total if one.stage_total else 100.0 * (one.current_stage == "completed")
        )
        lines = [
            f"Site: {one.site_id}",
            f"Current stage: {one.current_stage}",
            f"Progress: {one.stage_completed}/{one.stage_total} ({share:.1f}%)",
            f"Started: {_moment(one.started_at)}",
            f"Updated: {_moment(one.updated_at)}",
        ]
        if self.site.outcome is not None:
            lines.append(f"Outcome: {self.site.outcome}")
        if self.site.outcome is not None and self.site.pages:
            lines.append(f"Pages: {self.site.pages}, published: {_moment(self.site.last_deployed)}")
        if self.failed:
            lines.append(f"Failed: {self.failed}")
        if self.site.last_error_message:
            lines.append(f"Last error: {self.site.last_error_message}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        names = ("current_stage", "stage_total", "stage_completed", "started_at", "updated_at")
        progress: Mapping[str, Any] = dict.fromkeys(names) if self.progress is None else asdict(self.progress)
        site = self.site
        return {
            "site_id": site.subdomain,
            **{name: progress[name] for name in names},
            "failed": self.failed,
            "outcome": site.outcome,
            "last_error_stage": site.last_error_stage,
            "last_error_message": site.last_error_message,
            "last_error_at": site.last_error_at,
            "pages": site.pages,
            "last_updated": site.last_updated,
            "last_deployed": site.last_deployed,
        }


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "-"


def of_site(mill: Mill, subdomain: str) -> SiteStatus:
    site = sites.find(mill, subdomain)
    found = sites.progress(mill, subdomain)
    with mill.transaction() as connection:
        failed = connection.execute(_FAILED, {"subdomain": subdomain}).scalar_one()
    return SiteStatus(site, found[0] if found else None, int(failed))


# ---- totals


@dataclass(frozen=True)
class Totals:
    """How many sites are in each stage, and what became of the jobs of their latest runs."""

    sites: Mapping[str, int]
    stages: Mapping[str, Mapping[str, float | int | None]]

    def text(self) -> str:
        order = [*STAGES, "completed", "never run"]
        lines = ["=== Sites ===", *(f"{name + ':':<{_COUNTS_BEGIN}}{self.sites.get(name, 0)}" for name in order)]
        lines += ["", "=== Jobs of latest runs ==="]
        for stage, one in self.stages.items():
            rate = "" if one["success_rate"] is None else f" ({one['success_rate']}%)"
            done = f"{one['succeeded']}/{one['total']} completed{rate}, {one['failed']} failed"
            lines.append(f"{LINES[stage] + ':':<{_COUNTS_BEGIN}}{done}")
        return "\n".join(lines)


def totals(mill: Mill) -> Totals:
    with mill.transaction() as connection:
        by_stage = {row.stage: int(row.sites) for row in connection.execute(_BY_STAGE)}
        rates = {
            row.stage: {
                "total": int(row.total_jobs),
                "succeeded": int(row.succeeded),
                "failed": int(row.failed),
                "success_rate": None if row.success_rate is None else float(row.success_rate),
            }
            for row in connection.execute(_RATES)
        }
    return Totals(by_stage, rates)
