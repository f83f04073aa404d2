"""Lists of jobs: the newest that meet every filter.

The hot table has few indexes: each costs every job. So a list goes where its filters can be found: rare ends, failures and
what waits have small indexes; claims know what is in progress; stages know their queue, task, run and size; jobs on their
own are indexed by queue and task. What is left is found soon by walking back from the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gristmill.ledger.choose import ARCHIVED, KEY
from gristmill.ledger.read import claimed_ids, jobs_of
from gristmill.ledger.sql import Sql, glob
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
    pipeline: str | None = None
    error: str | None = None
    key: str | None = None
    archived: bool | None = False


_FEW_STAGES, _FEW_JOBS = 2_000, 20_000  # that are quicker to look up than to walk past
_SLACK = 600_000_000  # numbers and times of jobs go up together, give or take a long transaction: ten minutes
_NOT_REMOVED = "NOT EXISTS (SELECT 1 FROM gm_removal x WHERE x.stage_id = j.stage_id)"
_TASKS = Sql("SELECT id FROM gm_task WHERE name = :name")
_QUEUE = Sql("SELECT id FROM gm_queue WHERE name = :name")
_OF_SUBJECT = (
    "g.run_id IN (SELECT r.id FROM gm_run r WHERE r.subject_id IN (SELECT s.id FROM gm_subject s WHERE s.name = :subject))"
)
_FIRST_PAIR = Sql("SELECT queue_id, task_id FROM gm_job WHERE stage_id IS NULL ORDER BY queue_id, task_id LIMIT 1")
_NEXT_TASK = Sql(
    "SELECT queue_id, task_id FROM gm_job WHERE stage_id IS NULL AND queue_id = :queue AND task_id > :task"
    " ORDER BY queue_id, task_id LIMIT 1"
)
_NEXT_QUEUE = Sql(
    "SELECT queue_id, task_id FROM gm_job WHERE stage_id IS NULL AND queue_id > :queue ORDER BY queue_id, task_id LIMIT 1"
)
_FIRST, _LAST = Sql("SELECT min(id) FROM gm_job"), Sql("SELECT max(id) FROM gm_job")
_FROM = Sql("SELECT id, created_at FROM gm_job WHERE id >= :middle ORDER BY id LIMIT 1")

# What jobs of a state are found by.
_BY_STATE = {
    State.QUEUED: ("j.ready IS NOT NULL", "j.run_at IS NOT NULL", "j.parts_left > 0"),
    State.FAILED: ("j.fingerprint IS NOT NULL",),
    State.COMPLETED_WITH_ERRORS: (f"j.odd = {State.COMPLETED_WITH_ERRORS:d}",),
    State.CANCELLED: (f"j.odd = {State.CANCELLED:d}",),
}
Clauses = dict[str, Mapping[str, Any]]  # of fixed text, each with the values that it binds


class Route(NamedTuple):
    """A way to some of the rows: few that are looked up and sorted, or a walk back from the newest until there are enough.

    Both databases take a column with a plus before it as one that has no index: so the way is ours to say, not a guess.
    """

    where: Clauses
    few: bool = False


def jobs(tx: Tx, wanted: Wanted, most: int) -> list[Job]:
    """The newest jobs that meet every condition."""
    everywhere = _everywhere(tx, wanted)
    found: set[int] = set()
    for route in _routes(tx, wanted):
        where = everywhere | route.where
        order = "+j.id" if route.few else "j.id"
        sql = Sql(f"SELECT j.id FROM gm_job j WHERE {' AND '.join(where) or 'true'} ORDER BY {order} DESC LIMIT :most")
        found.update(row[0] for row in tx.tuples(sql, most=most, **_values(where)))
    return jobs_of(tx, sorted(found, reverse=True)[:most])


def _values(where: Clauses) -> dict[str, Any]:
    return {name: value for bound in where.values() for name, value in bound.items()}


def _given(*clauses: tuple[str, str, Any]) -> Clauses:
    return {clause: {name: value} for clause, name, value in clauses if value is not None}


def _everywhere(tx: Tx, wanted: Wanted) -> Clauses:
    """What is asked of each row, wherever it was found."""
    where = _given(
        ("+j.state = :state", "state", wanted.state),
        ("j.created_at >= :since", "since", wanted.since),
        ("j.fingerprint = :error", "error", wanted.error),
        (KEY, "key", None if wanted.key is None else glob(wanted.key, tx.dialect)),
    )
    where[_NOT_REMOVED] = {}
    if wanted.archived is not None:
        where[ARCHIVED if wanted.archived else f"NOT {ARCHIVED}"] = {}
    if wanted.since is not None:
        where["j.id >= :floor"] = {"floor": _first_since(tx, wanted.since - _SLACK)}
    return where


def _routes(tx: Tx, wanted: Wanted) -> Iterator[Route]:
    """The ways to the rows; together they lead to all of them."""
    tasks = None if wanted.task is None else [row.id for row in tx.all(_TASKS, name=wanted.task)]
    queue = None if wanted.queue is None else tx.value(_QUEUE, name=wanted.queue)
    if tasks == [] or (wanted.queue is not None and queue is None):
        return
    own = _given(("+j.queue_id = :queue", "queue", queue), ("+j.task_id {in tasks}", "tasks", tasks))
    if wanted.part_of is not None:
        if wanted.run is None and wanted.stage is None and wanted.subject is None:  # it is an item's part, and no item
            yield Route(own | {"j.stage_id IS NULL": {}, "j.parent_id = :part_of": {"part_of": wanted.part_of}})
        return
    of_run = _given(
        ("g.run_id = :run", "run", wanted.run),
        ("g.run_id IN (SELECT r.id FROM gm_run r WHERE r.pipeline = :pipeline)", "pipeline", wanted.pipeline),
        ("g.name = :stage", "stage", wanted.stage),
        (_OF_SUBJECT, "subject", wanted.subject),
    )
    stages = of_run | {clause.replace("+j.", "g."): bound for clause, bound in own.items()}
    chosen = f"FROM gm_stage g WHERE {' AND '.join(stages)}"
    found = _few_stages(tx, chosen, _values(stages)) if stages else None
    if of_run and found is not None:
        yield Route(own | {"j.stage_id {in stages}": {"stages": found}}, few=True)
        return
    of_stages = own | ({f"+j.stage_id IN (SELECT g.id {chosen})": _values(of_run)} if of_run else {})
    if by_state := _few_by_state(tx, wanted.state, _FEW_JOBS if stages else _FEW_STAGES):
        yield from (Route({clause: bound} | of_stages, few=True) for clause, bound in by_state.items())
    elif not stages or of_run:
        yield Route(of_stages)
    else:
        in_stages: Clauses = (
            {"+j.stage_id IS NOT NULL": {}} if found is None else {"j.stage_id {in stages}": {"stages": found}}
        )
        yield Route(own | in_stages, few=found is not None)
        for one, kind in _pairs(tx):
            if (queue is None or one == queue) and (tasks is None or kind in tasks):
                pair = _given(("j.queue_id = :one", "one", one), ("j.task_id = :kind", "kind", kind))
                yield Route({"j.stage_id IS NULL": {}} | pair)


def _few_stages(tx: Tx, chosen: str, values: Mapping[str, Any]) -> list[int] | None:
    """The stages that are meant, unless they or their items are many."""
    found = tx.tuples(Sql(f"SELECT g.id, g.total {chosen} LIMIT :few"), few=_FEW_STAGES, **values)
    few = len(found) < _FEW_STAGES and sum(total for _, total in found) <= _FEW_JOBS
    return [number for number, _ in found] if few else None


def _few_by_state(tx: Tx, state: int | None, few: int) -> Clauses | None:
    """What leads to all jobs of a state, if there is something and they are not many."""
    if state == State.IN_PROGRESS:
        return {"j.id {in held}": {"held": claimed_ids(tx)}}
    by_state = None if state is None else _BY_STATE.get(State(state))
    if by_state is None:
        return None
    counting = (Sql(f"SELECT count(*) FROM (SELECT 1 FROM gm_job j WHERE {c} LIMIT :few) AS found") for c in by_state)
    return {clause: {} for clause in by_state} if all(tx.value(sql, few=few + 1) <= few for sql in counting) else None


def _pairs(tx: Tx) -> Iterator[tuple[int, int]]:
    """Every queue and task that jobs on their own have, by jumping from one to the next in their index."""
    pair = tx.one(_FIRST_PAIR)
    while pair is not None:
        yield pair.queue_id, pair.task_id
        queue, task = pair
        pair = tx.one(_NEXT_TASK, queue=queue, task=task) or tx.one(_NEXT_QUEUE, queue=queue)


def _first_since(tx: Tx, moment: int) -> int:
    """The first job that was made at or after a moment, by halving."""
    low, high = tx.value(_FIRST) or 0, tx.value(_LAST) or 0
    while low < high:
        middle = (low + high) // 2
        found, made = tx.tuples(_FROM, middle=middle)[0]
        if made >= moment:
            high = middle
        else:
            low = found + 1
    return int(low)
