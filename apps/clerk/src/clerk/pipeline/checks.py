"""What only clerk can see, for `reconcile`: all of it is left to a person, and listed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sqlalchemy import Connection, text

from clerk.config import load
from clerk.db.views import PIPELINE
from gristmill import Context, Finding, check

_FAILED = """
    SELECT s.subdomain, s.current_stage, s.last_error_message FROM clerk_site s
    WHERE s.outcome = 'failed' AND (:subject IS NULL OR s.subdomain = :subject) ORDER BY s.subdomain"""
_SILENT = """
    SELECT t.subdomain, t.current_stage, t.hours_stuck FROM clerk_stuck t
    WHERE t.outcome IS NULL AND (:subject IS NULL OR t.subdomain = :subject) ORDER BY t.subdomain"""
_RETURNED = """
    SELECT s.subdomain, s.last_error_message, r.returns FROM clerk_site s JOIN clerk_run r ON r.run_id = s.run_id
    WHERE s.outcome IS NULL AND r.returns > 0 AND (:subject IS NULL OR s.subdomain = :subject) ORDER BY s.subdomain"""


def _rows(ctx: Context, sql: str) -> Iterator[tuple[str, str | None, object]]:
    with ctx.transaction() as connection:
        found = _asked(connection, sql, ctx.subject)
    yield from found


def _asked(connection: Connection, sql: str, subject: str | None) -> list[tuple[str, str | None, object]]:
    rows = connection.execute(text(sql.replace(":subject", "CAST(:subject AS text)")), {"subject": subject})
    return [(row[0], row[1], row[2]) for row in rows]


def _about(subdomain: str, detail: str) -> Finding:
    return Finding(detail, pipeline=PIPELINE, subject=subdomain)


@check
def failed_runs(ctx: Context) -> Iterator[Finding]:
    """All documents unreadable, an index out of reach, a compilation that fails: the next run may do better, or nobody."""
    for subdomain, stage, error in _rows(ctx, _FAILED):
        yield _about(subdomain, f"its run failed in {stage}: {error}")


@check
def silent_runs(ctx: Context) -> Iterator[Finding]:
    """No change for two hours. Whether its worker is alive the ledger looks at; if so, this is all that can be said."""
    for subdomain, stage, hours in _rows(ctx, _SILENT):
        yield _about(subdomain, f"no change in {stage} for {float(str(hours)):.1f} hours")


@check
def critical_errors(ctx: Context) -> Iterator[Finding]:
    for subdomain, error, returns in _rows(ctx, _RETURNED):
        yield _about(subdomain, f"nobody can work on it (given back {returns} times): {error}")


@check
def storage(ctx: Context) -> Iterator[Finding]:
    folder = load().storage
    if not folder.is_dir():
        yield Finding(f"STORAGE_DIR {folder} is not there")
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(f"STORAGE_DIR {folder} cannot be written")
