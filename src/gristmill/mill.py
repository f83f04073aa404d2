"""The facade: what an application, the command line and the pages call."""

from __future__ import annotations

import contextlib
import getpass
import logging
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import orjson

from gristmill.binding import check_key, encode
from gristmill.clock import Clock, from_datetime, micros
from gristmill.errors import Invalid, NotFound, SchemaMismatch, did_you_mean
from gristmill.execution import load
from gristmill.model import (
    Attempt,
    ErrorDetail,
    Job,
    Priority,
    Queue,
    Repair,
    RetriedError,
    Run,
    Signature,
    Status,
    Subject,
    Why,
    Worker,
)
from gristmill.pipeline import Pipeline, Registry, Stage, Task, check_name, check_timeout
from gristmill.retry import Retries
from gristmill.settings import LABEL_LIMIT, database_url, worker_settings
from gristmill.states import State, UniqueScope

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gristmill.delivery.database import database_delivery
    from gristmill.housekeeping import sweep_run
    from gristmill.ledger import names, queues, read, signatures, start, stop, subjects, why
    from gristmill.ledger.start import IfActive, NewJob, PlannedStage
    from gristmill.ledger.store import Ledger, Tx, shown
    from gristmill.reconciler import Reconciler
    from gristmill.worker import Until
    from gristmill.worker import Worker as Supervisor


def _load() -> None:
    """Imports what a mill works with, when one is made and not before.

    Children import applications, and these import this module: SQLAlchemy alone would cost each child 0.3 s and 20 MiB.
    """
    global \
        database_delivery, \
        sweep_run, \
        names, \
        queues, \
        read, \
        signatures, \
        start, \
        stop, \
        subjects, \
        why, \
        IfActive, \
        NewJob, \
        PlannedStage
    global Ledger, shown, Reconciler, Supervisor
    from gristmill.delivery.database import database_delivery
    from gristmill.housekeeping import sweep_run
    from gristmill.ledger import names, queues, read, signatures, start, stop, subjects, why
    from gristmill.ledger.start import IfActive, NewJob, PlannedStage
    from gristmill.ledger.store import Ledger, shown
    from gristmill.reconciler import Reconciler
    from gristmill.worker import Worker as Supervisor


log = logging.getLogger("gristmill.mill")

Do = Callable[..., Any]  # runs a verb in some transaction
P = ParamSpec("P")
T = TypeVar("T")
_RETRY_BATCH = 500  # jobs that are requeued in one transaction: the runs of all of them are locked meanwhile
_BOUND = re.compile(r":(\w+)")
_SCOPES = {"unfinished": UniqueScope.UNFINISHED, "queued": UniqueScope.QUEUED}


class Mill:
    """A ledger together with the pipelines and tasks of an application. Make one with `Mill.open`."""

    def __init__(self, ledger: Ledger, registry: Registry) -> None:
        _load()
        self.ledger = ledger
        self.registry = registry
        self.delivery = database_delivery(ledger)
        ledger.announcer = self.delivery
        self._queue_ids: dict[str, int] = {}
        self._task_ids: dict[tuple[str, str], int] = {}

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *parts: Pipeline | Task[Any, Any] | Registry,
        create: bool = True,
        clock: Clock | None = None,
    ) -> Self:
        """Opens a database with an application's pipelines and tasks. A new SQLite file is set up on first use, unless
        `create` is False."""
        if load.importing:
            raise Invalid(
                "a program that opens a mill when it is imported cannot be run by workers, whose children import it:"
                " put that part under `if __name__ == '__main__':`"
            )
        _load()
        registry = Registry()
        for part in parts:
            for piece in part.parts() if isinstance(part, Registry) else [part]:
                registry.add(piece)
        ledger = Ledger(database_url(url), clock)
        try:
            if ledger.is_sqlite and not create and not ledger.path.exists():
                raise SchemaMismatch(f"there is no database {shown(ledger.url)}")
            if ledger.is_sqlite and create and ledger.revision() is None:
                from gristmill.ledger.migrate import upgrade

                upgrade(ledger.url.render_as_string(hide_password=False))
            ledger.check_schema()
            return cls(ledger, registry)
        except BaseException:
            ledger.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.ledger.close()

    # ---- asking for work

    def start(
        self,
        pipeline: Pipeline | str,
        subject: str,
        *,
        args: Mapping[str, Any] | None = None,
        priority: Priority | str = Priority.NORMAL,
        if_active: IfActive | str = "join",
        connection: Connection | None = None,
    ) -> Run:
        """Starts a run of a pipeline for a subject. With a run active: joins it, waits behind it, or refuses.

        With a `connection` (SQLAlchemy's), it is part of that connection's transaction.
        """
        if not isinstance(pipeline, str | Pipeline):
            raise Invalid(f"{pipeline!r} is not a pipeline; give a Pipeline, or the name of one")
        flow = self.registry.pipeline(pipeline.name if isinstance(pipeline, Pipeline) else pipeline)
        check_key(subject, "subject")
        text = encode(flow.check_args(_arguments(args)), "the run's arguments")
        level = Priority.of(priority)
        do = self._doing(connection)
        started = do(
            start.start,
            flow.name,
            subject,
            text,
            int(level),
            self._plan(flow, do),
            _choice(IfActive, if_active, "if_active"),
        )
        if started.raised and level < Priority.LOW:
            while do(start.raise_jobs, started.run_id):
                pass
        run = self.run(started.run_id) if connection is None else do(read.run, started.run_id)
        if args and not started.created and run.args != orjson.loads(text):
            words = "run %d of %s %r goes on with its own arguments; those given now are ignored"
            log.warning(words, run.id, flow.name, subject)
        return Run(**{**vars(run), "created": started.created})

    def enqueue(
        self,
        task: Task[Any, Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        queue: str | None = None,
        priority: Priority | str = Priority.NORMAL,
        at: datetime | None = None,
        delay: float | timedelta | None = None,
        unique: str | None = None,
        unique_scope: str = "unfinished",
        timeout: float | None = None,
        retries: Retries | int | None = None,
        connection: Connection | None = None,
    ) -> Job:
        """Adds a job on its own. With `unique`, a twin that is unfinished (or `queued`) is returned instead.

        With a `connection` (SQLAlchemy's), it is part of that connection's transaction.
        """
        registered = self._task(task)
        if unique_scope not in _SCOPES:
            raise Invalid(f"unknown unique_scope {unique_scope!r}{did_you_mean(unique_scope, _SCOPES)}")
        if unique is not None:
            unique = f"{registered.name}:{check_key(unique, 'unique key')}"
        do = self._doing(connection)
        number, created = do(
            start.enqueue,
            NewJob(
                *self._how(registered, queue, timeout, retries, do),
                int(Priority.of(priority)),
                encode(registered.parameters.check(_arguments(args)), "the job's arguments"),
                None if at is None else _moment(at),
                None if delay is None else _delay(delay),
                unique,
                int(_SCOPES[unique_scope]) if unique else None,
            ),
        )
        job = self.job(number) if connection is None else do(read.job, number)
        return Job(**{**vars(job), "created": created})

    def enqueue_many(
        self,
        task: Task[Any, Any] | str,
        args: Iterable[Mapping[str, Any]],
        *,
        queue: str | None = None,
        priority: Priority | str = Priority.NORMAL,
    ) -> list[int]:
        """Adds many jobs of one task, all or none; says their ids. Far faster than one by one."""
        registered = self._task(task)
        how = self._how(registered, queue, None, None)
        level = int(Priority.of(priority))
        check = registered.parameters.check
        jobs = [NewJob(*how, level, encode(check(_arguments(a)), "the job's arguments")) for a in args]
        return self.ledger.do(start.enqueue_many, jobs) if jobs else []

    def _task(self, task: Task[Any, Any] | str) -> Task[Any, Any]:
        if not isinstance(task, str | Task):
            raise Invalid(f"{task!r} is not a task; put @task above the function, or give the name of a task")
        registered = self.registry.task(task if isinstance(task, str) else task.name)
        if isinstance(registered, Stage):
            raise Invalid(
                f"{registered.name!r} is a stage: it runs as part of a run; start pipeline {registered.pipeline.name!r}"
            )
        return registered

    def transaction(self) -> AbstractContextManager[Connection]:
        """`with mill.transaction() as connection:` one transaction for an application's own tables (in the same database)
        and for jobs and runs asked for with `connection=`. It commits at the end of the block, or not at all."""
        return self.ledger.transaction()

    def _doing(self, connection: Connection | None) -> Do:
        """How to run a verb: in a transaction of its own, or in the caller's."""
        if connection is None:
            return self.ledger.do
        self.ledger.check_guest(connection)
        return partial(self.ledger.join, connection)

    def _how(
        self,
        task: Task[Any, Any],
        queue: str | None,
        timeout: float | None,
        retries: Retries | int | None,
        do: Do | None = None,
    ) -> tuple[int, int, int]:
        """(task, queue, pool) of a job, by number."""
        policy = Retries(retries) if isinstance(retries, int) else retries
        spec = task.spec(timeout=check_timeout(timeout, f"task {task.name!r}"), retries=policy)
        return self._task_id(task, spec, do), self._queue_id(queue or task.queue, do), int(task.is_async)

    def _plan(self, pipeline: Pipeline, do: Do | None = None) -> list[PlannedStage]:
        return [
            PlannedStage(
                stage.stage_name,
                self._task_id(stage, stage.spec(), do),
                self._queue_id(stage.queue, do),
                int(stage.is_async),
                stage.each,
                stage.gate,
                stage.need.count,
                stage.need.share,
                tuple(pipeline.upstreams(stage)),
            )
            for stage in pipeline.ordered()
        ]

    def _task_id(self, task: Task[Any, Any], spec: Mapping[str, Any], do: Do | None = None) -> int:
        key = (task.name, orjson.dumps(spec).decode())
        if key in self._task_ids:
            return self._task_ids[key]
        naming = self._naming(do)
        found: dict[tuple[str, str], int] = naming(names.add_tasks, [key])
        if naming == self.ledger.do:
            self._task_ids.update(found)
        return found[key]

    def _queue_id(self, name: str, do: Do | None = None) -> int:
        """A queue must be one that a task names, or that was made by `set_queue`: a typo is not a new queue."""
        if name in self._queue_ids:
            return self._queue_ids[name]
        naming = self._naming(do)
        declared = self.registry.queues()
        found: dict[str, int] = naming(names.queues)
        if name not in found:
            if name not in declared:
                raise NotFound(f"unknown queue {name!r}{did_you_mean(name, declared | found.keys())}")
            found = naming(names.add_queues, declared)
        if naming == self.ledger.do:
            self._queue_ids = found
        return found[name]

    def _naming(self, do: Do | None) -> Do:
        """Names are added in a transaction of their own: nobody should wait for the caller's. But SQLite has one at a time.

        What the caller may still undo is not remembered.
        """
        return do if do is not None and self.ledger.is_sqlite else self.ledger.do

    # ---- acting

    # With `dry_run` each is refused as it would be, changes nothing, and says what there is now.

    def cancel_run(self, run: int, *, reason: str | None = None, by: str | None = None, dry_run: bool = False) -> Run:
        """Stops a run: nothing of it starts any more, what runs is told to stop, what waits ends `cancelled`."""
        self._act(dry_run, stop.cancel_run, run, by=by or who(), reason=reason)
        if not dry_run:
            sweep_run(self.ledger, run)
        return self.run(run)

    def cancel_job(self, job: int, *, reason: str | None = None, by: str | None = None, dry_run: bool = False) -> Job:
        """Cancels a queued job; one in progress is stopped by its worker within a few seconds."""
        self._act(dry_run, stop.cancel_job, job, by=by or who(), reason=reason)
        return self.job(job)

    def retry_job(self, job: int, *, by: str | None = None, dry_run: bool = False) -> Job:
        """Queues an ended job again with a fresh budget; one that waits for its retry runs now."""
        self._act(dry_run, stop.requeue_job, job, by=by or who())
        return self.job(job)

    def forget(self, pipeline: Pipeline | str, subject: str, stage: str | None = None, *, by: str | None = None) -> int:
        """Forgets what was done before, so that the next run of a subject skips nothing as unchanged; says how much."""
        flow = self.registry.pipeline(pipeline.name if isinstance(pipeline, Pipeline) else pipeline)
        if stage is not None and stage not in flow.stages:
            raise Invalid(f"pipeline {flow.name!r} has no stage {stage!r}{did_you_mean(stage, flow.stages)}")
        return self.ledger.do(stop.forget_done, flow.name, subject, stage, by=by or who())

    def retry_error(self, fingerprint: str, *, by: str | None = None, dry_run: bool = False) -> RetriedError:
        """Queues all jobs again that are failed now by this error, batch by batch; says how many could not be."""
        self._read(signatures.check_known, fingerprint)
        queued, refusals, after = 0, list[str](), 0
        while batches := self._read(signatures.failed_jobs, fingerprint, after, _RETRY_BATCH):
            for batch in batches:
                done = self._act(dry_run, signatures.requeue, batch, by=by or who())
                queued += done.queued
                refusals += done.refusals
            after = max(job for batch in batches for job in batch.jobs)
        if not dry_run:
            self.ledger.do(signatures.record_retry, fingerprint, queued, len(refusals), by=by or who())
        return RetriedError(fingerprint, queued, len(refusals), refusals[0] if refusals else None)

    def ignore_error(self, fingerprint: str, *, undo: bool = False, by: str | None = None) -> None:
        """Leaves an error out of `errors`, until `undo`; its jobs stay as they are."""
        self.ledger.do(signatures.set_ignored, fingerprint, not undo, by=by or who())

    def _act(self, dry_run: bool, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Does it, or with `dry_run` does it and takes it back; says what it said."""
        if not dry_run:
            return self.ledger.do(verb, *args, **options)
        said: list[T] = []

        def rehearse(tx: Tx) -> None:
            said.append(verb(tx, *args, **options))
            raise _Undo

        with contextlib.suppress(_Undo):
            self.ledger.do(rehearse)
        return said[-1]

    def pause(self, queue: str, *, by: str | None = None) -> None:
        """Nothing of this queue starts until it is resumed; survives restarts."""
        self.ledger.do(queues.set_paused, queue, True, by=by or who())

    def resume(self, queue: str, *, by: str | None = None) -> None:
        self.ledger.do(queues.set_paused, queue, False, by=by or who())

    def set_queue(self, queue: str, *, weight: float | None = None, create: bool = False, by: str | None = None) -> None:
        """Changes a queue's weight; `create`: makes a queue that no task names."""
        if create:
            self._queue_ids = self.ledger.do(names.add_queues, [check_name(queue, "queue")])
        if weight is not None:
            if not 0 < weight <= 1e6:
                raise Invalid(f"a queue's weight is a number above 0, not {weight!r}")
            self.ledger.do(queues.set_weight, queue, weight, by=by or who())

    def set_subject(
        self,
        pipeline: Pipeline | str,
        name: str,
        *,
        interval: float | timedelta | None = None,
        labels: Mapping[str, str | None] | None = None,
        by: str | None = None,
    ) -> Subject:
        """Sets a subject's own interval (0: none) and some of its labels (None: away with it); others stay.

        Makes the subject if it was not there and the pipeline is this application's.
        """
        flow = pipeline.name if isinstance(pipeline, Pipeline) else pipeline
        check_key(name, "subject")
        if flow not in self.registry.pipelines and self.registry.pipelines:
            self.registry.pipeline(flow)  # says what is meant
        gap = None if interval is None else _delay(interval, "interval")
        self.ledger.do(
            subjects.set_subject, flow, name, gap, _labels(labels), create=flow in self.registry.pipelines, by=by or who()
        )
        return self.subject(flow, name)

    def reconcile(self, *, dry_run: bool = False, subject: str | None = None) -> list[Repair]:
        """Looks for what should not be and mends it; `dry_run` only says what it would do."""
        return Reconciler(self.ledger).run(mend=not dry_run, subject=subject)

    # ---- working

    def work(
        self,
        until: Until = None,
        *,
        queues: Sequence[str] = (),
        tickers: Sequence[Callable[[float], float]] = (),
        **settings: Any,
    ) -> None:
        """A worker in this process. `until`: None works until stopped, "idle" until nothing is ready, "drained" until
        nothing is queued or waits to be retried. Settings: see `gristmill.settings`."""
        if until not in (None, "idle", "drained"):
            raise Invalid(f"unknown until={until!r}{did_you_mean(str(until), ['idle', 'drained'])}")
        self.worker(queues=queues, tickers=tickers, **settings).run(until)

    def worker(
        self, *, queues: Sequence[str] = (), tickers: Sequence[Callable[[float], float]] = (), **settings: Any
    ) -> Supervisor:
        chosen = worker_settings(**settings)
        if not self.registry.tasks:
            raise Invalid("this mill has no pipelines and no tasks, so there is nothing that it could work on")
        self._queue_ids = self.ledger.do(names.add_queues, self.registry.queues())
        for queue in queues:
            self._queue_id(queue)
        return Supervisor(self.ledger, self.delivery, self.registry.sources(), chosen, queues, tickers)

    # ---- reading

    def run(self, run: int) -> Run:
        with self.ledger.reading() as tx:
            return read.run(tx, run)

    def runs(
        self,
        *,
        pipeline: str | None = None,
        subject: str | None = None,
        state: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> list[Run]:
        """Runs, newest first."""
        where = _filters(
            ("r.pipeline = :pipeline", pipeline),
            ("s.name = :subject", subject),
            ("r.state = :state", _state(state)),
            ("r.created_at >= :since", None if since is None else from_datetime(since)),
        )
        with self.ledger.reading() as tx:
            return read.runs(tx, where, limit)

    def job(self, job: int) -> Job:
        return self.ledger.glance(read.job, job)

    def jobs(
        self,
        *,
        run: int | None = None,
        stage: str | None = None,
        subject: str | None = None,
        state: str | None = None,
        queue: str | None = None,
        task: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> list[Job]:
        """Jobs, newest first."""
        where = _filters(
            ("j.stage_id IN (SELECT id FROM gm_stage WHERE run_id = :run)", run),
            ("g.name = :stage", stage),
            ("s.name = :subject", subject),
            ("j.state = :state", _state(state)),
            ("q.name = :queue", queue),
            ("t.name = :task", task),
            ("j.created_at >= :since", None if since is None else from_datetime(since)),
        )
        with self.ledger.reading() as tx:
            self._check_queue(tx, queue)
            return read.jobs(tx, where, limit)

    def attempts(self, job: int) -> list[Attempt]:
        """The attempts of a job that did not succeed, newest first, with traceback and captured log."""
        with self.ledger.reading() as tx:
            read.job(tx, job)
            return read.attempts(tx, job)

    def results(self, run: Run | int, stage: str) -> Iterator[tuple[str, Any]]:
        """(key, result) of the items of a stage that completed, by key; streamed."""
        return read.results(self.ledger, run.id if isinstance(run, Run) else run, stage)

    def errors(
        self,
        *,
        queue: str | None = None,
        stage: str | None = None,
        pipeline: str | None = None,
        since: datetime | None = None,
        every: bool = False,
        limit: int = 50,
    ) -> list[Signature]:
        """Errors by fingerprint, what fails the most jobs now first; `every`: also those that are ignored."""
        where = _filters(
            ("q.name = :queue", queue),
            ("g.name = :stage", stage),
            ("r.pipeline = :pipeline", pipeline),
            ("a.ended_at >= :since", None if since is None else from_datetime(since)),
        )
        with self.ledger.reading() as tx:
            self._check_queue(tx, queue)
            return signatures.signatures(tx, where if every else {**where, **signatures.UNLESS_IGNORED}, limit)

    def error(self, fingerprint: str) -> ErrorDetail:
        """One error: an example with traceback and log, the stages, subjects and jobs that it happens to."""
        return self._read(signatures.detail, fingerprint)

    def _check_queue(self, tx: Tx, queue: str | None) -> None:
        if queue is not None and queue not in (known := names.queues(tx)):
            raise NotFound(f"unknown queue {queue!r}{did_you_mean(queue, known)}")

    def _read(self, look: Callable[Concatenate[Tx, P], T], *args: P.args, **options: P.kwargs) -> T:
        with self.ledger.reading() as tx:
            return look(tx, *args, **options)

    def subject(self, pipeline: Pipeline | str, name: str) -> Subject:
        with self.ledger.reading() as tx:
            return subjects.subject(tx, pipeline.name if isinstance(pipeline, Pipeline) else pipeline, name)

    def subjects(
        self,
        *,
        pipeline: Pipeline | str | None = None,
        label: str | Iterable[str] = (),
        stale_for: float | timedelta | None = None,
        state: str | None = None,
        limit: int = 50,
        after: Subject | int | None = None,
    ) -> list[Subject]:
        """Subjects, in the order in which they came; `after` the last of one page comes the next.

        `label`: `key=value` or `key`, one or several. `stale_for`: without a good run for so many seconds, or ever.
        `state`: of the active run or of the last one that ended.
        """
        wanted = [label] if isinstance(label, str) else label
        with self.ledger.reading() as tx:
            return subjects.subjects(
                tx,
                pipeline=pipeline.name if isinstance(pipeline, Pipeline) else pipeline,
                labels=[_label(text) for text in wanted],
                stale_for=None if stale_for is None else _delay(stale_for, "stale_for"),
                state=_state(state),
                after=after.id if isinstance(after, Subject) else after,
                most=limit,
            )

    def queues(self) -> list[Queue]:
        with self.ledger.reading() as tx:
            return read.queues(tx)

    def workers(self, *, every: bool = False) -> list[Worker]:
        """Active workers, newest first; `every`: also those that stopped or were lost."""
        with self.ledger.reading() as tx:
            return read.workers(tx, every)

    def why(
        self, *, run: int | None = None, job: int | None = None, pipeline: str | None = None, subject: str | None = None
    ) -> Why:
        """The one reason that a run, a job, or a subject of a pipeline is not moving, and the command that mends it."""
        given = {"run": run, "job": job, "pipeline": pipeline, "subject": subject}
        match {name: value for name, value in given.items() if value is not None}:
            case {"run": int(number), **rest} if not rest:
                return self._read(why.run, number)
            case {"job": int(number), **rest} if not rest:
                return self._read(why.job, number)
            case {"pipeline": str(flow), "subject": str(name), **rest} if not rest:
                return self._read(why.subject, flow, name)
        raise Invalid("why takes a run, or a job, or a pipeline and a subject of it")

    def status(self) -> Status:
        """The overall picture."""
        with self.ledger.reading() as tx:
            active = read.runs(tx, {"r.state IN (0, 1, 7)": {}}, 50)
            return Status(read.run_counts(tx), tuple(active), tuple(read.queues(tx)), tuple(read.workers(tx)))


class _Undo(Exception):
    """The end of a rehearsal: the transaction is rolled back."""


def who() -> str:
    """Who does this, for the record."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def _arguments(args: Any) -> Mapping[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise Invalid(f"args must be a dict of arguments by name, not {type(args).__name__}")
    return args


def _moment(at: Any) -> int:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise Invalid(f"at must be a datetime with a time zone, not {at!r}")
    return from_datetime(at)


def _delay(delay: Any, what: str = "delay") -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e10:
        raise Invalid(f"{what} must be a number of seconds, not {delay!r}")
    return micros(seconds)


def _labels(labels: Any) -> dict[str, str | None]:
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise Invalid(f"labels must be a dict of values by key, not {type(labels).__name__}")
    return {_label_key(key): None if value is None else _label_value(value) for key, value in labels.items()}


def _label(text: Any) -> tuple[str, str | None]:
    """`key=value`, or `key` for any value."""
    key, equals, value = check_key(text, "label").partition("=")
    return _label_key(key), _label_value(value) if equals else None


def _label_key(key: Any) -> str:
    if "=" in check_key(key, "label"):
        raise Invalid(f"the key of a label cannot hold '=': {key!r}")
    return _label_value(key)


def _label_value(value: Any) -> str:
    if len(check_key(value, "label")) > LABEL_LIMIT:
        raise Invalid(f"a label has {len(value)} characters; the limit is {LABEL_LIMIT}: {value[:60]!r}…")
    return str(value)


def _choice(kind: Any, value: Any, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise Invalid(f"unknown {what} {value!r}{did_you_mean(str(value), [k.value for k in kind])}") from None


def _state(word: str | None) -> int | None:
    if word is None:
        return None
    words = {state.word: int(state) for state in State}
    if word not in words:
        raise Invalid(f"unknown state {word!r}{did_you_mean(word, words)}")
    return words[word]


def _filters(*conditions: tuple[str, Any]) -> dict[str, dict[str, Any]]:
    """Clauses of fixed text, each with the one value that it binds; those without a value are left out."""
    return {clause: {_BOUND.findall(clause)[0]: value} for clause, value in conditions if value is not None}
