"""What `reconcile` says and `cleanup-orphaned` does: by site, since that is what an operator knows."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, text

from clerk import health, reconciling, sites
from clerk.db.tables import Moment
from clerk.db.views import PIPELINE
from clerk.sentry import RECOVERED_TWICE
from gristmill import NotFound

if TYPE_CHECKING:
    from gristmill import Mill
    from gristmill.model import Repair

log = logging.getLogger("clerk.reconcile")

_TARGET = re.compile(rf"(run|job|worker|{PIPELINE}) (\S+)")
_LATE = "extraction was not started within 2 h of compilation: published without it"
_UNFINISHED = ("queued", "in_progress")
_MOST_HELD = 10_000  # jobs in progress: each has a slot of a worker

# Of a run that has ended meanwhile, or is being stopped, nothing is said: the engine sees to it.
_SILENT = text("""
    SELECT s.subdomain, s.run_id, s.current_stage, s.updated_at FROM clerk_site s
        JOIN gristmill_runs r ON r.id = s.run_id
    WHERE s.outcome IS NULL AND s.updated_at < :before AND r.state IN ('queued', 'in_progress') ORDER BY s.subdomain
    """).bindparams(bindparam("before", type_=Moment)).columns(updated_at=Moment)  # fmt: skip


@dataclass(frozen=True)
class Recovered:
    """What was found: mended (or to be mended), and left to a person. Each is a site, or whatever it is about, and why."""

    mended: list[tuple[str, str]]
    left: list[tuple[str, str]]
    twice: list[str]  # sites that were mended twice within a day

    @property
    def sites(self) -> int:
        return len({site for site, _ in self.mended})

    def as_json(self) -> dict[str, Any]:
        def listed(found: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
            return [{"site": site, "reason": reason} for site, reason in found]

        return {
            "recovered": listed(self.mended),
            "left": listed(self.left),
            "recovered_twice": self.twice,
            "sites": self.sites,
        }


def recover(
    mill: Mill, *, dry_run: bool = False, threshold_hours: float = 2, subdomain: str | None = None
) -> Recovered | None:
    """None: another one is at work, and this one stepped aside."""
    held = _held(mill, subdomain)
    late = [(site, _LATE) for site, _ in reconciling.late_extractions(mill, subdomain)]
    found = reconciling.reconcile(mill, dry_run=dry_run, threshold_hours=threshold_hours, subdomain=subdomain)
    if found is None:
        return None
    mended: list[tuple[str, str]] = []
    left: list[tuple[str, str]] = []
    for repair in found:
        for site in _sites_of(mill, repair, held):
            (left if repair.left else mended).append((site, _reason(repair)))
    return Recovered(mended + late, left, [] if dry_run else _twice(mill, subdomain))


def _held(mill: Mill, subdomain: str | None) -> Mapping[int, list[str]]:
    """Whose jobs each worker has; once it is rescued nobody knows. Of one site, if only that was asked for."""
    held: dict[int, list[str]] = {}
    for job in mill.jobs(pipeline=PIPELINE, subject=subdomain, state="in_progress", limit=_MOST_HELD):
        if job.worker is not None and job.subject is not None and job.subject not in held.setdefault(job.worker, []):
            held[job.worker].append(job.subject)
    return held


def _sites_of(mill: Mill, repair: Repair, held: Mapping[int, list[str]]) -> list[str]:
    found = _TARGET.match(repair.target)
    if found is None:
        return [repair.target]
    kind, name = found.groups()
    if kind == PIPELINE:
        return [name]
    if kind == "worker":
        return held.get(int(name), [])  # one that held nothing harmed nobody
    try:
        return [str((mill.run if kind == "run" else mill.job)(int(name)).subject)]
    except NotFound:
        return [repair.target]


def _reason(repair: Repair) -> str:
    """`job 7 run 3 stage ocr key …` is only said where it is more than the site."""
    where = repair.target.partition(" stage ")[2]
    about = f" ({where})" if where else ""
    return repair.detail if repair.what == "look into" else f"{repair.what}: {repair.detail}{about}"


def _twice(mill: Mill, subdomain: str | None) -> list[str]:
    with mill.transaction() as connection:
        found = [name for name in health.recovered_often(connection, datetime.now(UTC)) if subdomain in (None, name)]
    for site in found:
        fields = {"kind": RECOVERED_TWICE, "subdomain": site}
        said = "%s was recovered twice within 24 h; if its state has to be mended a third time, its run fails"
        log.error(said, site, extra={"fields": fields})
    return found


# ---- runs without jobs


@dataclass(frozen=True)
class Orphan:
    subdomain: str
    run: int
    stage: str
    updated_at: datetime
    now: str = "found"  # or reset, or enqueued again
    new_run: int | None = None


def orphans(mill: Mill, max_age_hours: float) -> list[Orphan]:
    """Active runs that nothing will move: no job of theirs is queued or leased, and they have not changed for so long."""
    before = datetime.now(UTC) - timedelta(hours=max_age_hours)
    with mill.transaction() as connection:
        rows = connection.execute(_SILENT, {"before": before})
        silent = [Orphan(row.subdomain, row.run_id, row.current_stage, row.updated_at) for row in rows]
    return [one for one in silent if not mill.jobs(run=one.run, state=_UNFINISHED, limit=1)]


def clean_up(mill: Mill, orphan: Orphan, reenqueue: bool) -> Orphan:
    """What the run lacks is put back first: a run ends only when all its items have, and some are not there to end."""
    mill.reconcile(subject=orphan.subdomain, pipeline=PIPELINE)
    if not mill.run(orphan.run).terminal:
        mill.cancel_run(orphan.run, reason="orphaned: no job of it was queued or leased")
    sites.catch_up(mill)
    if not reenqueue:
        return Orphan(orphan.subdomain, orphan.run, orphan.stage, orphan.updated_at, "reset")
    asked = sites.update(mill, orphan.subdomain)
    return Orphan(orphan.subdomain, orphan.run, orphan.stage, orphan.updated_at, "enqueued again", asked.run)
