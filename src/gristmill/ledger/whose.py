"""Whose jobs a repair is about: everybody's, or those of runs of one subject, of one pipeline, or of one in the other."""

from __future__ import annotations

from typing import NamedTuple


class Whose(NamedTuple):
    """None: of all."""

    subject: str | None = None
    pipeline: str | None = None


ALL = Whose()
MATCHES = (
    "(CAST(:subject AS text) IS NULL OR s.name = :subject) AND (CAST(:pipeline AS text) IS NULL OR s.pipeline = :pipeline)"
)


def of(run: str) -> str:
    """A condition on the column with a job's run. Jobs on their own are only among all jobs."""
    runs = f"SELECT r.id FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id WHERE {MATCHES}"
    return f"((CAST(:subject AS text) IS NULL AND CAST(:pipeline AS text) IS NULL) OR {run} IN ({runs}))"
