"""What was done before: the fingerprint of each item's last success, per subject, stage and key. Outlives the runs."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx

_LAST = Sql(
    "SELECT d.run_id FROM gm_done d JOIN gm_subject s ON s.id = d.subject_id WHERE s.pipeline = :pipeline"
    " AND s.name = :subject AND d.stage = :stage AND d.key = :key AND d.fingerprint = :fingerprint"
)
_RESULT = Sql("SELECT result FROM gm_job WHERE id = :job")
_REMEMBER = Sql(
    "INSERT INTO gm_done (subject_id, stage, key, fingerprint, run_id, at)"
    " SELECT r.subject_id, g.name, j.key, f.digest, j.run_id, {now} FROM {rows f: job bigint, digest text}"
    " JOIN gm_job j ON j.id = f.job JOIN gm_stage g ON g.id = j.stage_id JOIN gm_run r ON r.id = j.run_id WHERE true"
    " ON CONFLICT (subject_id, stage, key) DO UPDATE SET fingerprint = excluded.fingerprint, run_id = excluded.run_id,"
    " at = excluded.at"
)
_FORGET_JOBS = Sql(
    "DELETE FROM gm_done WHERE (subject_id, stage, key, run_id) IN (SELECT r.subject_id, g.name, j.key, r.id FROM gm_job j"
    " JOIN gm_stage g ON g.id = j.stage_id JOIN gm_run r ON r.id = j.run_id WHERE j.id {in ids})"
)
_FORGET_ALL = Sql(
    "DELETE FROM gm_done WHERE subject_id IN (SELECT id FROM gm_subject WHERE pipeline = :pipeline AND name = :subject)"
)
_FORGET_STAGE = Sql(_FORGET_ALL.text + " AND stage = :stage")


def done_before(tx: Tx, pipeline: str, subject: str, stage: str, key: str, fingerprint: str) -> int | None:
    """The run in which this item succeeded with this very fingerprint, if that was the last time it succeeded."""
    run: int | None = tx.value(_LAST, pipeline=pipeline, subject=subject, stage=stage, key=key, fingerprint=fingerprint)
    return run


def result_before(tx: Tx, job: int) -> str | None:
    """What came of a job, as JSON, when its run did it before."""
    result: str | None = tx.value(_RESULT, job=job)
    return result


def remember(tx: Tx, digests: Sequence[tuple[int, str]]) -> None:
    """(job, fingerprint) of jobs that succeed in this transaction."""
    if digests:
        tx.run(_REMEMBER, f=sorted(digests))


def forget_jobs(tx: Tx, jobs: Sequence[int]) -> None:
    """These have no result any more that could stand for their last success in this run."""
    if jobs:
        tx.run(_FORGET_JOBS, ids=jobs)


def forget(tx: Tx, pipeline: str, subject: str, stage: str | None = None) -> int:
    """So that everything (or one stage) of a subject is done afresh; says how many fingerprints there were."""
    if stage is None:
        return tx.run(_FORGET_ALL, pipeline=pipeline, subject=subject)
    return tx.run(_FORGET_STAGE, pipeline=pipeline, subject=subject, stage=stage)
