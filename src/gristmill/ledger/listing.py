"""Lists of jobs: the newest that meet every filter.

The hot table has few indexes: each costs every job. So a list goes where its filters can be found: rare ends, failures,
archived jobs and what waits have small indexes; claims know what is in progress; stages know their queue, task, run and
size; jobs on their own are indexed by queue and task. What is left is found soon by walking back from the newest; but
nobody knows how rare a key is, so that after some way the indexes are asked which keep keys unique.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gristmill.ledger import names
from gristmill.ledger.choose import KEY, OWN_KEY, REMOVING, Choice, Where, archived_where, given, named
from gristmill.ledger.read import claimed_ids, jobs_of
from gristmill.ledger.sql import Sql, glob
from gristmill.ledger.store import Tx
from gristmill.model import Job
from gristmill.states import State

_FEW_STAGES, _FEW_JOBS = 2_000, 20_000  # that are quicker to look up than to walk past
_FEW_KEYS = 5_000  # the same of keys: where more are alike, the next is not far
_SLACK = 600_000_000  # numbers and times of jobs go up together, give or take a long transaction: ten minutes
_NOT_REMOVED = (  # as an item, or as a part of one
    "(NOT EXISTS (SELECT 1 FROM gm_removal x WHERE x.stage_id = j.stage_id)"
    " AND (j.run_id IS NULL OR EXISTS (SELECT 1 FROM gm_run x WHERE x.id = j.run_id)))"
)
_TASKS = Sql("SELECT id FROM gm_task WHERE name = :name")
_QUEUE = Sql("SELECT id FROM gm_queue WHERE name = :name")
_OF_PIPELINE = "%s.run_id IN (SELECT r.id FROM gm_run r WHERE r.pipeline = :pipeline)"
_OF_SUBJECT = "%s.run_id IN (SELECT r.id FROM gm_run r WHERE r.subject_id IN (SELECT s.id FROM gm_subject s WHERE %s))"
_PIPELINES = "SELECT DISTINCT r.pipeline FROM gm_run r WHERE r.id IN (SELECT g.run_id %s)"
_WITH_PARTS = Sql("SELECT id, parts FROM gm_job WHERE stage_id {in stages} AND parts > 0")
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

# Items and parts by their keys, as their indexes have them; jobs on their own by the keys that they were asked for with.
_KEYED = {
    of: Sql(f"SELECT j.{of} AS whose, j.key FROM gm_job j WHERE {kind} AND j.key {{glob}} :key LIMIT :most")
    for of, kind in (
        ("stage_id", "j.stage_id IS NOT NULL"),
        ("parent_id", "j.stage_id IS NULL AND j.parent_id IS NOT NULL"),
    )
}
_OF_KEYS = {  # CROSS: SQLite begins with the keys
    of: Sql(
        "SELECT j.id FROM {rows f: whose bigint, key text} CROSS JOIN gm_job j"
        f" WHERE {also}j.{of} = f.whose AND j.key = f.key"
    )
    for of, also in (("stage_id", ""), ("parent_id", "j.stage_id IS NULL AND "))
}
_WITH_OWN_KEY = Sql(f"SELECT j.id FROM gm_job j WHERE {OWN_KEY} LIMIT :most")

# What jobs of a state are found by.
_BY_STATE = {
    State.QUEUED: ("j.ready IS NOT NULL", "j.run_at IS NOT NULL", "j.parts_left > 0"),
    State.FAILED: ("j.fingerprint IS NOT NULL",),
    State.COMPLETED_WITH_ERRORS: (f"j.odd = {State.COMPLETED_WITH_ERRORS:d}",),
    State.CANCELLED: (f"j.odd = {State.CANCELLED:d}",),
}
_NEWEST = {State.FAILED, State.COMPLETED_WITH_ERRORS, State.CANCELLED}  # whose indexes have them in order


class Route(NamedTuple):
    """A way to some of the rows: few that are looked up and sorted, or a walk back from the newest until there are enough.

    Both databases take a column with a plus before it as one that has no index: so the way is ours to say, not a guess.
    """

    where: Where
    few: bool = False
    may_do: bool = False  # if there are enough on this way, nobody needs the others


def jobs(tx: Tx, wanted: Choice, most: int, parts: bool = True, after: int | None = None) -> list[Job]:
    """The newest jobs that meet every condition. `parts`: of runs not only their items. `after`: older than this one."""
    if wanted.worker is not None:  # claims know what it holds, and it holds nothing else
        if wanted.states and State.IN_PROGRESS not in wanted.states:
            return []
        wanted = replace(wanted, states=(int(State.IN_PROGRESS),))
    everywhere = _everywhere(tx, wanted)
    found: set[int] = set()
    for route in _routes(tx, wanted, parts, after):
        order = "+j.id" if route.few else "j.id"
        where = everywhere | route.where | given((f"{order} < :after", "after", after))
        sql = Sql(f"SELECT j.id FROM gm_job j WHERE {' AND '.join(where) or 'true'} ORDER BY {order} DESC LIMIT :most")
        found.update(row[0] for row in tx.tuples(sql, most=most, **_values(where)))
        if route.may_do and len(found) >= most:
            break
    return jobs_of(tx, sorted(found, reverse=True)[:most])


def _values(where: Where) -> dict[str, Any]:
    return {name: value for bound in where.values() for name, value in bound.items()}


def _everywhere(tx: Tx, wanted: Choice) -> Where:
    """What is asked of each row, wherever it was found."""
    where = given(
        ("+j.state {in states}", "states", wanted.states),
        ("j.created_at >= :since", "since", wanted.since),
        ("j.fingerprint = :error", "error", wanted.error),
        ("+j.worker_id = :worker", "worker", wanted.worker),
        (KEY, "key", None if wanted.key is None else glob(wanted.key, tx.dialect)),
    )
    if tx.value(REMOVING) is not None:
        where[_NOT_REMOVED] = {}
    where |= archived_where(wanted)
    if wanted.since is not None:
        where["j.id >= :floor"] = {"floor": _first_since(tx, wanted.since - _SLACK)}
    return where


def _routes(tx: Tx, wanted: Choice, parts: bool, after: int | None) -> Iterator[Route]:
    """The ways to the rows; together they lead to all of them."""
    tasks = None if wanted.task is None else [row.id for row in tx.all(_TASKS, name=wanted.task)]
    queue = None if wanted.queue is None else tx.value(_QUEUE, name=wanted.queue)
    if tasks == [] or (wanted.queue is not None and queue is None):
        return
    own = given(("+j.queue_id = :queue", "queue", queue), ("+j.task_id {in tasks}", "tasks", tasks))
    if wanted.part_of is not None:
        if wanted.stage is None:  # it is an item's part, and no item
            of = _of_run("+j", wanted) | {"j.stage_id IS NULL": {}, "j.parent_id = :part_of": {"part_of": wanted.part_of}}
            yield Route(own | of)
        return
    of_run = _of_run("g", wanted)
    if of_run and wanted.stage is None and parts:
        yield from _parts(tx, own, of_run, wanted)
    stages = of_run | {clause.replace("+j.", "g."): bound for clause, bound in own.items()}
    chosen = f"FROM gm_stage g WHERE {' AND '.join(stages)}"
    found = _few_stages(tx, chosen, _values(stages)) if stages else None
    if of_run and found is not None:
        yield Route(own | {"j.stage_id {in stages}": {"stages": found}}, few=True)
        return
    of_stages = own | ({f"+j.stage_id IN (SELECT g.id {chosen})": _values(of_run)} if of_run else {})
    if wanted.states and not stages and _NEWEST.issuperset(wanted.states):
        yield from (Route({clause: {}}) for state in wanted.states for clause in _BY_STATE[State(state)])
    elif by_state := _few_by_state(tx, wanted.states, _FEW_JOBS if stages else _FEW_STAGES):
        yield from (Route({clause: bound} | of_stages, few=True) for clause, bound in by_state.items())
    elif not stages and wanted.key is not None:
        yield from _by_key(tx, glob(wanted.key, tx.dialect), after)
    elif not stages or of_run:
        yield Route(of_stages)
    else:
        yield from _anywhere(tx, own, found, queue, tasks)


def _of_run(table: str, wanted: Choice) -> Where:
    """Of which run: as a stage or a job says it. Only items have a stage."""
    clauses = given(
        (f"{table}.run_id = :run", "run", wanted.run),
        (_OF_PIPELINE % table, "pipeline", wanted.pipeline),
        ("g.name = :stage", "stage", wanted.stage),
    )
    return clauses | {_OF_SUBJECT % (table, clause): bound for clause, bound in named(wanted.subject).items()}


def _parts(tx: Tx, own: Where, of_run: Where, wanted: Choice) -> Iterator[Route]:
    """Parts of items: through these where they are few, else by the names that parts have in their pipelines."""
    chosen, values = f"FROM gm_stage g WHERE {' AND '.join(of_run)}", _values(of_run)
    stages = _few_stages(tx, chosen, values)
    items = None if stages is None else tx.tuples(_WITH_PARTS, stages=stages)
    if items is not None and sum(parts for _, parts in items) <= _FEW_JOBS:
        of = {"j.stage_id IS NULL": {}, "j.parent_id {in items}": {"items": [number for number, _ in items]}}
        yield from [Route(own | of, few=True)] if items else []
        return
    own = own | _of_run("+j", wanted)
    if by_state := _few_by_state(tx, wanted.states, _FEW_JOBS):
        own = own | {"+j.stage_id IS NULL": {}}
        yield from (Route({clause: bound} | own, few=True) for clause, bound in by_state.items())
        return
    pipelines = [name for (name,) in tx.tuples(Sql(_PIPELINES % chosen), **values)]
    kinds = [number for number, name in names.tasks(tx) if name.count(".") == 2 and name.split(".")[0] in pipelines]
    yield from (Route(own | pair) for pair in _pairs_of(tx, None, kinds))


def _anywhere(
    tx: Tx, own: Where, stages: Sequence[int] | None, queue: int | None, tasks: list[int] | None
) -> Iterator[Route]:
    """By queue or task only: items through their stages, where these are few; others by the index that they have."""
    in_stages: Where = {"+j.stage_id IS NOT NULL": {}} if stages is None else {"j.stage_id {in stages}": {"stages": stages}}
    yield Route(own | in_stages, few=stages is not None)
    yield from map(Route, _pairs_of(tx, queue, tasks))


def _by_key(tx: Tx, pattern: str, after: int | None) -> Iterator[Route]:
    """Only by a key: where the newest are not enough, by what the indexes of keys have. That reads no job."""
    newest = (tx.value(_LAST) or 0) if after is None else after
    yield Route({"j.id > :newest": {"newest": newest - _FEW_JOBS}}, may_do=True)
    found = [row[0] for row in tx.tuples(_WITH_OWN_KEY, key=pattern, most=_FEW_KEYS + 1)]
    for of, keyed in _KEYED.items():
        keys = tx.tuples(keyed, key=pattern, most=_FEW_KEYS + 1)
        if len(keys) > _FEW_KEYS or len(found) > _FEW_KEYS:
            yield Route({})
            return
        found += [row[0] for row in tx.tuples(_OF_KEYS[of], f=keys)] if keys else []
    yield Route({"j.id {in found}": {"found": found}}, few=True)


def _few_stages(tx: Tx, chosen: str, values: Mapping[str, Any]) -> list[int] | None:
    """The stages that are meant, unless they or their items are many."""
    found = tx.tuples(Sql(f"SELECT g.id, g.total {chosen} LIMIT :few"), few=_FEW_STAGES, **values)
    few = len(found) < _FEW_STAGES and sum(total for _, total in found) <= _FEW_JOBS
    return [number for number, _ in found] if few else None


def _few_by_state(tx: Tx, states: Sequence[int] | None, few: int) -> Where | None:
    """What leads to all jobs of some states, if there is something for each and they are not many."""
    found: Where = {}
    for state in map(State, states or ()):
        if state == State.IN_PROGRESS:
            found["j.id {in held}"] = {"held": claimed_ids(tx)}
        elif state not in _BY_STATE:
            return None
        else:
            found |= {clause: {} for clause in _BY_STATE[state]}
    counting = (
        Sql(f"SELECT count(*) FROM (SELECT 1 FROM gm_job j WHERE {c} LIMIT :few) AS found") for c in found if not found[c]
    )
    return found if found and all(tx.value(sql, few=few + 1) <= few for sql in counting) else None


def _pairs_of(tx: Tx, queue: int | None, tasks: Sequence[int] | None) -> Iterator[Where]:
    """Where jobs are that are no items, of these tasks in this queue."""
    for one, kind in _pairs(tx):
        if (queue is None or one == queue) and (tasks is None or kind in tasks):
            pair = given(("j.queue_id = :one", "one", one), ("j.task_id = :kind", "kind", kind))
            yield {"j.stage_id IS NULL": {}} | pair


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
