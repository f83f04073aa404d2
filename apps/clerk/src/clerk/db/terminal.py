"""SQL that runs in every transaction that ends jobs of a site: what clerk's tables say of it moves with the ledger.

Each statement sees what ended as the table `jobs`. `started` and `catch_up` run the same for a run that was just started,
or that the ledger has moved without ending a job. The texts are stored with the jobs: treat their tables as an interface.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection, bindparam, text

from clerk.db.tables import Moment
from clerk.db.views import GATE, OUTCOME

# The history: a run's row is there from its start, and gets its end.
_OF_RUN: Final = f"""
    INSERT INTO clerk_run (run_id, subdomain, started_at, finished_at, outcome, error)
    SELECT r.id, r.subject, r.created_at, r.finished_at, {OUTCOME}, substr(r.error, 1, 500)
    FROM (SELECT DISTINCT run_id FROM jobs) j JOIN gristmill_runs r ON r.id = j.run_id
        JOIN clerk_site s ON s.subdomain = r.subject WHERE true"""
_HISTORY: Final = f"""{_OF_RUN}
    ON CONFLICT (run_id) DO UPDATE SET started_at = excluded.started_at, finished_at = excluded.finished_at,
        outcome = excluded.outcome, error = excluded.error"""

# The site: its run, which may be the next one already, and how far that is. Errors and pages are those of one run. One
# site at a time is looked up: as a join, SQLite would go through all of them.
_SITE: Final = """
    UPDATE clerk_site SET (run_id, current_stage, outcome, started_at, updated_at, last_updated, last_error_stage,
        last_error_message, last_error_at, extracted_pages, extraction_pages) = (
        SELECT n.run_id, n.current_stage, n.outcome, n.started_at,
            coalesce(n.finished_at, (SELECT max(j.finished_at) FROM jobs j WHERE j.subject = n.subdomain)),
            coalesce((SELECT max(r.finished_at) FROM gristmill_runs r
                WHERE r.id IN (SELECT j.run_id FROM jobs j WHERE j.subject = n.subdomain)), clerk_site.last_updated),
            CASE WHEN clerk_site.run_id = n.run_id THEN clerk_site.last_error_stage END,
            CASE WHEN clerk_site.run_id = n.run_id THEN clerk_site.last_error_message END,
            CASE WHEN clerk_site.run_id = n.run_id THEN clerk_site.last_error_at END,
            CASE WHEN clerk_site.run_id = n.run_id THEN clerk_site.extracted_pages ELSE 0 END,
            CASE WHEN clerk_site.run_id = n.run_id THEN clerk_site.extraction_pages ELSE 0 END
        FROM clerk_now n WHERE n.subdomain = clerk_site.subdomain)
    WHERE subdomain IN (SELECT subject FROM jobs)
        AND EXISTS (SELECT 1 FROM clerk_now n WHERE n.subdomain = clerk_site.subdomain)"""

_ERROR: Final = f"""
    UPDATE clerk_site SET last_error_stage = CASE j.stage WHEN '{GATE}' THEN 'ocr' ELSE j.stage END,
        last_error_message = substr(coalesce(j.error, j.error_class), 1, 500), last_error_at = j.finished_at
    FROM jobs j WHERE clerk_site.subdomain IN (SELECT subject FROM jobs) AND clerk_site.subdomain = j.subject
        AND clerk_site.run_id = j.run_id AND j.id = (
        SELECT max(f.id) FROM jobs f WHERE f.subject = j.subject AND (f.state = 'failed' OR f.error_class = 'purged'))"""

ENDED: Final = (_HISTORY, _SITE, _ERROR)  #: of every job

# What may work another day is tried again by the next run; what will not is failed for good. Cancelled: it was not tried.
READ: Final = """
    UPDATE clerk_document SET read_at = j.finished_at, run_id = j.run_id, error = substr(j.error, 1, 500),
        state = CASE WHEN j.state <> 'failed' THEN 'read' WHEN j.error_class IN
            ('clerk.errors.Transient', 'clerk.errors.Critical', 'worker_lost', 'gristmill.errors.DatabaseError',
            'gristmill.errors.Unavailable') THEN 'fetched' ELSE 'failed' END
    FROM jobs j WHERE clerk_document.subdomain = j.subject AND clerk_document.key = j.key
        AND j.state IN ('completed', 'completed_with_errors', 'failed')"""

COMPILED: Final = """
    UPDATE clerk_site SET unpublished = true
    WHERE subdomain IN (SELECT subject FROM jobs WHERE state IN ('completed', 'completed_with_errors'))"""

EXTRACTED: Final = """
    UPDATE clerk_site SET last_extracted = j.finished_at
    FROM jobs j WHERE clerk_site.subdomain = j.subject AND j.state IN ('completed', 'completed_with_errors')"""

DEPLOYED: Final = (
    """
    UPDATE clerk_site SET last_deployed = j.finished_at
    FROM jobs j WHERE clerk_site.subdomain = j.subject AND j.state IN ('completed', 'completed_with_errors')""",
    """
    UPDATE clerk_site SET unpublished = false
    WHERE subdomain IN (SELECT subject FROM jobs WHERE state IN ('completed', 'completed_with_errors'))""",
)

_STARTED = "SELECT CAST(:run AS bigint) AS run_id, CAST(:subdomain AS text) AS subject, :now AS finished_at"
_DIFFERING = """
    SELECT n.run_id, n.subdomain AS subject, :now AS finished_at
    FROM clerk_now n JOIN clerk_site s ON s.subdomain = n.subdomain
    WHERE (s.run_id IS DISTINCT FROM n.run_id OR s.current_stage IS DISTINCT FROM n.current_stage
        OR s.outcome IS DISTINCT FROM n.outcome)"""

# Who ends a job of a run takes this row first: who has it sees, with the next statement, all that others have done to the
# run, and nobody does more.
_HOLD: Final = f"{_OF_RUN} ON CONFLICT (run_id) DO UPDATE SET run_id = excluded.run_id"


def started(connection: Connection, subdomain: str, run: int) -> None:
    """A run of this site was started in this transaction (or joined, or waits): its state says so at once."""
    _moved(connection, _STARTED, (_HISTORY, _SITE), subdomain=subdomain, run=run)


def differing(connection: Connection) -> list[str]:
    """Sites whose copy differs from the ledger, which something else than an ending job has moved."""
    found = text(f"SELECT subject FROM ({_DIFFERING}) AS d ORDER BY subject")
    now = bindparam("now", type_=Moment)
    return list(connection.execute(found.bindparams(now), {"now": datetime.now(UTC)}).scalars())


def catch_up(connection: Connection, subdomain: str | None = None) -> int:
    """Brings such a site in step, if it still differs; None: all of them, where nobody else is at work. Says how many."""
    one = {} if subdomain is None else {"subdomain": subdomain}
    which = f"{_DIFFERING} AND s.subdomain = :subdomain" if one else _DIFFERING
    return _moved(connection, which, (_HOLD, _HISTORY, _SITE), **one)


def _moved(connection: Connection, what: str, statements: Iterable[str], **values: object) -> int:
    values["now"] = datetime.now(UTC)
    changed = 0
    for statement in statements:
        sql = text(f"WITH jobs AS ({what}) {statement}").bindparams(bindparam("now", type_=Moment))
        changed = connection.execute(sql, values).rowcount
    return changed
