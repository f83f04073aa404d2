"""Finding and mending what should not be: the reconciler's verbs.

Each can look without touching or locking anything (`mend=False`): so the many looks that find nothing hold up nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy.exc import IntegrityError

from gristmill.errors import Refused
from gristmill.ledger import flow, recover
from gristmill.ledger.claim import PART_OF
from gristmill.ledger.columns import STAGE, columns
from gristmill.ledger.finish import Outcome, Verdict, settle
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.ledger.whose import ALL, MATCHES, Whose, of
from gristmill.model import Repair
from gristmill.states import TERMINAL, StageState, State, WorkerState

_RUNS = f"SELECT r.id FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id WHERE {{}} AND {MATCHES} ORDER BY r.id"
_NO_ACTIVE = (
    f"r.state = {State.WAITING:d} AND NOT EXISTS (SELECT 1 FROM gm_run a WHERE a.subject_id = r.subject_id"
    f" AND a.state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d}))"
)
_ACTIVE_RUNS = Sql(_RUNS.format(f"r.state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d})"))
_STRANDED = Sql(_RUNS.format(_NO_ACTIVE))
_IS_STRANDED = Sql(f"SELECT 1 FROM gm_run r WHERE r.id = :run AND {_NO_ACTIVE}")
_QUIET = Sql(  # microseconds since anything of a run changed
    "SELECT {now} - max(at) FROM (SELECT created_at AS at FROM gm_run WHERE id = :run"
    " UNION ALL SELECT started_at FROM gm_run WHERE id = :run"
    " UNION ALL SELECT max(opened_at) FROM gm_stage WHERE run_id = :run"
    " UNION ALL SELECT max(closed_at) FROM gm_stage WHERE run_id = :run"
    " UNION ALL SELECT max(coalesce(j.finished_at, j.started_at, j.created_at)) FROM gm_job j"
    " JOIN gm_stage s ON s.id = j.stage_id WHERE s.run_id = :run) AS changes"
)
_RUN = Sql("SELECT state, stop FROM gm_run WHERE id = :run")
_OPEN_BEFORE = Sql(
    "SELECT e.downstream_id, count(*) AS n FROM gm_edge e JOIN gm_stage s ON s.id = e.upstream_id"
    f" WHERE s.run_id = :run AND s.state <> {StageState.CLOSED:d} GROUP BY e.downstream_id"
)
_STAGES = Sql(f"SELECT {columns(STAGE)} FROM gm_stage WHERE run_id = :run ORDER BY position")
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
    f" WHERE state = {State.IN_PROGRESS:d} AND {of('run_id')} AND coalesce(started_at, created_at) <= {{now}} - :quiet"
    " AND NOT EXISTS (SELECT 1 FROM gm_worker w"
    f" WHERE w.id = gm_job.worker_id AND w.state = {WorkerState.ACTIVE:d}) ORDER BY worker_id, id LIMIT :most"
)
_OUT_OF_LINE = Sql(
    f"SELECT id FROM gm_job WHERE state = {State.QUEUED:d} AND ready IS NULL AND run_at IS NULL AND {of('run_id')}"
    " AND coalesce(started_at, created_at) <= {now} - :quiet"
    " AND (parts_left IS NULL OR parts_left = 0) ORDER BY id LIMIT :most"  # others wait for their parts
)
_INTO_LINE = Sql(
    "UPDATE gm_job SET ready = {ready}, run_at = {waits} WHERE id {in ids}"
    f" AND state = {State.QUEUED:d} AND ready IS NULL AND run_at IS NULL"
    " AND (parts_left IS NULL OR parts_left = 0) RETURNING queue_id, limit_id"
)
_COUNTERS = ("total", "completed", "with_errors", "failed", "skipped", "cancelled")


def active_runs(tx: Tx, subject: str | None = None, pipeline: str | None = None) -> list[int]:
    return [row.id for row in tx.all(_ACTIVE_RUNS, subject=subject, pipeline=pipeline)]


def stranded_runs(tx: Tx, subject: str | None = None, pipeline: str | None = None) -> list[int]:
    """Runs that wait behind nothing."""
    return [row.id for row in tx.all(_STRANDED, subject=subject, pipeline=pipeline)]


def repair_stranded(tx: Tx, run: int, mend: bool, quiet: int = 0, at: int | None = None) -> list[Repair]:
    """A run that waits, though its subject has no active one."""
    if mend:
        flow.lock_runs(tx, [run])
    if tx.value(_IS_STRANDED, run=run) is None or _is_fresh(tx, run, quiet):
        return []
    found = [Repair("begin", f"run {run}", "it waits, but its subject has no active run")]
    if mend:
        try:
            flow.activate(tx, run)
        except IntegrityError:
            raise Refused(f"run {run} waits rightly: another run of its subject was just started") from None
    _count(tx, run, at, found, mend)
    return found


def repair_run(tx: Tx, run: int, mend: bool, quiet: int = 0, at: int | None = None) -> list[Repair]:
    """Counters that differ from the rows, stages and runs that should have moved on.

    `quiet`: only where nothing has changed for so many microseconds. `at`: the pass that this is counted for; a subject
    that was recovered too often by then is left to a person.
    """
    row = flow.lock_runs(tx, [run]).get(run) if mend else tx.one(_RUN, run=run)
    if row is None or row.state in TERMINAL:
        return []
    stages = [stage._asdict() for stage in tx.all(_STAGES, run=run)]
    found, recounts = _wrong(tx, run, row, stages)
    if not found or _is_fresh(tx, run, quiet):
        return []
    if mend:
        for stage in recounts:
            tx.run(_RECOUNT, stage=stage["id"], **{c: stage[c] for c in _COUNTERS})
            if stage.get("lost"):
                flow.add_job(tx, run, stage["id"])
    _count(tx, run, at, found, mend)
    if mend:
        flow.resume(tx, run)
    return found


def _count(tx: Tx, run: int, at: int | None, found: list[Repair], mend: bool) -> None:
    """Counts a recovery; the one too many stops the run."""
    if at is None:
        return
    before = recover.note(tx, run, at, "repair", found) if mend else recover.before(tx, run, at)
    if before >= recover.PATIENCE:
        if mend:
            recover.give_up(tx, run, before, found)
        found.append(Repair("fail", f"run {run}", f"recovered {before} times within a day: left to a person"))


def _is_fresh(tx: Tx, run: int, quiet: int) -> bool:
    return quiet > 0 and tx.value(_QUIET, run=run) < quiet


def _wrong(tx: Tx, run: int, row: Any, stages: Sequence[dict[str, Any]]) -> tuple[list[Repair], list[dict[str, Any]]]:
    """What is wrong with a run, and the stages (brought up to date here) whose counters are."""
    found: list[Repair] = []
    recounts: list[dict[str, Any]] = []
    for stage in stages:
        repairs = list(_recount(tx, run, stage, stopping=row.stop is not None))
        found += repairs
        recounts += [stage] if repairs else []
    found += _full(run, stages)
    if row.stop is None:
        found += _held_up(tx, run, stages)
    if all(s["state"] == StageState.CLOSED for s in stages):
        found.append(Repair("end", f"run {run}", "every stage is closed"))
    elif not found and all(_is_full(s) and (row.stop is not None or not flow.has_chores(s)) for s in stages):
        found.append(Repair("move on", f"run {run}", "it is not over, but every job of it is"))
    return found, recounts


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


def _recount(tx: Tx, run: int, stage: dict[str, Any], stopping: bool) -> Iterator[Repair]:
    counted = None if stage["state"] == StageState.CLOSED else tx.one(_COUNTS, stage=stage["id"])
    if counted is None:
        return
    right = {c: getattr(counted, c) for c in _COUNTERS}
    target = f"run {run} stage {stage['name']}"
    if stage["state"] == StageState.SEALED and not stage["each"] and not right["total"] and not stopping:
        # Without its row nobody knows how it ended; to close the stage would be to say that it did well.
        right["total"], stage["lost"] = 1, True
        yield Repair("add job", target, "the row of its job is gone")
    wrong = [f"{c} {stage[c]} → {right[c]}" for c in _COUNTERS if stage[c] != right[c]]
    stage.update(right)
    if wrong:
        yield Repair("recount", target, ", ".join(wrong))


def repair_orphans(tx: Tx, mend: bool, quiet: int = 0, most: int = 1000, whose: Whose = ALL) -> list[Repair]:
    """Jobs in progress under a worker that is no longer active; of one worker at a time, for the order of locks."""
    rows = tx.all(_ORPHANS, most=most, quiet=quiet, **whose._asdict())
    rows = [row for row in rows if row.worker_id == rows[0].worker_id] if mend else rows
    if rows and mend:
        lost = [Outcome(row.id, row.attempt, row.run_id, Verdict.LOST, part_of=row.part_of) for row in rows]
        settle(tx, rows[0].worker_id, lost)
    return [Repair("release", f"job {row.id}", f"its worker {row.worker_id} is not active") for row in rows]


def repair_line(tx: Tx, mend: bool, quiet: int = 0, most: int = 1000, whose: Whose = ALL) -> list[Repair]:
    """Queued jobs that are neither ready nor delayed."""
    ids = [row.id for row in tx.all(_OUT_OF_LINE, most=most, quiet=quiet, **whose._asdict())]
    if ids and mend:
        for row in tx.all(_INTO_LINE, ids=ids):
            tx.ring(row.queue_id)
            tx.poke(row.limit_id)
    return [Repair("line up", f"job {number}", "queued, but neither ready nor delayed") for number in ids]
