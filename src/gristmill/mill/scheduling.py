"""Schedules, and the stalest subject first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from gristmill import schedule as rules
from gristmill import traces
from gristmill.binding import encode
from gristmill.errors import Invalid, NotConfirmed, NotFound, quoted
from gristmill.mill.asking import Asking
from gristmill.mill.lazy import lazy
from gristmill.mill.values import arguments, name_of, who
from gristmill.model import Bulk, Firing, Run, ScheduleEntry, Subject
from gristmill.pipeline import Pipeline
from gristmill.priority import Priority
from gristmill.schedule import Schedule

if TYPE_CHECKING:
    from gristmill import scheduler as loops
    from gristmill.ledger import asked as noted
    from gristmill.ledger import read, schedules, stale, start, stop, subjects, tracing
    from gristmill.ledger.schedules import What
    from gristmill.ledger.store import Tx
else:
    (loops,) = lazy("gristmill", "scheduler")
    noted, read, schedules, stale, start, stop, subjects, tracing = lazy(
        "gristmill.ledger", "asked", "read", "schedules", "stale", "start", "stop", "subjects", "tracing"
    )

log = logging.getLogger("gristmill.mill")
_PAGE = 1000  # subjects that are read at once
_TOGETHER = 100  # runs that are started in one transaction


class Scheduling(Asking):
    def schedules(self) -> list[ScheduleEntry]:
        """All schedules, by name."""
        return self._read(schedules.entries)

    def schedule(self, name: str) -> ScheduleEntry:
        return self._read(schedules.entry, name)

    def schedule_history(self, name: str | None = None, *, limit: int = 50) -> list[Firing]:
        """What became of the fire times of a schedule, or of all, newest first. Each keeps the last thousand."""
        return self._read(schedules.history, name, limit)

    def add_schedule(self, schedule: Schedule, *, replace: bool = False, by: str | None = None) -> ScheduleEntry:
        """Adds a schedule that the code does not declare."""
        self._prepared(schedule)
        self.ledger.do(schedules.add, schedule, replace=replace, by=by or who())
        return self.schedule(schedule.name)

    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Removes a schedule with its history; what it started stays. Says whether it is declared in code, and so will be
        there again when a worker starts."""
        return self.ledger.do(schedules.remove, name, by=by or who())

    def pause_schedule(self, name: str, *, by: str | None = None) -> None:
        """Nothing fires until it is resumed, also after restarts and when the code declares it again."""
        self.ledger.do(schedules.pause, name, by=by or who())

    def resume_schedule(self, name: str, *, by: str | None = None) -> None:
        """Goes on with the next time; those during the pause are not caught up."""
        self.ledger.do(schedules.resume, name, by=by or who())

    def run_schedule(self, name: str, *, by: str | None = None) -> Firing:
        """Starts now what a schedule starts, out of turn; its times stay as they are."""
        spec = self._read(schedules.spec_of, name)
        what = self._prepared(Schedule.read(name, spec))
        with traces.asking(f"fire {name}") as span:
            fired = self.ledger.do(tracing.run_now, span.traceparent, name, spec, what, by=by or who())
            span.tell(schedule=name, outcome=fired.outcome)
            return fired

    def declare_schedules(self) -> list[str]:
        """Writes down the schedules that the application declares; a worker does this when it starts. Says which it does
        not declare any more: these go on until they are removed."""
        known = {f"task {name}" for name in self.registry.tasks}
        known |= {f"pipeline {name}" for name in self.registry.pipelines}
        declared = list(self.registry.schedules.values())
        for schedule in declared:
            self._prepared(schedule)
        gone: list[str] = self.ledger.do(schedules.declare, declared, known)
        for name in gone:
            log.warning(
                "schedule %s is not declared any more, and goes on; to end it: gristmill schedule remove %s", name, name
            )
        return gone

    def scheduler(self) -> loops.Scheduler:
        """What fires schedules: `tick()` is a ticker of a worker, `run()` fires all that is due."""
        return loops.Scheduler(self.ledger, self._prepare)

    def start_stalest(
        self,
        pipeline: Pipeline | str,
        *,
        args: Mapping[str, Any] | None = None,
        priority: Priority | str = Priority.NORMAL,
        labels: Sequence[str] = (),
        not_within: float | timedelta = rules.DAILY,
        batch: int = 1,
        dry_run: bool = False,
        confirm: int | None = None,
        by: str | None = None,
    ) -> list[Run]:
        """Starts runs of the subjects whose last run ended longest ago, never-run ones first; none that is running, and
        none whose last run ended within so many seconds (a subject's own interval comes before that).

        `dry_run`: only says which it would be; their numbers will be those of others. `confirm`: only if it is so many.
        `by`: who asks, for the audit."""
        if not isinstance(pipeline, str | Pipeline):
            raise Invalid(f"{pipeline!r} is not a pipeline; give a Pipeline, or the name of one")
        stalest = rules.stalest(labels, not_within, batch)
        wanted = self._stalest(name_of(pipeline), arguments(args), Priority.of(priority), stalest)

        def begin(tx: Tx) -> list[Run]:
            chosen = stale.start_stalest(tx, wanted)
            if confirm is not None and confirm != len(chosen):
                raise NotConfirmed(len(chosen), confirm)
            if by is not None and chosen:
                stop.audit(tx, by, "run.stalest", f"pipeline {wanted.pipeline}", runs=[one.run for one in chosen])
            return [read.run(tx, one.run) for one in chosen]

        return self._act(dry_run, begin)

    def start_subjects(
        self,
        *,
        ids: Sequence[int] | None = None,
        pipeline: Pipeline | str | None = None,
        name: str | None = None,
        label: str | Iterable[str] = (),
        stale_for: float | timedelta | None = None,
        state: str | None = None,
        args: Mapping[str, Any] | None = None,
        priority: Priority | str = Priority.NORMAL,
        by: str | None = None,
        dry_run: bool = False,
        confirm: int | None = None,
    ) -> Bulk:
        """Starts a run of each of these subjects (see `subjects`) that has none under way: with these arguments, or without
        any with those of its last run. `confirm`: only if they are so many, and of no more.

        All are checked first. A hundred of them are one transaction: what was interrupted can be asked for again, since
        those that were started then have a run.
        """
        which: dict[str, Any] = {"pipeline": pipeline, "name": name, "label": label or None, "stale_for": stale_for}
        which = {key: value for key, value in {**which, "state": state}.items() if value is not None}
        if not which and ids is None:
            raise Invalid("say which: ids=…, or at least one of pipeline, name, label, stale_for, state")
        level, found = Priority.of(priority), self._subjects(ids, which)
        idle = [subject for subject in found if subject.active_run is None]
        wanted = [*self._wanted(idle, args)]
        if dry_run:
            return _started(len(idle), len(found))
        if confirm is not None and confirm != len(idle):
            raise NotConfirmed(len(idle), confirm)
        runs = 0
        for first in range(0, len(wanted), _TOGETHER):
            batch = wanted[first : first + _TOGETHER]
            runs += len(self.ledger.do(noted.start_idle, batch, int(level), by=by or who()))
        return _started(runs, len(found))

    def _subjects(self, ids: Sequence[int] | None, which: Mapping[str, Any]) -> list[Subject]:
        """All that are meant, by their number."""
        found: list[Subject] = []
        while page := self.subjects(**which, ids=ids, limit=_PAGE, after=found[-1] if found else None):
            found += page
        if ids is not None and (missing := set(ids) - {subject.id for subject in found}):
            raise NotFound(f"there is no subject {min(missing)}" + (" among these" if which else ""))
        return found

    def _wanted(self, found: Sequence[Subject], args: Mapping[str, Any] | None) -> Iterator[noted.Wanted]:
        before = self._read(subjects.last_arguments, found) if args is None else {}
        for name in {subject.pipeline for subject in found}:
            self._know(self.registry.pipeline(name))
        for subject in found:
            flow = self.registry.pipeline(subject.pipeline)
            given = arguments(orjson.loads(before.get(subject.id, "{}")) if args is None else args)
            try:
                text = encode(flow.check_args(given), "the run's arguments")
            except Invalid as error:
                last = " (those of its last run)" if subject.id in before else ""
                raise Invalid(f"{flow.name} {quoted(subject.name)}{last}: {error}") from None
            plan = partial(self._planned, flow, {"subject": subject.name, **orjson.loads(text)})
            yield noted.Wanted(flow.name, subject.id, text, plan)

    def _know(self, flow: Pipeline) -> None:
        """Names and limits of its stages have numbers before its runs are started: that transaction should not have to wait
        for another."""
        for stage in flow.ordered():
            self._how(stage, None, None, None)
            if stage.limit is not None:
                self._limit_id(stage.limit)

    def _planned(self, flow: Pipeline, args: Mapping[str, Any], tx: Tx) -> list[start.PlannedStage]:
        return self._plan(flow, do=partial(_within, tx), args=args)

    # ---- what a schedule starts, as the ledger writes it

    def _prepare(self, schedule: Schedule) -> What | None:
        """None: this application does not know what it is about."""
        if schedule.task is not None and schedule.task not in self.registry.tasks:
            return None
        if schedule.pipeline is not None and schedule.pipeline not in self.registry.pipelines:
            return None
        return self._prepared(schedule)

    def _prepared(self, schedule: Schedule) -> What:
        """What a schedule starts, or why it cannot: an unknown name, an argument that is wrong."""
        try:
            return self._made_ready(schedule)
        except Invalid as error:
            raise type(error)(f"schedule {schedule.name!r}: {error}") from None

    def _made_ready(self, schedule: Schedule) -> What:
        level = schedule.priority
        if schedule.task is not None:
            task = self._task(schedule.task)
            checked = task.parameters.check(schedule.args)
            job = start.NewJob(*self._how(task, None, None, None), int(level), encode(checked, "the job's arguments"))
            return job._replace(limit_id=self._limits(task, [checked])[0])
        name = str(schedule.pipeline)
        if schedule.stalest is not None:
            return self._stalest(name, schedule.args, level, schedule.stalest)
        flow = self.registry.pipeline(name)
        text = encode(flow.check_args(schedule.args), "the run's arguments")
        plan = self._plan(flow, args={"subject": schedule.subject, **orjson.loads(text)})
        return schedules.NewRun(flow.name, str(schedule.subject), text, int(level), plan)

    def _stalest(self, name: str, args: Mapping[str, Any], level: Priority, stalest: rules.Stalest) -> stale.Wanted:
        flow = self.registry.pipeline(name)
        text = encode(flow.check_args(args), "the run's arguments")
        given = orjson.loads(text)
        self._know(flow)

        def plan(tx: Tx, subject: str) -> list[start.PlannedStage]:
            """Keys of limits may come from the subject, which is chosen in the transaction that starts its run."""
            return self._planned(flow, {"subject": subject, **given}, tx)

        return stale.Wanted(flow.name, text, int(level), plan, stalest)


def _started(runs: int, of: int) -> Bulk:
    left = of - runs
    return Bulk(
        {"queued": runs} if runs else {}, left, "only subjects without a run under way are started" if left else None
    )


def _within(tx: Tx, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return verb(tx, *args, **options)
