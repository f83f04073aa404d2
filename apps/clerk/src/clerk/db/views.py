"""The views that operators and analysts ask, one set of queries for each kind of database.

Counters are the ledger's own, looked up by the site's run, so that they are never a copy that lags. What is filtered and
sorted by is in `clerk_site`, with an index. Here and elsewhere clerk asks the ledger's views; its tables (`gm_…`) only where
a view has words or joins for what an index is needed for: of 5,000 sites and 500,000 jobs all must be told within a second.
"""

from __future__ import annotations

from typing import Literal

from clerk.names import STAGES

Kind = Literal["sqlite", "postgresql"]
GATE = "gate"  # the job between ocr and what follows: for people it belongs to ocr
PIPELINE = "site"
JOB_TYPES = dict(zip(STAGES, ("fetch-site", "ocr-page", "db-compilation", "extract-site", "deploy-site"), strict=True))

# The run is over: what became of it, in one word.
OUTCOME = (
    "CASE WHEN r.state IN ('completed', 'completed_with_errors') THEN coalesce(r.reason, 'completed')"
    " WHEN r.state IN ('failed', 'cancelled') THEN r.state END"
)
_COUNTERS = {"total": "g.total - g.skipped", "completed": "g.completed", "failed": "g.failed + g.cancelled"}
_ACTIVE, _WAITING = "0, 1", "7"  # states of gm_run
# A run that completed may have been of some stages only, or not to be published. Without a run it was an older clerk that
# published the site, and it may not have said when.
_PUBLISHED = """CASE WHEN s.unpublished THEN 'needs_deploy'
                    WHEN s.last_deployed IS NOT NULL OR s.run_id IS NULL OR s.outcome <> 'completed' THEN 'deployed'
                    WHEN EXISTS (SELECT 1 FROM clerk_document d WHERE d.subdomain = s.subdomain AND d.state = 'read')
                        THEN 'needs_compilation' ELSE 'needs_ocr' END"""


def views(kind: Kind) -> dict[str, str]:
    """By name; later ones may be about earlier ones."""
    return {
        "clerk_now": _now(),
        "sites": _sites(),
        "job_tracking": _job_tracking(kind),
        "site_progress": _site_progress(),
        "clerk_stuck": _stuck(kind),
        "clerk_health": _health(kind),
        "clerk_throughput": _throughput(kind),
        "clerk_success_rate": _success_rate(),
    }


def _counter(stage: str, what: str) -> str:
    """Skipped ones are no items. Those that were cancelled or purged were not done, so they count as failed."""
    return (
        f"coalesce((SELECT CAST({_COUNTERS[what]} AS integer) FROM gm_stage g"
        f" WHERE g.run_id = s.run_id AND g.name = {stage}), 0)"
    )


def _now() -> str:
    """Where the ledger says that each site is: its active run, else its last one, unless that was purged."""
    return f"""
        SELECT s.subdomain, r.id AS run_id, coalesce(r.started_at, r.created_at) AS started_at, r.finished_at,
            {OUTCOME} AS outcome,
            CASE WHEN r.state IN ('completed', 'completed_with_errors') THEN 'completed' ELSE (
                SELECT CASE g.stage WHEN '{GATE}' THEN 'ocr' ELSE g.stage END FROM gristmill_stages g
                WHERE g.run_id = r.id AND (g.state <> 'closed' OR g.outcome IN ('failed', 'cancelled'))
                ORDER BY g.position LIMIT 1) END AS current_stage
        FROM clerk_site s JOIN gristmill_runs r ON r.id = (
            SELECT x.id FROM gm_run x WHERE x.subject_id = (
                SELECT u.id FROM gm_subject u WHERE u.pipeline = '{PIPELINE}' AND u.name = s.subdomain)
            AND x.state <> {_WAITING}
            ORDER BY CASE WHEN x.state IN ({_ACTIVE}) THEN 0 ELSE 1 END, x.id DESC LIMIT 1)
        WHERE NOT EXISTS (SELECT 1 FROM clerk_run p WHERE p.run_id = r.id AND p.purged)"""


def _sites() -> str:
    counters = ", ".join(f"{_counter(repr(stage), what)} AS {stage}_{what}" for stage in STAGES for what in _COUNTERS)
    return f"""
        SELECT s.subdomain, s.name, s.state, s.kind, s.scraper, s.pages, s.start_year, s.extra, s.country, s.lat, s.lng,
            s.current_stage, s.started_at, s.updated_at, {counters}, false AS coordinator_enqueued,
            s.last_error_stage, s.last_error_message, s.last_error_at,
            CASE WHEN s.current_stage IS NULL THEN 'new' WHEN s.outcome = 'failed' THEN 'error'
                WHEN s.outcome = 'no_documents' THEN 'no_documents' WHEN s.current_stage = 'completed' THEN {_PUBLISHED}
                WHEN s.current_stage = 'fetch' THEN 'fetching' ELSE 'needs_' || s.current_stage END AS status,
            CASE WHEN {_counter("'extraction'", "failed")} > 0 THEN 'failed'
                WHEN {_counter("'extraction'", "completed")} > 0 THEN 'completed'
                WHEN {_counter("'extraction'", "total")} > 0 THEN 'in_progress'
                ELSE 'pending' END AS extraction_status,
            s.last_updated, s.last_deployed, s.last_extracted
        FROM clerk_site s"""


def _job_tracking(kind: Kind) -> str:
    types = " ".join(f"WHEN '{stage}' THEN '{job_type}'" for stage, job_type in JOB_TYPES.items())
    return f"""
        SELECT CAST(j.id AS text) AS rq_job_id, r.subdomain AS site_id, r.subdomain, CASE g.name {types} END AS job_type,
            g.name AS stage, {_time(kind, "j.created_at")} AS created_at
        FROM clerk_run r JOIN gm_stage g ON g.run_id = r.run_id JOIN gm_job j ON j.stage_id = g.id
        WHERE NOT r.purged AND g.name <> '{GATE}'"""


def _site_progress() -> str:
    """Documents in ocr, pages in extraction, else the one job."""
    stage = "CASE s.current_stage WHEN 'completed' THEN 'deploy' ELSE s.current_stage END"
    return f"""
        SELECT s.subdomain AS site_id, s.subdomain, s.current_stage,
            CASE s.current_stage WHEN 'extraction' THEN s.extraction_pages ELSE {_counter(stage, "total")} END
                AS stage_total,
            CASE s.current_stage WHEN 'extraction' THEN s.extracted_pages ELSE {_counter(stage, "completed")} END
                AS stage_completed,
            s.started_at, s.updated_at
        FROM clerk_site s WHERE s.current_stage IS NOT NULL"""


def _stuck(kind: Kind) -> str:
    """Not completed, and no change for two hours. With an `outcome` it waits for a person, else it should move."""
    return f"""
        SELECT s.subdomain, s.current_stage, s.updated_at, {_hours_since(kind, "s.updated_at")} AS hours_stuck, s.outcome
        FROM clerk_site s WHERE s.current_stage <> 'completed' AND s.updated_at < {_ago(kind, "2 hours")}"""


def _health(kind: Kind) -> str:
    return f"""
        SELECT s.current_stage, count(*) AS site_count, avg({_hours_since(kind, "s.updated_at")}) AS avg_hours_in_stage
        FROM clerk_site s WHERE s.current_stage <> 'completed' GROUP BY s.current_stage"""


def _throughput(kind: Kind) -> str:
    """Of the last seven days, from the history of runs: a site may complete several times a day."""
    day = "substr(r.finished_at, 1, 10)" if kind == "sqlite" else "CAST(r.finished_at AT TIME ZONE 'UTC' AS date)"
    return f"""
        SELECT {day} AS date,
            sum(CASE WHEN r.outcome NOT IN ('failed', 'cancelled') THEN 1 ELSE 0 END) AS sites_completed,
            sum(CASE WHEN r.outcome = 'failed' THEN 1 ELSE 0 END) AS runs_failed
        FROM clerk_run r WHERE r.finished_at > {_ago(kind, "7 days")} GROUP BY {day}"""


def _success_rate() -> str:
    """Of the latest run of each site."""
    return " UNION ALL ".join(
        f"""
        SELECT '{stage}' AS stage, CAST(coalesce(sum(s.total), 0) AS integer) AS total_jobs,
            CAST(coalesce(sum(s.completed), 0) AS integer) AS succeeded,
            CAST(coalesce(sum(s.failed), 0) AS integer) AS failed,
            round(100.0 * sum(s.completed) / nullif(sum(s.total), 0), 1) AS success_rate
        FROM (SELECT {", ".join(f"{_counter(repr(stage), what)} AS {what}" for what in _COUNTERS)} FROM clerk_site s) s"""
        for stage in STAGES
    )


# ---- what the two databases say differently


def _time(kind: Kind, micros: str) -> str:
    if kind == "postgresql":
        return f"to_timestamp({micros} / 1e6)"
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {micros} / 1e6, 'unixepoch')"


def _hours_since(kind: Kind, moment: str) -> str:
    if kind == "postgresql":
        return f"CAST(extract(epoch FROM (now() - {moment})) / 3600 AS double precision)"
    return f"(julianday('now') - julianday({moment})) * 24"


def _ago(kind: Kind, span: str) -> str:
    return f"now() - interval '{span}'" if kind == "postgresql" else f"strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{span}')"
