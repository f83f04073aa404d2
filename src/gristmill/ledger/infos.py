"""What a worker needs to know about the jobs that it holds, and says of those that failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import State


class TaskInfo(NamedTuple):
    name: str
    spec: dict[str, Any]


class RunInfo(NamedTuple):
    pipeline: str
    subject: str
    priority: int
    epoch: int
    args: str


class StageInfo(NamedTuple):
    name: str
    each: bool
    targets: list[tuple[str, str]]  # (stage, task) of the `each` stages that it gives items to


_TASK_INFO = Sql("SELECT id, name, spec FROM gm_task WHERE id {in ids}")
_RUN_INFO = Sql(
    "SELECT r.id, r.pipeline, s.name AS subject, r.priority, r.epoch, r.args FROM gm_run r"
    " JOIN gm_subject s ON s.id = r.subject_id WHERE r.id {in ids}"
)
_STAGE_INFO = Sql("SELECT id, name, each FROM gm_stage WHERE id {in ids}")
_TARGET_INFO = Sql(
    "SELECT e.upstream_id, s.name, t.name AS task FROM gm_edge e JOIN gm_stage s ON s.id = e.downstream_id"
    " JOIN gm_task t ON t.id = s.task_id WHERE e.upstream_id {in ids} AND s.each ORDER BY s.position"
)


def tasks(tx: Tx, ids: Iterable[int]) -> dict[int, TaskInfo]:
    return {row.id: TaskInfo(row.name, orjson.loads(row.spec)) for row in tx.all(_TASK_INFO, ids=sorted(ids))}


def runs(tx: Tx, ids: Iterable[int]) -> dict[int, RunInfo]:
    return {row.id: RunInfo(*row[1:]) for row in tx.all(_RUN_INFO, ids=sorted(ids))}


def stages(tx: Tx, ids: Iterable[int]) -> dict[int, StageInfo]:
    wanted = sorted(ids)
    found = {row.id: StageInfo(row.name, bool(row.each), []) for row in tx.all(_STAGE_INFO, ids=wanted)}
    for row in tx.all(_TARGET_INFO, ids=wanted):
        found[row.upstream_id].targets.append((row.name, row.task))
    return found


class Fate(NamedTuple):
    """What became of a job whose attempt failed: for the log."""

    task: str
    key: str | None  # of a part, after that of its item: `doc-05/001`
    state: State
    due: int | None  # microseconds until it is tried again
    stage: str | None = None
    fingerprint: str | None = None  # of the error that it failed with
    subject: str | None = None


_FATES = Sql(
    "SELECT j.id, t.name, j.key, p.key AS item, j.state, g.name AS stage, j.fingerprint, u.name AS subject,"
    " CASE WHEN j.run_at < {waiting} THEN j.run_at - {now} END AS due FROM gm_job j"
    " JOIN gm_task t ON t.id = j.task_id LEFT JOIN gm_job p ON p.id = j.parent_id AND j.stage_id IS NULL"
    " LEFT JOIN gm_stage g ON g.id = j.stage_id LEFT JOIN gm_run r ON r.id = j.run_id"
    " LEFT JOIN gm_subject u ON u.id = r.subject_id WHERE j.id {in ids}"
)


def fates(tx: Tx, ids: Iterable[int]) -> dict[int, Fate]:
    rows = tx.all(_FATES, ids=sorted(ids))
    keys = {row.id: f"{row.item}/{row.key}" if row.item else row.key for row in rows}
    return {
        row.id: Fate(row.name, keys[row.id], State(row.state), row.due, row.stage, row.fingerprint, row.subject)
        for row in rows
    }
