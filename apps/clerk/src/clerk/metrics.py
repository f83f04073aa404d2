"""What clerk adds to the engine's metrics: its pipeline by stage, in the words that operators' dashboards ask for."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from clerk import health
from clerk.db.views import PIPELINE
from clerk.names import STAGES
from gristmill.metrics import Family, Labels, Sample

if TYPE_CHECKING:
    from gristmill import Mill

_RATES = text("SELECT stage, success_rate FROM clerk_success_rate WHERE success_rate IS NOT NULL")
_RECOVERIES = text("""
    SELECT count(*) FROM (SELECT DISTINCT v.subject_id, v.at FROM gm_recovery v
        JOIN gm_subject u ON u.id = v.subject_id WHERE u.pipeline = :pipeline) AS recovered""")


def measure(mill: Mill, now: datetime | None = None) -> list[Family]:
    with mill.transaction() as connection:
        of_sites = [
            _success_rate(connection),
            _stuck(connection),
            _recoveries(connection),
            _warnings(connection, now or datetime.now(UTC)),
        ]
    return [_duration(mill), *of_sites]


def _duration(mill: Mill) -> Family:
    """The engine's own histogram, by stage: it only grows, and outlives the runs that it was counted from."""
    family = Family(
        "pipeline_stage_duration_seconds", "histogram", "How long jobs took; in ocr documents, or parts of them."
    )
    [counted] = [one for one in mill.metrics() if one.name == "gristmill_job_run_seconds"]
    sums: dict[tuple[Labels, str], float] = defaultdict(float)
    for sample in counted.samples:
        labels = dict(sample.labels)
        pipeline, _, stage = labels["task"].partition(".")
        stage = stage.partition(".")[0]  # parts are `site.ocr.chunk`
        if pipeline == PIPELINE and stage in STAGES:
            bound = [("le", labels["le"])] if "le" in labels else []
            sums[(("stage", stage), *bound), sample.suffix] += sample.value
    family.samples = [Sample(value, labels, suffix) for (labels, suffix), value in sums.items()]
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
