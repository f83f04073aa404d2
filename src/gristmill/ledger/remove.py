"""Removing for good: ended jobs on their own, and ended runs with all that is theirs.

A run goes in one transaction, with its stages; its jobs follow in batches. Their stages are in `gm_removal` until the last
is gone, so that whoever comes by can go on. Nobody ever sees a run of which some jobs are missing, and fingerprints of
what was done (`gm_done`) stay: they outlive runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.errors import NotFound, Refused
from gristmill.ledger import flow
from gristmill.ledger.read import LAST_WHOLE_RUN
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import TERMINAL, State

BATCH = 500  # jobs that are deleted in one transaction
HIDDEN = 0  # the stage, never there, that a deleted job waits in while SQLite would give its number again

STANDS_ON = (
    "EXISTS (SELECT 1 FROM gm_stage mine JOIN gm_stage theirs ON theirs.source_id = mine.id WHERE mine.run_id = r.id)"
)
NEEDED_NOW = (  # a run that is under way has stages from it
    "EXISTS (SELECT 1 FROM gm_stage mine JOIN gm_stage theirs ON theirs.source_id = mine.id"
    " JOIN gm_run now ON now.id = theirs.run_id AND now.finished_at IS NULL WHERE mine.run_id = r.id)"
)
_JOBS_OF = Sql("SELECT CAST(coalesce(sum(total), 0) AS bigint) FROM gm_stage WHERE run_id = :run")
_STAGES_OF = Sql("SELECT id FROM gm_stage WHERE run_id = :run ORDER BY id")
_REMEMBER = Sql(
    "INSERT INTO gm_removal (stage_id) SELECT f.stage FROM {rows f: stage bigint} WHERE true ON CONFLICT DO NOTHING"
)
_STANDS_ON = Sql(f"SELECT {STANDS_ON} FROM gm_run r WHERE r.id = :run")
_NEEDED_NOW = Sql(f"SELECT {NEEDED_NOW} FROM gm_run r WHERE r.id = :run")
_DELETE_RUN = Sql("DELETE FROM gm_run WHERE id = :run")  # stages and edges go with it
_SUBJECT = Sql("SELECT id, last_run_id, last_good_run_id FROM gm_subject WHERE id = :subject {lock}")
_LAST_WHOLE = Sql(f"SELECT {LAST_WHOLE_RUN % ':subject'}")
_LAST = Sql(
    "UPDATE gm_subject SET last_run_id = r.id, last_state = r.state, last_run_at = r.finished_at FROM gm_subject s"
    " LEFT JOIN gm_run r ON r.id = (SELECT l.id FROM gm_run l WHERE l.subject_id = :subject AND l.finished_at IS NOT NULL"
    " AND EXISTS (SELECT 1 FROM gm_stage g WHERE g.run_id = l.id AND g.opened_at IS NOT NULL)"  # others never began
    " ORDER BY l.finished_at DESC, l.id DESC LIMIT 1) WHERE gm_subject.id = :subject AND s.id = :subject"
)
_LAST_GOOD = Sql(
    "UPDATE gm_subject SET last_good_run_id = r.id, last_good_at = coalesce(r.finished_at, 0) FROM gm_subject s"
    " LEFT JOIN gm_run r ON r.id = (SELECT id FROM gm_run WHERE subject_id = :subject"
    f" AND state IN ({State.COMPLETED:d}, {State.COMPLETED_WITH_ERRORS:d}) ORDER BY finished_at DESC, id DESC LIMIT 1)"
    " WHERE gm_subject.id = :subject AND s.id = :subject"
)
_PENDING = Sql(
    "SELECT stage_id FROM gm_removal r WHERE EXISTS (SELECT 1 FROM gm_job WHERE stage_id = r.stage_id AND NOT {newest})"
    " OR NOT EXISTS (SELECT 1 FROM gm_job WHERE stage_id = r.stage_id) ORDER BY stage_id"
)
_MAY_REMOVE = Sql("SELECT has_table_privilege('gm_job', 'DELETE')")
_LOCK = Sql("SELECT stage_id FROM gm_removal WHERE stage_id = :stage {skip}")
_NEXT = Sql("SELECT id FROM gm_job WHERE stage_id = :stage ORDER BY key LIMIT :most")
_NEXT_HIDDEN = Sql(f"SELECT id FROM gm_job WHERE stage_id = {HIDDEN} AND NOT {{newest}} ORDER BY key LIMIT :most")
_PARTS = Sql("SELECT id FROM gm_job WHERE parent_id {in ids} AND stage_id IS NULL LIMIT :most")
_LEFT = Sql("SELECT 1 FROM gm_job WHERE stage_id = :stage LIMIT 1")
_FORGET = Sql("DELETE FROM gm_removal WHERE stage_id = :stage")
_ENDED = Sql(
    "SELECT id FROM gm_job WHERE id {in ids} AND stage_id IS NULL AND run_id IS NULL AND parent_id IS NULL"
    " AND finished_at IS NOT NULL ORDER BY id {lock}"
)
_HIDE = Sql(
    f"UPDATE gm_job SET run_id = {HIDDEN}, stage_id = {HIDDEN}, key = CAST(id AS text) WHERE id {{in ids}} AND {{newest}}"
    " RETURNING id"
)
_DELETE_ATTEMPTS = Sql("DELETE FROM gm_attempt WHERE job_id {in ids}")
_DELETE_MESSAGES = Sql("DELETE FROM gm_message WHERE job_id {in ids}")
_DELETE_JOBS = Sql("DELETE FROM gm_job WHERE id {in ids}")


def remove_run(tx: Tx, run: int, *, spare: bool = False) -> int | None:
    """Removes an ended run; says how many jobs go with it. `spare`: None if others need it, as its subject's
    last (good, whole) one, or for stages that a later run did not run itself."""
    row = flow.lock_runs(tx, [run]).get(run)
    if row is None:
        raise NotFound(f"there is no run {run}")
    if row.state not in TERMINAL:
        raise Refused(f"run {run} is {State(row.state).word}; only a run that has ended can be removed: cancel it first")
    subject = tx.one(_SUBJECT, subject=row.subject_id)
    if spare:
        whole = tx.value(_LAST_WHOLE, subject=subject.id)
        if run in (subject.last_run_id, subject.last_good_run_id, whole) or tx.value(_STANDS_ON, run=run):
            return None
    jobs: int = tx.value(_JOBS_OF, run=run)
    stages = [stage.id for stage in tx.all(_STAGES_OF, run=run)]
    tx.run(_REMEMBER, f=[(stage,) for stage in stages])
    tx.run(_DELETE_RUN, run=run)
    _correct(tx, subject, run)
    if jobs <= BATCH:  # nearly every run is small: all of it in this transaction
        for stage in stages:
            remove_jobs(tx, stage)
    return jobs


def needed_now(tx: Tx, run: int) -> bool:
    return bool(tx.value(_NEEDED_NOW, run=run))


def _correct(tx: Tx, subject: Any, removed: int) -> None:
    """What a subject's row says about its last runs, once one of them is gone."""
    if subject.last_run_id == removed:
        tx.run(_LAST, subject=subject.id)
    if subject.last_good_run_id == removed:
        tx.run(_LAST_GOOD, subject=subject.id)


def pending(tx: Tx) -> list[int]:
    """Stages of removed runs that have jobs to delete: none for a role that may not, which leaves them to others."""
    if tx.dialect != "sqlite" and not tx.value(_MAY_REMOVE):
        return []
    return [row.stage_id for row in tx.all(_PENDING)]


def remove_jobs(tx: Tx, stage: int, most: int = BATCH) -> int:
    """Deletes the next jobs of a stage whose run is gone; says how many. 0: all done, or another does it just now."""
    if tx.one(_LOCK, stage=stage) is None:
        return 0
    ids = [row.id for row in (tx.all(_NEXT_HIDDEN, most=most) if stage == HIDDEN else tx.all(_NEXT, stage=stage, most=most))]
    if parts := _parts_of(tx, ids, most):  # before what they are parts of, or nobody would find them
        _delete(tx, parts)
        return len(parts)
    _delete(tx, ids)
    if len(ids) < most and tx.one(_LEFT, stage=stage) is None:
        tx.run(_FORGET, stage=stage)
    return len(ids)


def _parts_of(tx: Tx, ids: Sequence[int], most: int) -> list[int]:
    return [row.id for row in tx.all(_PARTS, ids=ids, most=most)] if ids else []


def delete_jobs(tx: Tx, jobs: Sequence[int]) -> int:
    """Deletes jobs on their own that have ended, with their parts, and leaves all others; says how many."""
    ids = [row.id for row in tx.all(_ENDED, ids=jobs)]
    while parts := _parts_of(tx, ids, BATCH):
        _delete(tx, parts)
    _delete(tx, ids)
    return len(ids)


def _delete(tx: Tx, ids: Sequence[int]) -> None:
    """Deletes these jobs; on SQLite the newest of all is only hidden, until there is a newer one."""
    hidden = {row.id for row in tx.all(_HIDE, ids=ids)} if ids and tx.dialect == "sqlite" else set()
    if hidden:
        tx.run(_REMEMBER, f=[(HIDDEN,)])
    gone = [number for number in ids if number not in hidden]
    if gone:
        tx.run(_DELETE_ATTEMPTS, ids=gone)
        tx.run(_DELETE_MESSAGES, ids=gone)
        tx.run(_DELETE_JOBS, ids=gone)
