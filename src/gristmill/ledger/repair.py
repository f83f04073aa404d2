"""Finding and mending what should not be: the reconciler's verbs.

Each can look without touching or locking anything (`mend=False`): so the many looks that find nothing hold up nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.ledger import flow, schema
from gristmill.ledger.claim import PART_OF
from gristmill.ledger.finish import Outcome, Verdict, settle
from gristmill.ledger.schema import columns
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.model import Repair
from gristmill.states import TERMINAL, StageState, State, WorkerState

_ACTIVE_RUNS = Sql(
    "SELECT r.id FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id"
    f" WHERE r.state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d}) AND (CAST(:subject AS text) IS NULL OR s.name = :subject)"
    " ORDER BY r.id"
)
_RUN = Sql("SELECT state, stop FROM gm_run WHERE id = :run")
_OPEN_BEFORE = Sql(
    "SELECT e.downstream_id, count(*) AS n FROM gm_edge e JOIN gm_stage s ON s.id = e.upstream_id"
    f" WHERE s.run_id = :run AND s.state <> {StageState.CLOSED:d} GROUP BY e.downstream_id"
)
_STAGES = Sql(f"SELECT {columns(schema.stage)} FROM gm_stage WHERE run_id = :run ORDER BY position")
_COUNTS = Sql(
    "SELECT count(*) AS total, count(CASE WHEN state IN (2, 3) THEN 1 END) AS completed,"
    " count(CASE WHEN state = 3 THEN 1 END) AS with_errors, count(CASE WHEN state = 4 THEN 1 END) AS failed,"
    " count(CASE WHEN state = 6 THEN 1 END) AS skipped, count(CASE WHEN state = 5 THEN 1 END) AS cancelled"
    " FROM gm_job WHERE stage_id = :stage"
)
_RECOUNT = Sql(
    "UPDATE gm_stage SET total = :total, completed = :completed, with_errors = :with_errors, failed = :failed,"
    " skipped = :skipped, cancelled = :cancelled WHERE id = :stage"
)
_ORPHANS = Sql(
    f"SELECT id, attempt, run_id, {PART_OF} AS part_of, worker_id FROM gm_job"
    f" WHERE state = {State.IN_PROGRESS:d} AND NOT EXISTS (SELECT 1 FROM gm_worker w"
    f" WHERE w.id = gm_job.worker_id AND w.state = {WorkerState.ACTIVE:d}) ORDER BY worker_id, id LIMIT :most"
)
_OUT_OF_LINE = Sql(
    f"SELECT id FROM gm_job WHERE state = {State.QUEUED:d} AND ready IS NULL AND run_at IS NULL"
    " AND (parts_left IS NULL OR parts_left = 0) ORDER BY id LIMIT :most"  # others wait for their parts
)
_INTO_LINE = Sql(
    "UPDATE gm_job SET ready = {next} WHERE id {in ids}"
    f" AND state = {State.QUEUED:d} AND ready IS NULL AND run_at IS NULL"
    " AND (parts_left IS NULL OR parts_left = 0) RETURNING queue_id"
)
_COUNTERS = ("total", "completed", "with_errors", "failed", "skipped", "cancelled")


def active_runs(tx: Tx, subject: str | None = None) -> list[int]:
    return [row.id for row in tx.all(_ACTIVE_RUNS, subject=subject)]


def repair_run(tx: Tx, run: int, mend: bool) -> list[Repair]:
    """Counters that differ from the rows, stages and runs that should have moved on."""
    row = flow.lock_runs(tx, [run]).get(run) if mend else tx.one(_RUN, run=run)
    if row is None or row.state in TERMINAL:
        return []
    stages = [stage._asdict() for stage in tx.all(_STAGES, run=run)]
    found = [repair for stage in stages for repair in _recount(tx, run, stage, mend)]
    found += _full(run, stages)
    if row.stop is None:
        found += _held_up(tx, run, stages)
    if all(s["state"] == StageState.CLOSED for s in stages):
        found.append(Repair("end", f"run {run}", "every stage is closed"))
    elif not found and all(_is_full(s) and (row.stop is not None or not flow.has_chores(s)) for s in stages):
        found.append(Repair("move on", f"run {run}", "it is not over, but every job of it is"))
    if found and mend:
        flow.resume(tx, run)
    return found


_ENDS = ("completed", "failed", "skipped", "cancelled")


def _is_full(stage: dict[str, Any]) -> bool:
    return bool(stage["total"] == sum(stage[count] for count in _ENDS))


def _full(run: int, stages: Sequence[dict[str, Any]]) -> Iterator[Repair]:
    for stage in stages:
        if stage["state"] == StageState.SEALED and _is_full(stage):
            yield Repair("close", f"run {run} stage {stage['name']}", "every item is terminal")


def _held_up(tx: Tx, run: int, stages: Sequence[dict[str, Any]]) -> Iterator[Repair]:
    """Stages that wait for something else than what is open before them."""
    left = {row.downstream_id: row.n for row in tx.all(_OPEN_BEFORE, run=run)}
    for stage in stages:
        target, due = f"run {run} stage {stage['name']}", left.get(stage["id"], 0) + flow.has_chores(stage)
        if stage["waiting_for"] != due:
            yield Repair("wait", target, f"waiting_for {stage['waiting_for']} → {due}")
        if due == 0 and stage["state"] in (StageState.WAITING, StageState.OPEN):
            yield Repair("start", target, "every stage before it is closed")


def _recount(tx: Tx, run: int, stage: dict[str, Any], mend: bool) -> Iterator[Repair]:
    counted = None if stage["state"] == StageState.CLOSED else tx.one(_COUNTS, stage=stage["id"])
    if counted is None:
        return
    wrong = [f"{c} {stage[c]} → {getattr(counted, c)}" for c in _COUNTERS if stage[c] != getattr(counted, c)]
    if wrong:
        stage.update({c: getattr(counted, c) for c in _COUNTERS})
        if mend:
            tx.run(_RECOUNT, stage=stage["id"], **{c: stage[c] for c in _COUNTERS})
        yield Repair("recount", f"run {run} stage {stage['name']}", ", ".join(wrong))


def repair_orphans(tx: Tx, mend: bool, most: int = 1000) -> list[Repair]:
    """Jobs in progress under a worker that is no longer active; of one worker at a time, for the order of locks."""
    rows = tx.all(_ORPHANS, most=most)
    rows = [row for row in rows if row.worker_id == rows[0].worker_id] if mend else rows
    if rows and mend:
        lost = [Outcome(row.id, row.attempt, row.run_id, Verdict.LOST, part_of=row.part_of) for row in rows]
        settle(tx, rows[0].worker_id, lost)
    return [Repair("release", f"job {row.id}", f"its worker {row.worker_id} is not active") for row in rows]


def repair_line(tx: Tx, mend: bool, most: int = 1000) -> list[Repair]:
    """Queued jobs that are neither ready nor delayed."""
    ids = [row.id for row in tx.all(_OUT_OF_LINE, most=most)]
    if ids and mend:
        for row in tx.all(_INTO_LINE, ids=ids):
            tx.ring(row.queue_id)
    return [Repair("line up", f"job {number}", "queued, but neither ready nor delayed") for number in ids]
