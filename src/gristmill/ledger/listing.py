"""Lists of jobs: the newest that meet every filter.

The hot table has few indexes: each costs every job. So a list goes where its filters can be found: rare ends, failures and
what waits have small indexes; claims know what is in progress; stages know their queue, task, run and size; jobs on their
own are indexed by queue and task. What is left is found soon by walking back from the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gristmill.ledger.read import claimed_ids, jobs_of
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.model import Job
from gristmill.states import State


class Wanted(NamedTuple):
    """What a list of jobs is to show; None: whatever it is."""

    run: int | None = None
    stage: str | None = None
    subject: str | None = None
    state: int | None = None
    queue: str | None = None
    task: str | None = None
    since: int | None = None
    part_of: int | None = None


_FEW_STAGES, _FEW_JOBS = 2_000, 20_000  # that are quicker to look up than to walk past
_SLACK = 600_000_000  # numbers and times of jobs go up together, give or take a long transaction: ten minutes
_TASKS = Sql("SELECT id FROM gm_task WHERE name = :name")
_QUEUE = Sql("SELECT id FROM gm_queue WHERE name = :name")
_OF_RUNS = "FROM gm_stage g JOIN gm_run r ON r.id = g.run_id JOIN gm_subject s ON s.id = r.subject_id WHERE %s"
_STAGES = f"SELECT g.id, g.total {_OF_RUNS} ORDER BY g.id DESC LIMIT :few"
_FIRST_PAIR = Sql("SELECT queue_id, task_id FROM gm_job WHERE stage_id IS NULL ORDER BY queue_id, task_id LIMIT 1")
_NEXT_PAIR = Sql(
    "SELECT queue_id, task_id FROM gm_job WHERE stage_id IS NULL AND (queue_id, task_id) > (:queue, :task)"
    " ORDER BY queue_id, task_id LIMIT 1"
)
_ENDS = Sql("SELECT min(id), max(id) FROM gm_job")
_FROM = Sql("SELECT id, created_at FROM gm_job WHERE id >= :middle ORDER BY id LIMIT 1")

# The index that finds them: PostgreSQL must be told what it could know.
_BY_STATE = {
    State.QUEUED: "(j.ready IS NOT NULL OR j.run_at IS NOT NULL OR j.parts_left > 0)",
    State.FAILED: "j.fingerprint IS NOT NULL",
    State.COMPLETED_WITH_ERRORS: "j.odd = :state",
    State.CANCELLED: "j.odd = :state",
}
Clauses = Mapping[str, Mapping[str, Any]]  # of fixed text, each with the values that it binds


def jobs(tx: Tx, wanted: Wanted, most: int) -> list[Job]:
    """The newest jobs that meet every condition."""
    everywhere = _everywhere(tx, wanted)
    found: set[int] = set()
    for route in _routes(tx, wanted):
        found.update(_newest(tx, {**everywhere, **route}, most))
    return jobs_of(tx, sorted(found, reverse=True)[:most])


def _newest(tx: Tx, where: Clauses, most: int) -> list[int]:
    values = {name: value for bound in where.values() for name, value in bound.items()}
    clauses = " AND ".join(where) or "true"
    sql = Sql(f"SELECT j.id FROM gm_job j WHERE {clauses} ORDER BY j.id DESC LIMIT :most")
    return [row[0] for row in tx.tuples(sql, most=most, **values)]


def _everywhere(tx: Tx, wanted: Wanted) -> dict[str, Mapping[str, Any]]:
    """What can be asked of each row, wherever it was found."""
    where: dict[str, Mapping[str, Any]] = {}
    if wanted.state is not None:
        where["j.state = :state"] = {"state": wanted.state}
        if wanted.state in _BY_STATE:
            where[_BY_STATE[State(wanted.state)]] = {}
    if wanted.state == State.IN_PROGRESS:
        where["j.id {in held}"] = {"held": claimed_ids(tx)}
    if wanted.since is not None:
        where["j.created_at >= :since"] = {"since": wanted.since}
        where["j.id >= :floor"] = {"floor": _first_since(tx, wanted.since - _SLACK)}
    return where


def _routes(tx: Tx, wanted: Wanted) -> Iterator[Clauses]:
    """The ways to the rows; together they lead to all of them."""
    tasks = None if wanted.task is None else [row.id for row in tx.all(_TASKS, name=wanted.task)]
    queue = None if wanted.queue is None else tx.value(_QUEUE, name=wanted.queue)
    if tasks == [] or (wanted.queue is not None and queue is None):
        return
    own: dict[str, Mapping[str, Any]] = {}
    own |= {} if queue is None else {"j.queue_id = :queue": {"queue": queue}}
    own |= {} if tasks is None else {"j.task_id {in tasks}": {"tasks": tasks}}
    if wanted.part_of is not None:
        if wanted.run is None and wanted.stage is None and wanted.subject is None:  # it is an item's part, and no item
            yield own | {"j.stage_id IS NULL": {}, "j.parent_id = :part_of": {"part_of": wanted.part_of}}
        return
    of_run: dict[str, Mapping[str, Any]] = {}
    of_run |= {} if wanted.run is None else {"g.run_id = :run": {"run": wanted.run}}
    of_run |= {} if wanted.stage is None else {"g.name = :stage": {"stage": wanted.stage}}
    of_run |= {} if wanted.subject is None else {"s.name = :subject": {"subject": wanted.subject}}
    if not own and not of_run:
        yield {}
        return
    of_stage = of_run | {clause.replace("j.", "g."): bound for clause, bound in own.items()}
    values = {name: value for bound in of_stage.values() for name, value in bound.items()}
    stages = tx.tuples(Sql(_STAGES % " AND ".join(of_stage)), few=_FEW_STAGES, **values)
    few = len(stages) < _FEW_STAGES and sum(total for _, total in stages) <= _FEW_JOBS
    if few:
        yield own | {"j.stage_id {in stages}": {"stages": [number for number, _ in stages]}}
    elif of_run:
        yield own | {f"j.stage_id IN (SELECT g.id {_OF_RUNS % ' AND '.join(of_stage)})": values}
    else:
        yield own | {"j.stage_id IS NOT NULL": {}}
    if not of_run:
        for one_queue, task in _pairs(tx):
            if (queue is None or one_queue == queue) and (tasks is None or task in tasks):
                yield {
                    "j.stage_id IS NULL": {},
                    "j.queue_id = :one": {"one": one_queue},
                    "j.task_id = :kind": {"kind": task},
                }


def _pairs(tx: Tx) -> Iterator[tuple[int, int]]:
    """Every queue and task that jobs on their own have, by jumping from one to the next in their index."""
    pair = tx.one(_FIRST_PAIR)
    while pair is not None:
        yield pair.queue_id, pair.task_id
        pair = tx.one(_NEXT_PAIR, queue=pair.queue_id, task=pair.task_id)


def _first_since(tx: Tx, moment: int) -> int:
    """The first job that was made at or after a moment, by halving."""
    low, high = tx.tuples(_ENDS)[0]
    if low is None:
        return 0
    while low < high:
        middle = (low + high) // 2
        found, made = tx.tuples(_FROM, middle=middle)[0]
        if made >= moment:
            high = middle
        else:
            low = found + 1
    return int(low)
