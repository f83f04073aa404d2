"""What reconcile did for a subject is written down; who needs it again and again is left to a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gristmill.clock import SECOND, to_datetime
from gristmill.errors import Invalid
from gristmill.ledger import flow, workers
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.model import Recovery, Repair
from gristmill.states import State

PATIENCE = 2  # recoveries of one subject within a day; the next one fails its run
_DAY = 86_400 * SECOND
_NAMED = 20  # findings that are written down by name

_NOW = Sql("SELECT {now}")
_NOTE = Sql(
    "INSERT INTO gm_recovery (subject_id, at, what, run_id, items, detail)"
    " VALUES (:subject, :at, :what, :run, :items, :detail) ON CONFLICT (subject_id, at, what)"
    " DO UPDATE SET items = gm_recovery.items + excluded.items"
)
_BEFORE = Sql(  # adopted work was good work, and how often a job may lose its worker is for its own budget to say
    "SELECT count(DISTINCT at) FROM gm_recovery WHERE subject_id = :subject AND at < :at AND at > :since"
    " AND what NOT IN ('adopt', 'rescue')"
)
_SUBJECT_OF = Sql("SELECT subject_id FROM gm_run WHERE id = :run")
_SUBJECT = Sql(
    "SELECT s.id, r.id AS run FROM gm_subject s LEFT JOIN gm_run r ON r.subject_id = s.id"
    f" AND r.state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d}) WHERE s.pipeline = :pipeline AND s.name = :subject"
)
_OF = (
    "SELECT v.at, v.what, v.run_id, v.items, v.detail, s.pipeline, s.name FROM gm_recovery v"
    " JOIN gm_subject s ON s.id = v.subject_id WHERE {} ORDER BY v.at DESC, v.what LIMIT :most"
)
_OF_RUN = Sql(_OF.format("v.run_id = :run AND v.subject_id = (SELECT subject_id FROM gm_run WHERE id = :run)"))
_OF_SUBJECT = Sql(_OF.format("s.pipeline = :pipeline AND s.name = :subject"))


def now(tx: Tx) -> int:
    """When a pass begins, by the database's clock."""
    moment: int = tx.value(_NOW)
    return moment


def note(tx: Tx, run: int, at: int, what: str, found: Sequence[Repair]) -> int:
    """Writes down what was done for a run's subject in the pass that began `at`; says how often it was before, in a day."""
    subject = tx.value(_SUBJECT_OF, run=run)
    return _note(tx, subject, run, at, what, found)


def before(tx: Tx, run: int, at: int) -> int:
    """How often a run's subject was recovered within the day before `at`."""
    subject = tx.value(_SUBJECT_OF, run=run)
    number: int = tx.value(_BEFORE, subject=subject, at=at, since=at - _DAY)
    return number


def _note(tx: Tx, subject: int, run: int | None, at: int, what: str, found: Sequence[Repair]) -> int:
    earlier: int = tx.value(_BEFORE, subject=subject, at=at, since=at - _DAY)
    named = [[repair.what, repair.target, repair.detail] for repair in found[:_NAMED]]
    detail = orjson.dumps(named).decode()
    tx.run(_NOTE, subject=subject, at=at, what=what, run=run, items=len(found), detail=detail)
    return earlier


def note_check(tx: Tx, pipeline: str, subject: str, at: int, found: Repair) -> bool:
    """The same for what an application's check found. False: it was recovered too often; its active run is failed."""
    row = tx.one(_SUBJECT, pipeline=pipeline, subject=subject)
    if row is None:
        return True  # it will be made by what mends it
    if row.run is not None:
        flow.lock_runs(tx, [row.run])
    earlier = _note(tx, row.id, row.run, at, "check", [found])
    if earlier < PATIENCE:
        return True
    if row.run is not None:
        give_up(tx, row.run, earlier, [found])
    return False


def rescue(tx: Tx, worker: int, gone: bool, at: int, why: str) -> int | None:
    """Rescues a lost worker, and writes that down for each run that it held jobs of: both or neither.

    So it is counted once, however often a pass dies: who comes later finds a worker that is lost already, and says None.
    """
    lost = workers.take_back(tx, worker, gone)
    if lost is None:
        return None
    for run in sorted({each.run for each in lost if each.run is not None}):
        taken = [Repair("rescue", f"job {each.job}", f"worker {worker}: {why}") for each in lost if each.run == run]
        note(tx, run, at, "rescue", taken)
    return len(lost)


def give_up(tx: Tx, run: int, earlier: int, found: Sequence[Repair]) -> None:
    """A locked run ends `failed`, for a person to look at."""
    last = found[0]
    error = (
        f"recovered {earlier} times within a day, and wrong again ({last.what} {last.target}: {last.detail});"
        " find out why, then start it again"
    )
    flow.stop(tx, run, State.FAILED, by="reconciler", error=error)


def recoveries(
    tx: Tx, *, run: int | None = None, pipeline: str | None = None, subject: str | None = None, most: int = 20
) -> list[Recovery]:
    """What was done for a run, or for a subject, newest first."""
    if run is not None:
        rows: list[Any] = tx.all(_OF_RUN, run=run, most=most)
    elif pipeline is not None and subject is not None:
        rows = tx.all(_OF_SUBJECT, pipeline=pipeline, subject=subject, most=most)
    else:
        raise Invalid("recoveries are those of a run, or of a pipeline and a subject of it")
    return [_recovery(row) for row in rows]


def _recovery(row: Any) -> Recovery:
    found = tuple(Repair(*each) for each in orjson.loads(row.detail))
    return Recovery(to_datetime(row.at), row.what, row.pipeline, row.name, row.run_id, row.items, found)
