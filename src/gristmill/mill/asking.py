"""Asking for work: runs of pipelines, and jobs on their own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

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
from gristmill.pipeline import Pipeline, Stage, Task, check_timeout
from gristmill.priority import Priority
from gristmill.retry import Retries
from gristmill.states import UniqueScope

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gristmill.ledger import answers, posting, read, tracing
    from gristmill.ledger import asked as noted
    from gristmill.ledger import once as onces
    from gristmill.ledger import start as starting
else:
    answers, noted, onces, posting = lazy("gristmill.ledger", "answers", "asked", "once", "posting")
    read, starting, tracing = lazy("gristmill.ledger", "read", "start", "tracing")

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
        by: str | None = None,
        connection: Connection | None = None,
    ) -> Run:
        """Starts a run of a pipeline for a subject. With a run active: joins it, waits behind it, or refuses.

        `from_stage`: only that one and what depends on it. `only`: only these stages; of the first, `{stage: glob}` takes
        only the items with such keys. The other stages stand for the subject's last good run, whose arguments are those
        of this run too, where none are given. `needs`: labels that its workers must have, beside those of the stages.

        `once`: whoever asks with the same key again, within a week, gets the same run, ended or not.
        `by`: who asks, for the audit; without it there is no entry.

        With a `connection` (SQLAlchemy's), it is part of that connection's transaction.
        """
        if not isinstance(pipeline, str | Pipeline):
            raise Invalid(f"{quoted(pipeline)} is not a pipeline; give a Pipeline, or the name of one")
        if isinstance(pipeline, Pipeline) and pipeline.name not in self.registry.pipelines:
            raise Invalid(f"this mill was opened without pipeline {pipeline.name!r}; give it to Mill.open, after the URL")
        flow = self.registry.pipeline(name_of(pipeline))
        check_key(subject, "subject")
        part = part_run(flow, from_stage, only)
        text = self._arguments_of_run(flow, subject, arguments(args), part is not None)
        level = Priority.of(priority)
        do = self._doing(connection)
        with traces.asking(f"start {flow.name}") as asked:
            answer, run = _once(partial(do, answers.seen, answers.run), "run", flow.name, once)(
                *_traced(asked, tracing.start, starting.start if by is None else partial(noted.start, by=by)),
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
        by: str | None = None,
        connection: Connection | None = None,
    ) -> Job:
        """Adds a job on its own. With `unique`, a twin that is unfinished (or `queued`) is returned instead; with `once`,
        the job that the same key was given for within a week, ended or not.

        `needs`: labels that its worker must have, beside those that the task needs.
        `limit_key`: its key of the task's limit, instead of that which its arguments give.
        `by`: who asks, for the audit; without it there is no entry, since programs ask millions of times.
        With a `connection` (SQLAlchemy's), it is part of that connection's transaction.
        """
        registered = self._task(task)
        if not isinstance(unique_scope, str) or unique_scope not in _SCOPES:
            raise Invalid(f"unknown unique_scope {quoted(unique_scope)}{did_you_mean(unique_scope, _SCOPES)}")
        if unique is not None:
            unique = f"{registered.name}:{check_key(unique, 'unique key')}"
        _refuse_too_late(registered, at, delay)
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
        verb = starting.enqueue if by is None else partial(noted.enqueue, by=by, task=registered.name)
        with traces.asking(f"enqueue {registered.name}") as asked:
            plain = connection is None and once is None and by is None and asked.traceparent is None
            if plain and posting.suits(new) and (posted := self._post(new, registered.name, queue or registered.queue)):
                asked.tell(task=registered.name, job=posted.id)
                return posted
            (_, created, *_), job = _once(partial(do, answers.seen, answers.job), "job", registered.name, once)(
                *_traced(asked, tracing.enqueue, verb), new
            )
            asked.tell(task=registered.name, job=job.id)
        names = {} if job.task else {"task": registered.name, "queue": queue or registered.queue}
        return Job(**{**vars(job), **names, "created": created})

    def _post(self, new: starting.NewJob, task: str, queue: str) -> Job | None:
        """Adds a job by one statement; None: that cannot be."""
        if self.ledger.is_sqlite:
            if not posting.is_ready(new):
                return None
            return posting.as_job(self.ledger.foretold(new.queue_id, posting.add_ready, new), new, task, queue)
        announcer = self.ledger.announcer
        if announcer is None or (notice := announcer.notice(posting.rings_for(new))) is None:
            return None
        made, said = self.ledger.at_once(posting.post, new, *notice)
        if said is not None:
            return posting.as_job(said, new, task, queue)
        number = self.ledger.insist(posting.posted, made.connection)
        return self.ledger.insist(read.job, number)  # it is there: who is told otherwise would ask for it again

    def enqueue_many(
        self,
        task: Task[Any, Any] | str,
        args: Iterable[Mapping[str, Any]],
        *,
        queue: str | None = None,
        priority: Priority | str = Priority.NORMAL,
        by: str | None = None,
    ) -> list[int]:
        """Adds many jobs of one task, all or none; says their ids. Far faster than one by one. `by`: who asks, for the
        audit."""
        registered = self._task(task)
        how = self._how(registered, queue, None, None)
        level = int(Priority.of(priority))
        payloads, limits = self._payloads(registered, args)
        if not payloads:
            return []
        with traces.asking(f"enqueue {registered.name}") as asked:
            asked.tell(task=registered.name, jobs=len(payloads))
            do: Do = self.ledger.do
            add = starting.enqueue_many if by is None else partial(noted.enqueue_many, by=by, task=registered.name)
            verb = _traced(asked, tracing.enqueue_many, add)
            ids: list[int] = do(*verb, starting.NewJob(*how, level, ""), payloads, limits)
        return ids

    def _payloads(
        self, task: Task[Any, Any], args: Iterable[Mapping[str, Any]]
    ) -> tuple[Sequence[str], Sequence[int | None]]:
        """The arguments of many jobs as text; and if the task has a limit, of each the number of its key."""
        check = task.parameters.check

        def text(given: Any) -> str:
            return encode(check(arguments(given)), "the job's arguments")

        is_plain = task.limit is None and not self.ledger.is_sqlite
        if is_plain and isinstance(args, list | tuple) and len(args) >= starting.COPIED:
            return _Later(text, args), ()
        # At once: an iterator may hand out one dictionary again and again; and SQLite lets nobody else write meanwhile.
        if task.limit is None:
            return [text(given) for given in args], ()  # not by `map`, which ends where a validator raises StopIteration
        made = [(values, encode(values, "the job's arguments")) for values in (check(arguments(given)) for given in args)]
        return [payload for _, payload in made], self._limits(task, [values for values, _ in made])

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
        if isinstance(task, Task) and task.name not in self.registry.tasks:
            raise Invalid(f"this mill was opened without task {task.name!r}; give it to Mill.open, after the URL")
        return self.registry.task_alone(task if isinstance(task, str) else task.name)

    def _how(
        self,
        task: Task[Any, Any],
        queue: str | None,
        timeout: float | None,
        retries: Retries | int | None,
        needs: Labels = (),
        do: Do | None = None,
    ) -> tuple[int, int, int]:
        """(task, queue, pool) of a job, by number. Most ask for nothing unusual: that is looked up once a minute."""
        usual = timeout is None and retries is None and needs == () and isinstance(queue, str | None)
        if usual and (known := self._usual.get((task.name, queue))) is not None and time.monotonic() < known[0]:
            return known[1]
        policy = Retries(retries) if isinstance(retries, int) else retries
        if not isinstance(policy, Retries | None):
            raise Invalid(f"task {task.name!r}: retries must be a number or Retries(…), not {quoted(retries)}")
        spec = task.spec(timeout=check_timeout(timeout, f"task {task.name!r}"), retries=policy)
        how = self._task_id(task, spec, do), self._queue_id(queue or task.queue, do), self._pool(task, needs, do)
        if usual and self._naming(do) == self.ledger.do:  # what the caller may still undo is not remembered
            self._usual[task.name, queue] = (self._noted[queue or task.queue], how)
        return how

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


class _Later(Sequence[str]):
    """Texts that are made when they are asked for: while the database is at work on those before them."""

    def __init__(self, make: Callable[[Any], str], of: Sequence[Any]) -> None:
        self._make, self._of = make, tuple(of)

    def __len__(self) -> int:
        return len(self._of)

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[str]: ...
    def __getitem__(self, which: int | slice) -> str | Sequence[str]:
        some = self._of[which]
        return [self._make(one) for one in some] if isinstance(which, slice) else self._make(some)


def _once(do: Do, what: str, name: str, key: str | None) -> Do:
    """How to run a verb, if nobody did it with this key before."""
    return do if key is None else partial(do, onces.once, f"{what} {name}:{check_key(key, 'once key')}")


def _traced(asked: traces.Asked, traced: Do, verb: Do) -> tuple[Any, ...]:
    """How to run a verb that asks for work: in a trace, or (nearly always) as it is."""
    return (verb,) if asked.traceparent is None else (traced, asked.traceparent, verb)


def _refuse_too_late(task: Task[Any, Any], at: datetime | None, delay: float | timedelta | None) -> None:
    """A job that may not wait for so long would only be skipped."""
    late = 0.0 if delay is None else delay_of(delay) / 1e6
    late = late if at is None else (moment(at) - time.time_ns() // 1000) / 1e6
    if task.within is not None and late > task.within:
        raise Invalid(
            f"task {task.name!r} is skipped if it is not started within {task.within:g} s of being asked for, and this job"
            f" is to wait for {late:.0f} s"
        )


def _ignored(run: Run, what: str) -> None:
    log.warning("run %d of %s %r %s", run.id, run.pipeline, run.subject, what)
