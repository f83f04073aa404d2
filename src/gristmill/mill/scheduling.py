"""Schedules, and the stalest subject first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from gristmill import schedule as rules
from gristmill import traces
from gristmill.binding import encode
from gristmill.errors import Invalid
from gristmill.mill.asking import Asking
from gristmill.mill.lazy import lazy
from gristmill.mill.values import arguments, name_of, who
from gristmill.model import Firing, Run, ScheduleEntry
from gristmill.pipeline import Pipeline
from gristmill.priority import Priority
from gristmill.schedule import Schedule

if TYPE_CHECKING:
    from gristmill import scheduler as loops
    from gristmill.ledger import schedules, stale, start, tracing
    from gristmill.ledger.schedules import What
    from gristmill.ledger.store import Tx
else:
    (loops,) = lazy("gristmill", "scheduler")
    schedules, stale, start, tracing = lazy("gristmill.ledger", "schedules", "stale", "start", "tracing")

log = logging.getLogger("gristmill.mill")


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
    ) -> list[Run]:
        """Starts runs of the subjects whose last run ended longest ago, never-run ones first; none that is running, and
        none whose last run ended within so many seconds (a subject's own interval comes before that)."""
        if not isinstance(pipeline, str | Pipeline):
            raise Invalid(f"{pipeline!r} is not a pipeline; give a Pipeline, or the name of one")
        stalest = rules.stalest(labels, not_within, batch)
        wanted = self._stalest(name_of(pipeline), arguments(args), Priority.of(priority), stalest)
        return [self.run(chosen.run) for chosen in self.ledger.do(stale.start_stalest, wanted)]

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
        for stage in flow.ordered():  # known before: the transaction should not have to wait for another
            self._how(stage, None, None, None)
            if stage.limit is not None:
                self._limit_id(stage.limit)

        def plan(tx: Tx, subject: str) -> list[start.PlannedStage]:
            """Keys of limits may come from the subject, which is chosen in the transaction that starts its run."""
            return self._plan(flow, do=partial(_within, tx), args={"subject": subject, **given})

        return stale.Wanted(flow.name, text, int(level), plan, stalest)


def _within(tx: Tx, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return verb(tx, *args, **options)
