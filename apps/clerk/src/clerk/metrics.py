"""What clerk adds to the engine's metrics: its pipeline by stage, in the words that operators' dashboards ask for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from clerk import health
from clerk.db.views import PIPELINE
from clerk.names import STAGES
from gristmill.metrics import Family
from gristmill.rollup import BOUNDS, RAN

if TYPE_CHECKING:
    from gristmill import Mill

_DURATIONS = text(f"""
    SELECT t.name, sum(m.ran), {", ".join(f"sum(m.{name})" for name in RAN)}
    FROM gm_minute m JOIN gm_task t ON t.id = m.task_id WHERE t.name LIKE '{PIPELINE}.%' GROUP BY t.name""")  # noqa: S608
_RATES = text("SELECT stage, success_rate FROM clerk_success_rate WHERE success_rate IS NOT NULL")
_RECOVERIES = text("""
    SELECT count(*) FROM (SELECT DISTINCT v.subject_id, v.at FROM gm_recovery v
        JOIN gm_subject u ON u.id = v.subject_id WHERE u.pipeline = :pipeline) AS recovered""")


def measure(mill: Mill, now: datetime | None = None) -> list[Family]:
    with mill.transaction() as connection:
        return [
            _duration(connection),
            _success_rate(connection),
            _stuck(connection),
            _recoveries(connection),
            _warnings(connection, now or datetime.now(UTC)),
        ]


def _duration(connection: Connection) -> Family:
    """From what the engine counts as jobs end: that only grows, and outlives the runs that it was counted from."""
    family = Family(
        "pipeline_stage_duration_seconds", "histogram", "How long jobs took; in ocr documents, or parts of them."
    )
    counts = {stage: [0] * len(RAN) for stage in STAGES}
    seconds = dict.fromkeys(STAGES, 0.0)
    for task, micros, *buckets in connection.execute(_DURATIONS):
        stage = task.split(".")[1]  # parts are `site.ocr.chunk`
        if stage in counts:
            counts[stage] = [before + int(n) for before, n in zip(counts[stage], buckets, strict=True)]
            seconds[stage] += int(micros) / 1_000_000
    for stage in STAGES:
        if any(counts[stage]):
            family.add_histogram(BOUNDS, counts[stage], seconds[stage], stage=stage)
    return family


def _success_rate(connection: Connection) -> Family:
    family = Family("pipeline_stage_success_rate", "gauge", "Of the latest run of each site, from 0 to 1.")
    for row in connection.execute(_RATES):
        family.add(float(row.success_rate) / 100, stage=row.stage)
    return family


def _stuck(connection: Connection) -> Family:
    family = Family("pipeline_stuck_sites_count", "gauge", "Sites whose run has not moved for 2 h.")
    family.add(len(health.stuck(connection)))
    return family


def _recoveries(connection: Connection) -> Family:
    family = Family("reconciliation_recoveries_total", "counter", "Sites that reconcile has recovered.")
    family.add(connection.execute(_RECOVERIES, {"pipeline": PIPELINE}).scalar_one())
    return family


def _warnings(connection: Connection, now: datetime) -> Family:
    """As `health` gives them: priority is strict, and high work that never ends leaves nothing for others."""
    family = Family("pipeline_priority_warning", "gauge", "1: high work is queued for 60 min, or other work 2 h behind it.")
    waiting = health.waiting(connection, now)
    for warning, stages in (("high_for_an_hour", waiting.high), ("waiting_behind_high", waiting.behind)):
        for stage in STAGES:
            family.add(int(stage in stages), stage=stage, warning=warning)
    return family
