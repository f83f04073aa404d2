"""Asking for work: runs of pipelines, and jobs on their own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from gristmill import traces
from gristmill.binding import check_key, encode
from gristmill.demand import Labels
from gristmill.errors import Invalid, did_you_mean, quoted
from gristmill.mill.base import Do
from gristmill.mill.lazy import lazy
from gristmill.mill.part_runs import Only, part_run
from gristmill.mill.reading import Reading
from gristmill.mill.values import arguments, choice, delay_of, moment, name_of
from gristmill.model import Job, Run
from gristmill.pipeline import Part, Pipeline, Stage, Task, check_timeout
from gristmill.priority import Priority
from gristmill.retry import Retries
from gristmill.states import UniqueScope

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gristmill.ledger import answers, read, tracing
    from gristmill.ledger import once as onces
    from gristmill.ledger import start as starting
else:
    answers, onces, read, starting, tracing = lazy("gristmill.ledger", "answers", "once", "read", "start", "tracing")

log = logging.getLogger("gristmill.mill")
_SCOPES = {"unfinished": UniqueScope.UNFINISHED, "queued": UniqueScope.QUEUED}


class Asking(Reading):
    def start(
        self,
        pipeline: Pipeline | str,
        subject: str,
        *,
        args: Mapping[str, Any] | None = None,
        priority: Priority | str = Priority.NORMAL,
        if_active: starting.IfActive | str = "join",
        from_stage: Stage[Any, Any] | str | None = None,
        only: Only | None = None,
        needs: Labels = (),
        once: str | None = None,
        connection: Connection | None = None,
    ) -> Run:
        """Starts a run of a pipeline for a subject. With a run active: joins it, waits behind it, or refuses.

        `from_stage`: only that one and what depends on it. `only`: only these stages; of the first, `{stage: glob}` takes
        only the items with such keys. The other stages stand for the subject's last good run, whose arguments are those
        of this run too, where none are given. `needs`: labels that its workers must have, beside those of the stages.

        `once`: whoever asks with the same key again, within a week, gets the same run, ended or not.

        With a `connection` (SQLAlchemy's), it is part of that connection's transaction.
        """
        if not isinstance(pipeline, str | Pipeline):
            raise Invalid(f"{quoted(pipeline)} is not a pipeline; give a Pipeline, or the name of one")
        flow = self.registry.pipeline(name_of(pipeline))
        check_key(subject, "subject")
        part = part_run(flow, from_stage, only)
        text = self._arguments_of_run(flow, subject, arguments(args), part is not None)
        level = Priority.of(priority)
        do = self._doing(connection)
        with traces.asking(f"start {flow.name}") as asked:
            answer, run = _once(partial(do, answers.seen, answers.run), "run", flow.name, once)(
                *_traced(asked, tracing.start, starting.start),
                flow.name,
                subject,
                text,
                int(level),
                self._plan(flow, needs, do, {"subject": subject, **orjson.loads(text)}),
                choice(starting.IfActive, if_active, "if_active"),
                None if part is None else starting.PartRun(*part),
            )
            asked.tell(pipeline=flow.name, subject=subject, run=run.id)
        started = starting.Started(*answer)
        if started.raised and level < Priority.LOW:
            while do(starting.raise_jobs, started.run_id):
                pass
        if once is not None and run.subject != subject:
            raise Invalid(f"once={once!r} was used for {flow.name} {run.subject!r} (run {run.id}); give each its own key")
        if not started.created and args and run.args != orjson.loads(text):
            _ignored(run, "goes on with its own arguments; those given now are ignored")
        if not started.created and part and run.state != "waiting":
            _ignored(run, "is there already: which part was asked for now is ignored")
        return Run(**{**vars(run), "created": started.created})

    def _arguments_of_run(self, flow: Pipeline, subject: str, given: Mapping[str, Any], part: bool) -> str:
        """Checked. A part run has those that are not given from the run that it would stand on."""
        last = self._read(read.last_whole_run, flow.name, subject) if part else None
        try:
            checked = flow.check_args(given if last is None else {**self.run(last).args, **given})
        except Invalid as error:
            if not part or last is not None:
                raise
            hint = f"others would be those of the last good run of {subject!r}, and it has none; start a whole run"
            raise Invalid(f"{error}; {hint}") from None
        return encode(checked, "the run's arguments")

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
        once: str | None = None,
        timeout: float | None = None,
        retries: Retries | int | None = None,
        needs: Labels = (),
        limit_key: str | None = None,
        connection: Connection | None = None,
    ) -> Job:
        """Adds a job on its own. With `unique`, a twin that is unfinished (or `queued`) is returned instead; with `once`,
        the job that the same key was given for within a week, ended or not.

        `needs`: labels that its worker must have, beside those that the task needs.
        `limit_key`: its key of the task's limit, instead of that which its arguments give.
        With a `connection` (SQLAlchemy's), it is part of that connection's transaction.
        """
        registered = self._task(task)
        if not isinstance(unique_scope, str) or unique_scope not in _SCOPES:
            raise Invalid(f"unknown unique_scope {quoted(unique_scope)}{did_you_mean(unique_scope, _SCOPES)}")
        if unique is not None:
            unique = f"{registered.name}:{check_key(unique, 'unique key')}"
        do = self._doing(connection)
        checked = registered.parameters.check(arguments(args))
        new = starting.NewJob(
            *self._how(registered, queue, timeout, retries, needs, do),
            int(Priority.of(priority)),
            encode(checked, "the job's arguments"),
            None if at is None else moment(at),
            None if delay is None else delay_of(delay),
            unique,
            int(_SCOPES[unique_scope]) if unique else None,
            *self._limits(registered, [checked], limit_key, do),
        )
        with traces.asking(f"enqueue {registered.name}") as asked:
            answer, job = _once(partial(do, answers.seen, answers.job), "job", registered.name, once)(
                *_traced(asked, tracing.enqueue, starting.enqueue), new
            )
            asked.tell(task=registered.name, job=job.id)
        names = {} if job.task else {"task": registered.name, "queue": queue or registered.queue}
        return Job(**{**vars(job), **names, "created": answer[1]})

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
        checked = [registered.parameters.check(arguments(a)) for a in args]
        if not checked:
            return []
        payloads = [encode(values, "the job's arguments") for values in checked]
        limits = self._limits(registered, checked) if registered.limit is not None else ()
        with traces.asking(f"enqueue {registered.name}") as asked:
            asked.tell(task=registered.name, jobs=len(payloads))
            do: Do = self.ledger.do
            verb = _traced(asked, tracing.enqueue_many, starting.enqueue_many)
            ids: list[int] = do(*verb, starting.NewJob(*how, level, ""), payloads, limits)
        return ids

    def _limits(
        self, task: Task[Any, Any], args: Sequence[Mapping[str, Any]], key: str | None = None, do: Do | None = None
    ) -> list[int | None]:
        """Of jobs with these arguments, the number of the key whose limits each keeps to."""
        if task.limit is None:
            if key is not None:
                raise Invalid(f"task {task.name!r} has no limit that {key!r} could be a key of; declare one: limit=Limit(…)")
            return [None] * len(args)
        keys = [check_key(key, "limit_key")] if key is not None else [task.limit.key(values) for values in args]
        numbers = self._limit_keys(task.limit, keys, do)
        return [numbers[key] for key in keys]

    def _task(self, task: Task[Any, Any] | str) -> Task[Any, Any]:
        if not isinstance(task, str | Task):
            raise Invalid(f"{quoted(task)} is not a task; put @task above the function, or give the name of a task")
        registered = self.registry.task(task if isinstance(task, str) else task.name)
        if isinstance(registered, Stage):
            raise Invalid(
                f"{registered.name!r} is a stage: it runs as part of a run; start pipeline {registered.pipeline.name!r}"
            )
        if isinstance(registered, Part):
            raise Invalid(f"{registered.name!r} is a part: {registered.of!r} hands it over, with ctx.parts(…)")
        return registered

    def _how(
        self,
        task: Task[Any, Any],
        queue: str | None,
        timeout: float | None,
        retries: Retries | int | None,
        needs: Labels = (),
        do: Do | None = None,
    ) -> tuple[int, int, int]:
        """(task, queue, pool) of a job, by number."""
        policy = Retries(retries) if isinstance(retries, int) else retries
        if not isinstance(policy, Retries | None):
            raise Invalid(f"task {task.name!r}: retries must be a number or Retries(…), not {quoted(retries)}")
        spec = task.spec(timeout=check_timeout(timeout, f"task {task.name!r}"), retries=policy)
        return self._task_id(task, spec, do), self._queue_id(queue or task.queue, do), self._pool(task, needs, do)

    def _plan(
        self, pipeline: Pipeline, needs: Labels = (), do: Do | None = None, args: Mapping[str, Any] = MappingProxyType({})
    ) -> list[starting.PlannedStage]:
        """`args`: what the keys of plain stages come from; items have their own."""
        return [
            starting.PlannedStage(
                stage.stage_name,
                self._task_id(stage, stage.spec(), do),
                self._queue_id(stage.queue, do),
                self._pool(stage, needs, do),
                stage.each,
                stage.gate,
                stage.need.count,
                stage.need.share,
                self._limit_of(stage, args, do),
                tuple(pipeline.upstreams(stage)),
            )
            for stage in pipeline.ordered()
        ]

    def _limit_of(self, stage: Stage[Any, Any], args: Mapping[str, Any], do: Do | None) -> int | None:
        if stage.limit is None:
            return None
        return self._limit_id(stage.limit, do) if stage.each else self._limits(stage, [args], do=do)[0]


def _once(do: Do, what: str, name: str, key: str | None) -> Do:
    """How to run a verb, if nobody did it with this key before."""
    return do if key is None else partial(do, onces.once, f"{what} {name}:{check_key(key, 'once key')}")


def _traced(asked: traces.Asked, traced: Do, verb: Do) -> tuple[Any, ...]:
    """How to run a verb that asks for work: in a trace, or (nearly always) as it is."""
    return (verb,) if asked.traceparent is None else (traced, asked.traceparent, verb)


def _ignored(run: Run, what: str) -> None:
    log.warning("run %d of %s %r %s", run.id, run.pipeline, run.subject, what)
