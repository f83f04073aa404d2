"""What runs write when they move on, written together: one turn of a worker may move on a dozen of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.ledger.sql import Sql, numbers
from gristmill.ledger.store import Tx
from gristmill.states import StageState, State

_GOOD = numbers([State.COMPLETED, State.COMPLETED_WITH_ERRORS])
_STAGES = Sql(
    "UPDATE gm_stage SET state = f.state, outcome = f.outcome, waiting_for = f.awaits, total = f.total,"
    " opened_at = CASE WHEN f.opened THEN {now} ELSE opened_at END,"
    " closed_at = CASE WHEN f.closed THEN {now} ELSE closed_at END"
    " FROM {rows f: stage bigint, state smallint, outcome smallint, awaits int, total bigint, opened boolean,"
    " closed boolean} WHERE gm_stage.id = f.stage"
)
_JOBS = Sql(
    "INSERT INTO gm_job (run_id, stage_id, key, task_id, queue_id, pool, priority, state, ready, run_at, created_at,"
    f" limit_id) SELECT f.run, f.stage, '', f.task, f.queue, f.pool, f.urgency, {State.QUEUED:d},"
    " CASE WHEN f.lim IS NULL THEN {next} END, CASE WHEN f.lim IS NOT NULL THEN {waiting} END, {now}, f.lim"
    " FROM {rows f: run bigint, stage bigint, task int, queue int, pool smallint, urgency smallint, lim int} WHERE true"
)
_ENDS = Sql(
    "UPDATE gm_run SET state = f.state, error = f.error, finished_at = {now}"
    " FROM {rows f: run bigint, state smallint, error text} WHERE gm_run.id = f.run"
)
_LAST_RUNS = Sql(
    "UPDATE gm_subject SET last_run_id = r.id, last_state = r.state, last_run_at = r.finished_at,"
    f" last_good_run_id = CASE WHEN r.state IN ({_GOOD}) THEN r.id ELSE last_good_run_id END,"
    f" last_good_at = CASE WHEN r.state IN ({_GOOD}) THEN r.finished_at ELSE last_good_at END"
    " FROM gm_run r WHERE r.id {in runs} AND gm_subject.id = r.subject_id"
)
_WAITING = Sql(f"SELECT id FROM gm_run WHERE subject_id {{in ids}} AND state = {State.WAITING:d} ORDER BY id {{lock}}")

Stage = dict[str, Any]


class Steps:
    """Changes that are known but not written yet. A stage is written as it is then, however often it has changed."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._stages: dict[int, Stage] = {}
        self._opened: set[int] = set()
        self._closed: set[int] = set()
        self._jobs: list[tuple[Any, ...]] = []
        self._ends: list[tuple[int, int, str | None]] = []
        self._subjects: list[int] = []

    def change(self, stage: Stage, *, opened: bool = False, closed: bool = False, **values: Any) -> None:
        stage.update(values)
        self._stages[stage["id"]] = stage
        if "state" in values:
            self._tx.notes.stage(stage["run_id"], stage["name"], StageState(values["state"]).word)
        if opened:
            self._opened.add(stage["id"])
        if closed:
            self._closed.add(stage["id"])

    def add_job(self, run: dict[str, Any], stage: Stage) -> None:
        """The one job of a plain stage."""
        what = (stage["task_id"], stage["queue_id"], stage["pool"], run["priority"], stage["limit_id"])
        self._jobs.append((run["id"], stage["id"], *what))
        self._tx.poke(stage["limit_id"])
        self._tx.ring(stage["queue_id"])

    def end(self, run: dict[str, Any], state: State, error: str | None) -> None:
        run["state"] = state
        self._tx.notes.run(run["id"], state=state.word)
        self._ends.append((run["id"], int(state), error))
        self._subjects.append(run["subject_id"])

    def write(self) -> Sequence[int]:
        """Writes all of it, once. Says which runs waited for one of these to end, and may begin now."""
        waiting: list[int] = []
        if self._stages:
            self._tx.run(_STAGES, f=[self._row(stage) for _, stage in sorted(self._stages.items())])
        if self._jobs:
            self._tx.run(_JOBS, f=self._jobs)
        if self._ends:
            self._tx.run(_ENDS, f=self._ends)
            self._tx.run(_LAST_RUNS, runs=[run for run, _, _ in self._ends])
            waiting = [run for (run,) in self._tx.tuples(_WAITING, ids=self._subjects)]
        return waiting

    def _row(self, stage: Stage) -> tuple[Any, ...]:
        number = stage["id"]
        outcome = stage["outcome"]
        what = (int(stage["state"]), None if outcome is None else int(outcome), stage["waiting_for"], stage["total"])
        return (number, *what, number in self._opened, number in self._closed)
