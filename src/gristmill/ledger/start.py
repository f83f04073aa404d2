"""Asking for work: start a run, enqueue jobs on their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from gristmill.errors import Refused
from gristmill.ledger import drawing, flow, parts
from gristmill.ledger.columns import JOB, columns
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.states import StageState, State


class IfActive(StrEnum):
    """What `start` does when the subject has an active run."""

    JOIN = "join"  #: that run is the answer; its priority is raised if this one's is higher
    WAIT = "wait"  #: one follow-up run waits behind it; asked for again, the newest arguments (and needs) count
    REFUSE = "refuse"  #: an error


class PlannedStage(NamedTuple):
    """A stage as `start` writes it down. From then on only rows decide."""

    name: str
    task_id: int
    queue_id: int
    pool: int
    each: bool
    gate: bool
    need_count: int | None
    need_share: float | None
    limit_id: int | None
    upstreams: tuple[str, ...]


class PartRun(NamedTuple):
    """Only part of a pipeline: the stages that are run, and of the first of them perhaps only items with such keys.

    The others stand for what the subject's last good run did.
    """

    stages: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # globs, by stage


class Started(NamedTuple):
    run_id: int
    created: bool
    raised: bool = False  # the run that was joined may have jobs of a lower priority; they follow by `raise_jobs`


class NewJob(NamedTuple):
    """A job on its own. `delay` and `at`: not before; `unique`: refuse a twin, in that scope."""

    task_id: int
    queue_id: int
    pool: int
    priority: int
    args: str
    run_at: int | None = None  # microseconds since 1970
    delay: int | None = None  # microseconds from now
    unique_key: str | None = None
    unique_scope: int | None = None
    limit_id: int | None = None  # the key of a limit


_ADD_SUBJECT = Sql(
    "INSERT INTO gm_subject (pipeline, name, created_at) VALUES (:pipeline, :subject, {now}) ON CONFLICT DO NOTHING"
)
_SUBJECT = Sql("SELECT id FROM gm_subject WHERE pipeline = :pipeline AND name = :subject")
# Only where none is there: SQLite would spend a number on a run that is refused.
_ADD_RUN = (
    "INSERT INTO gm_run (subject_id, pipeline, priority, state, args, created_at)"
    " SELECT :subject, :pipeline, :priority, :state, :args, {now}"
    " WHERE NOT EXISTS (SELECT 1 FROM gm_run WHERE subject_id = :subject AND state IN (%s))"
    " ON CONFLICT DO NOTHING RETURNING id"
)
_ADD_ACTIVE = Sql(_ADD_RUN % f"{State.QUEUED:d}, {State.IN_PROGRESS:d}")
_ADD_WAITING = Sql(_ADD_RUN % f"{State.WAITING:d}")
_ACTIVE = Sql(
    "SELECT id, priority, stop FROM gm_run WHERE subject_id = :subject"
    f" AND state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d}) {{lock}}"
)
_UPDATE_WAITING = Sql(
    "UPDATE gm_run SET args = :args, priority = CASE WHEN priority < :priority THEN priority ELSE :priority END"
    f" WHERE subject_id = :subject AND state = {State.WAITING:d} RETURNING id"
)
_ADD_STAGES = Sql(
    "INSERT INTO gm_stage (run_id, name, position, task_id, queue_id, pool, each, gate, need_count, need_share,"
    " limit_id, waiting_for, state, outcome, todo, closed_at) SELECT :run, f.name, f.position, f.task, f.queue, f.pool,"
    " f.each, f.gate, f.count, f.share, f.lim, f.waits, f.state, f.outcome, f.todo,"
    f" CASE WHEN f.state = {StageState.CLOSED:d} THEN {{now}} END"
    " FROM {rows f: name text, position smallint, task int, queue int, pool smallint, each boolean, gate boolean,"
    " count int, share float8, lim int, waits smallint, state smallint, outcome smallint, todo text} RETURNING id, name"
)
_ADD_EDGES = Sql(
    "INSERT INTO gm_edge (upstream_id, downstream_id) SELECT f.up, f.down FROM {rows f: up bigint, down bigint}"
)
_PLAN_OF = Sql("SELECT name, state, todo FROM gm_stage WHERE run_id = :run ORDER BY position")
_FORGET_PLAN = Sql("DELETE FROM gm_stage WHERE run_id = :run")
_RAISE_RUN = Sql("UPDATE gm_run SET priority = :priority WHERE id = :run")
_RAISE_JOBS = Sql(
    "UPDATE gm_job SET priority = :priority WHERE id {one_of SELECT id FROM gm_job"
    " WHERE stage_id IN (SELECT id FROM gm_stage WHERE run_id = :run)"
    f" AND state = {State.QUEUED:d} AND priority > :priority ORDER BY id LIMIT :most {{lock}}}}"
)


def start(
    tx: Tx,
    pipeline: str,
    subject: str,
    args: str,
    priority: int,
    plan: Sequence[PlannedStage],
    if_active: IfActive,
    part: PartRun | None = None,
) -> Started:
    """Starts a run, or does what `if_active` says. Partial unique indexes decide races, not what was read before."""
    tx.run(_ADD_SUBJECT, pipeline=pipeline, subject=subject)
    number = tx.value(_SUBJECT, pipeline=pipeline, subject=subject)
    new = {"subject": number, "pipeline": pipeline, "priority": priority, "args": args}
    for _ in range(100):
        run = start_idle(tx, pipeline, number, args, priority, plan, part)
        if run is not None:
            return Started(run, created=True)
        active = tx.one(_ACTIVE, subject=number)
        if active is None:
            continue  # it ended between the two statements
        if if_active is IfActive.REFUSE:
            raise Refused(f"{pipeline} {subject!r} has an active run already: {active.id}")
        if if_active is IfActive.JOIN and active.stop is None:
            raised = priority <= active.priority  # also when it was raised before: that caller may have died half-way
            if priority < active.priority:
                tx.run(_RAISE_RUN, run=active.id, priority=priority)
            return Started(active.id, created=False, raised=raised)
        waiting = tx.value(_UPDATE_WAITING, subject=number, priority=priority, args=args)
        if waiting is not None:
            _plan_anew(tx, waiting, plan, part)
            return Started(waiting, created=False)
        run = tx.value(_ADD_WAITING, state=int(State.WAITING), **new)
        if run is not None:
            _write_plan(tx, run, plan, part)
            tx.notes.run(run, state=State.WAITING.word, pipeline=pipeline)
            return Started(run, created=True)
    raise Refused(f"{pipeline} {subject!r}: runs start and end too fast to join one; try again")


def start_idle(
    tx: Tx, pipeline: str, subject: int, args: str, priority: int, plan: Sequence[PlannedStage], part: PartRun | None = None
) -> int | None:
    """Starts a run of a subject (by number) that has no active one; None: it has. Waits for no lock of that run."""
    new = {"subject": subject, "pipeline": pipeline, "priority": priority, "args": args}
    run: int | None = tx.value(_ADD_ACTIVE, state=int(State.QUEUED), **new)
    if run is not None:
        _write_plan(tx, run, plan, part)
        tx.notes.run(run, state=State.QUEUED.word, pipeline=pipeline)
        flow.begin(tx, run)
    return run


def _write_plan(tx: Tx, run: int, plan: Sequence[PlannedStage], part: PartRun | None = None) -> None:
    ids = {row.name: row.id for row in tx.all(_ADD_STAGES, run=run, f=_rows(plan, part))}
    edges = [(ids[upstream], ids[stage.name]) for stage in plan for upstream in stage.upstreams]
    if edges:
        tx.run(_ADD_EDGES, f=edges)


def _rows(plan: Sequence[PlannedStage], part: PartRun | None) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    in_part: set[str] = set()  # some of their items are not run, nor is what came from these
    for position, stage in enumerate(plan):
        how = (stage.name, position, *stage[1:-1])
        waits = len(stage.upstreams) if part is None else sum(up in part.stages for up in stage.upstreams)
        if part is not None and stage.name not in part.stages:
            rows.append((*how, waits, int(StageState.CLOSED), int(State.SKIPPED), None))
            continue
        # Items that come from a stage which is not run, or from items of it that are not, are those of the earlier run.
        todo = None
        if stage.each and part is not None and (stage.name in part.keys or in_part.intersection(stage.upstreams)):
            in_part.add(stage.name)
        if stage.each and part is not None and (stage.name in in_part or waits < len(stage.upstreams)):
            todo = orjson.dumps({"keys": part.keys.get(stage.name), "from": ""}).decode()
        rows.append((*how, waits + (todo is not None), int(StageState.WAITING), None, todo))
    return rows


def _plan_anew(tx: Tx, run: int, plan: Sequence[PlannedStage], part: PartRun | None) -> None:
    """A waiting run has no jobs yet: its plan is that of who asked last, as its arguments are. But it is there for all who
    asked: if they want other parts, it is a whole one."""
    wanted = [(row[0], row[-3], row[-1]) for row in _rows(plan, part)]
    same = wanted == tx.tuples(_PLAN_OF, run=run)
    tx.run(_FORGET_PLAN, run=run)
    _write_plan(tx, run, plan, part if same else None)


def raise_jobs(tx: Tx, run: int, most: int = 2000) -> int:
    """Moves up to `most` queued jobs of a run up to its priority; says how many, so that the caller can go on.

    Under the run's lock, and waiting for jobs that others hold: a job that is skipped here because a weaker raise or a
    promotion has it at the moment would be left behind for good.
    """
    row = flow.lock_runs(tx, [run]).get(run)
    if row is None:
        return 0
    raised = tx.run(_RAISE_JOBS, run=run, priority=row.priority, most=most)
    return raised or parts.raise_queued(tx, run, row.priority, most)


AS_JOB = "NULL AS stage, NULL AS subject, '' AS task, '' AS queue, false AS adopted, NULL AS missed"  # of a new one
_COLUMNS = (
    "task_id, queue_id, pool, priority, state, ready, run_at, created_at, args, unique_key, unique_name, unique_scope,"
    " limit_id"
)
_ENQUEUE = Sql(
    f"INSERT INTO gm_job ({_COLUMNS}) SELECT f.task, f.queue, f.pool, f.priority, {State.QUEUED:d},"
    " CASE WHEN f.at IS NULL AND f.delay IS NULL AND f.lim IS NULL THEN {next} END,"
    " coalesce(f.at, {now} + f.delay, CASE WHEN f.lim IS NOT NULL THEN {waiting} END), {now}, f.args,"
    " f.twin, f.twin, f.scope, f.lim FROM {rows f: task int, queue int, pool smallint, priority smallint, args text,"
    " at bigint, delay bigint, twin text, scope smallint, lim int} WHERE true ON CONFLICT DO NOTHING"
    f" RETURNING {columns(JOB)}, {AS_JOB}"
)
# What all have in common is not sent with each.
_ENQUEUE_READY = Sql(
    "INSERT INTO gm_job (task_id, queue_id, pool, priority, state, ready, created_at, args)"
    f" SELECT :task_id, :queue_id, :pool, :priority, {State.QUEUED:d}, {{next}}, {{now}}, f.args"
    " FROM {rows f: args text} WHERE true RETURNING id"
)
_ENQUEUE_WAITING = Sql(
    "INSERT INTO gm_job (task_id, queue_id, pool, priority, state, run_at, created_at, args, limit_id)"
    f" SELECT :task_id, :queue_id, :pool, :priority, {State.QUEUED:d}, {{waiting}}, {{now}}, f.args, f.lim"
    " FROM {rows f: args text, lim int} WHERE true RETURNING id"
)
TWIN = Sql("SELECT id FROM gm_job WHERE unique_key = :key")


def enqueue(tx: Tx, job: NewJob) -> tuple[int, bool, Any]:
    """Adds one job; with a unique key that is taken, says which job has it. The second value: was it added? Then the third
    is its row, for `answers.job`."""
    for _ in range(100):
        row = tx.one(_ENQUEUE, f=[job])
        if row is not None:
            delayed = job.run_at is not None or job.delay is not None
            if delayed or job.limit_id is None:
                tx.ring(job.queue_id, delayed=delayed)
            tx.poke(job.limit_id)
            return row.id, True, row
        twin = tx.value(TWIN, key=job.unique_key)
        if twin is not None:
            return twin, False, None
    raise Refused(f"jobs with the unique key {job.unique_key!r} come and go too fast; try again")


_BULK = 5000  # jobs per statement
_WRITTEN = 1000  # and per text of COPY
COPIED = 200  # so many are worth the round trips that COPY takes more
_ABREAST = 50  # jobs with one place in the line: they stand as they were written


def enqueue_many(tx: Tx, like: NewJob, args: Sequence[str], limits: Sequence[int | None] = ()) -> list[int]:
    """Adds jobs of one task without unique keys, all or none; says their ids. They differ in arguments, and in the keys of
    their limits if they have any."""
    alike = {"task_id": like.task_id, "queue_id": like.queue_id, "pool": like.pool, "priority": like.priority}
    if not limits:
        tx.ring(like.queue_id)
        if tx.dialect == "sqlite":
            return _insert_ready(tx, alike, args)
        if len(args) >= COPIED:
            return _copy_ready(tx, alike, args)
    for limit in set(limits) - {None}:
        tx.poke(limit)
    rows = list(zip(args, limits, strict=True) if limits else zip(args, strict=True))
    ids: list[int] = []
    for first in range(0, len(rows), _BULK):
        some = rows[first : first + _BULK]
        ids += [row[0] for row in tx.tuples(_ENQUEUE_WAITING if limits else _ENQUEUE_READY, f=some, **alike)]
    return ids


def _insert_ready(tx: Tx, alike: Mapping[str, int], args: Sequence[str]) -> list[int]:
    """SQLite. They are not told their numbers, which takes time: these are the next ones."""
    ids = drawing.new_ids(tx, len(args))
    place, now = drawing.place(tx)
    of_all = {**alike, "state": State.QUEUED, "ready": place, "created_at": now}
    tx.add_alike("gm_job", of_all, ("args",), list(zip(args, strict=True)))
    return list(ids)


def _copy_ready(tx: Tx, alike: Mapping[str, int], args: Sequence[str]) -> list[int]:
    """PostgreSQL: INSERT would take twice as long."""
    ids = drawing.new_ids(tx, len(args))
    places = drawing.places(tx, -(-len(args) // _ABREAST))
    values = "\t".join(f"{value:d}" for value in (*alike.values(), State.QUEUED))

    def texts() -> Iterator[str]:
        """A few places at a time: each text costs its own way to the server."""
        for first in range(0, len(args), _WRITTEN):
            rows: list[str] = []
            for n in range(first, min(first + _WRITTEN, len(args)), _ABREAST):
                head = "\t".join((values, *map(str, places[n // _ABREAST])))
                some = slice(n, n + _ABREAST)
                rows += [f"{head}\t{number:d}\t{text}\n" for number, text in zip(ids[some], args[some], strict=True)]
            yield "".join(rows).replace("\\", r"\\")  # JSON has no other sign that COPY would take for its own

    tx.copy("gm_job", f"{', '.join(alike)}, state, ready, created_at, id, args", texts())
    return list(ids)
