"""Whether all is well: 0 healthy, 1 degraded, 2 unhealthy, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, bindparam, text

from clerk import status
from clerk.db.tables import Moment
from clerk.db.views import PIPELINE
from clerk.names import STAGES

if TYPE_CHECKING:
    from clerk.config import Config
    from gristmill import Mill

STATUSES: Final = ("healthy", "degraded", "unhealthy")  # by exit code

# From these numbers on: a warning, critical.
DEPTHS: Final[Mapping[str, tuple[int, int]]] = {
    "high": (50, 100),
    "fetch": (25, 50),
    "ocr": (250, 500),
    "compilation": (50, 100),
    "extraction": (50, 100),
    "deploy": (25, 50),
}
FAILED_RUNS: Final = (5, 20)  # above these, within 24 h
COMPLETION_RATE: Final = (95.0, 80.0)  # below these, within 1 h
LONGEST_HIGH: Final = timedelta(minutes=60)  # that high work may be queued
LONGEST_BEHIND: Final = timedelta(hours=2)  # that others may wait behind it
OVERDUE: Final = timedelta(hours=23 + 24)  # since the end of the last run
LATELY: Final = timedelta(minutes=10)  # an item that nobody could work on comes back after one
RECOVERIES: Final = 2  # of a site within 24 h
_NAMED = 5  # sites that a sentence names

_OUTCOMES = text("""
    SELECT CASE WHEN outcome = 'failed' THEN 'failed' ELSE 'completed' END AS outcome, count(*) AS runs FROM clerk_run
    WHERE finished_at > :since AND outcome <> 'cancelled'
    GROUP BY CASE WHEN outcome = 'failed' THEN 'failed' ELSE 'completed' END
    """).bindparams(bindparam("since", type_=Moment))  # fmt: skip
_FAILED = text("""
    SELECT subdomain FROM clerk_run WHERE finished_at > :since AND outcome = 'failed'
    GROUP BY subdomain ORDER BY max(finished_at) DESC""").bindparams(bindparam("since", type_=Moment))
_STUCK = text("SELECT subdomain FROM clerk_stuck WHERE outcome IS NULL ORDER BY hours_stuck DESC")
_OVERDUE = text("""
    SELECT s.subdomain FROM clerk_site s WHERE (s.outcome IS NOT NULL OR s.run_id IS NULL)
        AND coalesce(s.last_updated, s.created_at) < (CASE WHEN s.last_updated IS NULL THEN :new ELSE :since END)
    ORDER BY s.last_updated
    """).bindparams(bindparam("since", type_=Moment), bindparam("new", type_=Moment))  # fmt: skip
_RETURNED = text("""
    SELECT s.subdomain, s.last_error_message AS why FROM clerk_site s JOIN clerk_run r ON r.run_id = s.run_id
    WHERE s.outcome IS NULL AND r.returns > 0 AND s.last_error_at > :since ORDER BY s.last_error_at DESC
    """).bindparams(bindparam("since", type_=Moment))  # fmt: skip
_HAS_RUN = text("""
    SELECT EXISTS (SELECT 1 FROM clerk_run) OR EXISTS (SELECT 1 FROM clerk_site WHERE last_updated IS NOT NULL)""")
_RECOVERED = text("""
    SELECT u.name FROM gm_recovery v JOIN gm_subject u ON u.id = v.subject_id
    WHERE u.pipeline = :pipeline AND v.at > :since AND v.what <> 'adopt'
    GROUP BY u.name HAVING count(DISTINCT v.at) >= :often ORDER BY u.name""")
# Of each line the one who has waited longest; looked up by index, not by going through all who wait.
_HEADS = text("""
    SELECT q.name AS queue, h.priority, min(j.created_at) AS since FROM (
        SELECT queue_id, pool, priority, min(ready) AS ready FROM gm_job WHERE ready IS NOT NULL
        GROUP BY queue_id, pool, priority) h
    JOIN gm_job j ON j.queue_id = h.queue_id AND j.pool = h.pool AND j.priority = h.priority AND j.ready = h.ready
    JOIN gm_queue q ON q.id = h.queue_id GROUP BY q.name, h.priority""")

# When high jobs of a stage came and when they were begun, latest first: of runs that are active or ended since.
_BEGUN = text("""
    SELECT j.created_at, j.started_at FROM (
        SELECT run_id FROM clerk_site WHERE outcome IS NULL AND run_id IS NOT NULL
        UNION SELECT run_id FROM clerk_run WHERE finished_at > :since) r
    JOIN gm_stage g ON g.run_id = r.run_id JOIN gm_queue q ON q.id = g.queue_id JOIN gm_job j ON j.stage_id = g.id
    WHERE q.name = :queue AND j.priority = 0 AND j.attempt = 1 AND j.started_at > :micros
    ORDER BY j.started_at DESC""").bindparams(bindparam("since", type_=Moment))


@dataclass
class Health:
    """What was looked at, and what is wrong with it."""

    at: datetime
    checks: dict[str, Any] = field(default_factory=dict)
    issues: list[str] = field(default_factory=list)  # each alone makes it unhealthy
    warnings: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 2 if self.issues else 1 if self.warnings else 0

    @property
    def status(self) -> str:
        return STATUSES[self.exit_code]

    def as_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "timestamp": self.at,
            "checks": self.checks,
            "issues": self.issues,
            "warnings": self.warnings,
        }

    def judge(self, value: float, limits: tuple[float, float], said: str, *, low: bool = False) -> None:
        """`low`: what is below the limits is wrong, else what is above or at them."""
        warn, critical = ((value < limit) if low else (value >= limit) for limit in limits)
        if critical:
            self.issues.append(said)
        elif warn:
            self.warnings.append(said)

    def warn_of(self, name: str, sites: list[str], said: str) -> None:
        self.checks[name] = len(sites)
        if sites:
            self.warnings.append(f"{len(sites)} {said}: {_some(sites)}")


def _some(sites: list[str]) -> str:
    return ", ".join(sites[:_NAMED]) + (", …" if len(sites) > _NAMED else "")


def unreachable(why: str, now: datetime | None = None) -> Health:
    """What is said if nobody could even ask."""
    return Health(now or datetime.now(UTC), {"database": False}, [f"the database cannot be used: {why}"])


def look(mill: Mill, config: Config, now: datetime | None = None) -> Health:
    found = Health(now or datetime.now(UTC))
    with mill.transaction() as connection:
        found.checks["database"] = True
        depths = status.depths(connection)
        for check in (_runs, _sites, _waiting):
            check(connection, found)
        _storage(config.storage, found, new=not connection.execute(_HAS_RUN).scalar_one())
    _queues(found, depths)
    _workers(mill, found, depths)
    if config.redis_url:
        _redis(mill, found)
    return found


def _queues(found: Health, depths: status.Depths) -> None:
    found.checks["queues"] = depths.lines()
    for name, count in depths.lines().items():
        found.judge(count, DEPTHS[name], f"{status.LINES[name]}: {count} jobs are queued")


def _workers(mill: Mill, found: Health, depths: status.Depths) -> None:
    """Of a type without work nobody needs to be there."""
    alive = [worker for worker in mill.workers() if worker.lease_until is None or worker.lease_until > found.at]
    serving = {stage: sum(not worker.queues or stage in worker.queues for worker in alive) for stage in STAGES}
    found.checks["workers"] = serving
    for stage in STAGES:
        if depths.of(stage) and not serving[stage]:
            found.issues.append(
                f"{depths.of(stage)} jobs are queued for {stage}, and no worker of that type is alive;"
                f" `clerk worker {stage}` starts one"
            )


def _runs(connection: Connection, found: Health) -> None:
    day, hour = (_outcomes(connection, found.at - span) for span in (timedelta(hours=24), timedelta(hours=1)))
    failed, ended = day["failed"], sum(hour.values())
    rate = round(100 * hour["completed"] / ended, 1) if ended else None
    found.checks |= {"failed_runs_24h": failed, "completion_rate_1h": rate}
    warn, critical = FAILED_RUNS
    named = f": {_some(_names(connection, _FAILED, since=found.at - timedelta(hours=24)))}" if failed else ""
    found.judge(failed, (warn + 1, critical + 1), f"{failed} runs failed within 24 h{named}")
    if rate is not None:
        said = f"{rate} % of the {ended} runs of the last hour completed"
        found.judge(rate, COMPLETION_RATE, f"{said}; failed within 24 h{named}", low=True)


def _outcomes(connection: Connection, since: datetime) -> dict[str, int]:
    rows = connection.execute(_OUTCOMES, {"since": since})
    return {"completed": 0, "failed": 0} | {row.outcome: int(row.runs) for row in rows}


def _sites(connection: Connection, found: Health) -> None:
    found.warn_of("stuck_sites", stuck(connection), "sites have not moved for 2 h")
    overdue = {"since": found.at - OVERDUE, "new": found.at - timedelta(hours=24)}
    found.warn_of("overdue_sites", _names(connection, _OVERDUE, **overdue), "sites are overdue by 24 h")
    found.warn_of("recovered_twice", recovered_often(connection, found.at), "sites were recovered twice within 24 h")
    rows = connection.execute(_RETURNED, {"since": found.at - LATELY}).all()
    found.checks["critical_errors"] = len(rows)
    if rows:
        found.issues.append(f"nobody can work on {_some([row.subdomain for row in rows])}: {rows[0].why}")


def stuck(connection: Connection) -> list[str]:
    """Sites that should move and have not for two hours, longest first."""
    return _names(connection, _STUCK)


def _names(connection: Connection, sql: Any, **values: object) -> list[str]:
    return [str(name) for name in connection.execute(sql, values).scalars()]


def recovered_often(connection: Connection, now: datetime) -> list[str]:
    """Sites that reconcile had to mend, or to take back from lost workers, in two passes within a day."""
    since = int((now - timedelta(hours=24)).timestamp() * 1_000_000)
    return _names(connection, _RECOVERED, pipeline=PIPELINE, since=since, often=RECOVERIES)


@dataclass(frozen=True)
class Waiting:
    """Stages in which high work is queued for too long, or other work behind it."""

    high: list[str]
    behind: list[str]


def waiting(connection: Connection, now: datetime) -> Waiting:
    """Priority is strict, so high work that never ends leaves nothing for others."""
    since: dict[bool, dict[str, datetime]] = {True: {}, False: {}}
    for row in connection.execute(_HEADS):
        at = datetime.fromtimestamp(row.since / 1_000_000, UTC)
        lines = since[row.priority == 0]
        lines[row.queue] = min(at, lines.get(row.queue, at))
    high = [stage for stage, at in since[True].items() if _is_without_pause(connection, stage, at, now - LONGEST_HIGH)]
    behind = [stage for stage, at in since[False].items() if stage in since[True] and now - at >= LONGEST_BEHIND]
    return Waiting(high, behind)


def _is_without_pause(connection: Connection, stage: str, at: datetime, since: datetime) -> bool:
    """Whether high work of this stage is queued ever since: `at` is when the first one came that is still there. Before
    that, whoever came had to wait until another one was begun."""
    if at <= since:
        return True
    begun = {"queue": stage, "since": since, "micros": int(since.timestamp() * 1_000_000)}
    earliest = int(at.timestamp() * 1_000_000)
    for row in connection.execute(_BEGUN, begun):
        if row.started_at < earliest:
            return False
        earliest = min(earliest, row.created_at)
        if earliest <= begun["micros"]:
            return True
    return False


def _waiting(connection: Connection, found: Health) -> None:
    lines = waiting(connection, found.at)
    found.checks |= {"high_for_an_hour": lines.high, "waiting_behind_high": lines.behind}
    if lines.high:
        found.warnings.append(f"high priority work has been queued for 60 min in {', '.join(lines.high)}")
    if lines.behind:
        found.warnings.append(f"other work has waited over 2 h behind high priority work in {', '.join(lines.behind)}")


def _storage(folder: Path, found: Health, new: bool) -> None:
    """`new`: no site has ever run. The first one makes the folder, so then it only must be possible to make it."""
    makes = new and not folder.exists()
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists()) if makes else folder
    good = there.is_dir() and os.access(there, os.R_OK | os.W_OK | os.X_OK)
    found.checks["storage"] = good
    if not good:
        wrong = "cannot be made" if makes else "cannot be written" if folder.is_dir() else "is not there"
        found.issues.append(f"STORAGE_DIR {folder} {wrong}")


def _redis(mill: Mill, found: Health) -> None:
    said = [one for one in mill.doctor() if one.check == "redis"]
    found.checks["redis"] = all(one.ok for one in said)
    found.warnings += [f"Redis: {one.sentence}" for one in said if not one.ok]
