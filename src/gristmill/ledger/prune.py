"""Retention: which ended runs and jobs are to go by a rule, and their removal, recorded as it goes on.

Looking and removing are apart: a look may read many rows, and holds up nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from gristmill.errors import NotFound, Refused
from gristmill.ledger import remove
from gristmill.ledger.read import LAST_WHOLE_RUN, now
from gristmill.ledger.remove import STANDS_ON
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx
from gristmill.retention import Rule
from gristmill.states import WorkerState

_PIPELINES = Sql("SELECT DISTINCT pipeline FROM gm_subject ORDER BY pipeline")
_RUNS = Sql(
    "SELECT r.id, r.jobs FROM (SELECT i.id, i.subject_id, i.finished_at, s.last_run_id, s.last_good_run_id,"
    " (SELECT CAST(coalesce(sum(total), 0) AS bigint) FROM gm_stage WHERE run_id = i.id) AS jobs,"
    " row_number() OVER (PARTITION BY i.subject_id ORDER BY i.id DESC) AS place FROM gm_run i"
    " JOIN gm_subject s ON s.id = i.subject_id WHERE i.pipeline = :pipeline AND i.state {in states}) AS r"
    " WHERE r.id > :after AND (r.finished_at <= {now} - CAST(:age AS bigint) OR r.place > CAST(:count AS bigint))"
    " AND r.id <> coalesce(r.last_run_id, 0) AND r.id <> coalesce(r.last_good_run_id, 0)"
    f" AND r.id <> coalesce({LAST_WHOLE_RUN % 'r.subject_id'}, 0) AND NOT {STANDS_ON} ORDER BY r.id LIMIT :most"
)
_NTH_NEWEST = Sql(
    "SELECT id FROM gm_job WHERE task_id {in tasks} AND state {in states} AND stage_id IS NULL AND run_id IS NULL"
    " AND parent_id IS NULL"
    " ORDER BY id DESC LIMIT 1 OFFSET :count"
)
_PAGE = Sql(
    "SELECT max(id) AS last, min(created_at) AS oldest FROM (SELECT id, created_at FROM gm_job WHERE id > :after"
    " ORDER BY id LIMIT :most) AS page"
)
_JOBS = Sql(
    "SELECT j.id FROM gm_job j JOIN {rows f: task int, state smallint, cutoff bigint, bottom bigint}"
    " ON f.task = j.task_id AND f.state = j.state WHERE j.id > :after AND j.id <= :upto AND j.stage_id IS NULL"
    " AND j.run_id IS NULL AND j.parent_id IS NULL AND (j.finished_at <= f.cutoff OR j.id <= f.bottom) ORDER BY j.id"
)
_GONE = (
    f"SELECT w.id FROM gm_worker w WHERE w.state <> {WorkerState.ACTIVE:d} AND w.lease_until <= {{now}} - :age"
    " AND NOT EXISTS (SELECT 1 FROM gm_claim c WHERE c.worker_id = w.id) ORDER BY w.id LIMIT :most"
)
_GONE_WORKERS, _FORGET_WORKERS = Sql(_GONE), Sql(f"DELETE FROM gm_worker WHERE id {{one_of {_GONE}}}")
_OLD_ENTRIES = Sql(  # by number, which grows with time; the newest stays, or SQLite would give its number again
    "SELECT a.id FROM (SELECT id, at FROM gm_audit WHERE id > :after ORDER BY id LIMIT :most) AS a"
    " WHERE a.at <= {now} - :age AND a.id < (SELECT max(id) FROM gm_audit)"
    " AND NOT EXISTS (SELECT 1 FROM gm_order o WHERE o.id = a.id AND o.reached IS NOT NULL) ORDER BY a.id"
)
_FORGET_ENTRIES = Sql("DELETE FROM gm_audit WHERE id {in ids}")
_FORGET_ORDERS = Sql("DELETE FROM gm_order WHERE id {in ids} AND reached IS NULL")
_RECORD = Sql("INSERT INTO gm_order (id, done, touched_at) VALUES (:number, :done, {now})")
_CORRECT = Sql("UPDATE gm_order SET done = :done, touched_at = {now} WHERE id = :number")


# ---- looking


def pipelines(tx: Tx) -> list[str]:
    return [row.pipeline for row in tx.all(_PIPELINES)]


class Old(NamedTuple):
    """A run that is to go, and how many jobs it has."""

    run: int
    jobs: int


def old_runs(tx: Tx, pipeline: str, rule: Rule, after: int, most: int) -> list[Old]:
    """Ended runs that a rule does not keep, by id; never one that is needed (see `remove_run`)."""
    how = {"pipeline": pipeline, "states": rule.states, "age": rule.age, "count": rule.most}
    return [Old(*row) for row in tx.tuples(_RUNS, after=after, most=most, **how)]


class Cut(NamedTuple):
    """What goes of the jobs of one task in one state: those that ended by `cutoff`, those up to the number `bottom`."""

    task: int
    state: int
    cutoff: int
    bottom: int


def cuts(tx: Tx, tasks: Sequence[int], rules: Iterable[Rule]) -> list[Cut]:
    """The rules of a task as cuts. `tasks`: its numbers, one for each way in which it was ever asked for."""
    at = now(tx)
    found: list[Cut] = []
    for rule in rules:
        cutoff = -1 if rule.age is None else at - rule.age
        bottom = 0
        if rule.most is not None:
            bottom = tx.value(_NTH_NEWEST, tasks=tasks, states=rule.states, count=rule.most) or 0
        found += [Cut(task, state, cutoff, bottom) for task in tasks for state in rule.states]
    return found


class Page(NamedTuple):
    jobs: list[int]
    last: int | None  # where to go on; None: what comes after is younger than any cut


def old_jobs(tx: Tx, cuts: Sequence[Cut], after: int, most: int) -> Page:
    """Looks at the next `most` jobs; says which of them are ended jobs on their own that are to go."""
    tx.by_key()
    page = tx.one(_PAGE, after=after, most=most)
    cutoff, bottom = max(cut.cutoff for cut in cuts), max(cut.bottom for cut in cuts)
    if page.last is None or (page.oldest > cutoff and after >= bottom):
        return Page([], None)
    jobs = [number for (number,) in tx.tuples(_JOBS, f=cuts, after=after, upto=page.last)]
    return Page(jobs, page.last)


def gone_workers(tx: Tx, age: int, most: int) -> int:
    """How many workers (of at most so many) have been gone for so long."""
    return len(tx.tuples(_GONE_WORKERS, age=age, most=most))


def old_entries(tx: Tx, age: int, after: int, most: int) -> list[int]:
    """Entries of the audit that are as old, a page of them; nothing that is still being done."""
    return [number for (number,) in tx.tuples(_OLD_ENTRIES, age=age, after=after, most=most)]


# ---- removing


class Record(NamedTuple):
    """What one sweep has removed so far, and under which number that is recorded (None: nothing yet)."""

    number: int | None = None
    runs: int = 0
    jobs: int = 0


def prune_run(tx: Tx, run: int, record: Record, *, by: str) -> Record:
    """Removes a run, unless it is its subject's last one by now, was retried, or is gone."""
    try:
        jobs = remove.remove_run(tx, run, spare=True)
    except (NotFound, Refused):
        return record
    return record if jobs is None else _write(tx, record, 1, jobs, by)


def prune_jobs(tx: Tx, jobs: Sequence[int], record: Record, *, by: str) -> Record:
    deleted = remove.delete_jobs(tx, jobs)
    return _write(tx, record, 0, deleted, by) if deleted else record


def _write(tx: Tx, record: Record, runs: int, jobs: int, by: str) -> Record:
    more = Record(record.number, record.runs + runs, record.jobs + jobs)
    done = orjson.dumps({"runs": more.runs, "jobs": more.jobs}).decode()
    if record.number is None:
        more = more._replace(number=audit(tx, by, "prune", "retention"))
        tx.run(_RECORD, number=more.number, done=done)
    else:
        tx.run(_CORRECT, number=more.number, done=done)
    return more


def forget_workers(tx: Tx, age: int, most: int) -> int:
    """Workers that have been gone for so long; attempts still have their numbers, which are never given again."""
    return tx.run(_FORGET_WORKERS, age=age, most=most)


def forget_entries(tx: Tx, entries: Sequence[int]) -> int:
    tx.run(_FORGET_ORDERS, ids=entries)
    return tx.run(_FORGET_ENTRIES, ids=entries)
