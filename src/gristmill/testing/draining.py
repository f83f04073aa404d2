"""A worker without child processes: takes one job after another, and runs each in the process of the test.

The verbs are a worker's own (register, exchange, leave), so runs, retries, counters and fan-in are what they will be.
What needs a process is not there: time limits, memory limits, crashes, cancelling what runs, captured output.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import orjson

from gristmill.clock import SECOND, FrozenClock, micros
from gristmill.errors import Invalid, did_you_mean
from gristmill.execution.context import Common, Context, Unsupervised
from gristmill.execution.emitter import Emitter
from gristmill.execution.known import Knowledge, outcome_of, runs_of
from gristmill.execution.parts import stage_row
from gristmill.execution.room import ASYNC, SYNC
from gristmill.execution.run import WRITTEN
from gristmill.housekeeping import carry_on, go_on_within_limits, sweep_parts, sweep_run
from gristmill.identity import born, host
from gristmill.ledger import chores, limits, names, parts, stop, workers
from gristmill.ledger.claim import Claimed, Kind, Lane, Taken, Want
from gristmill.ledger.emit import Emission, Refusal
from gristmill.ledger.exchange import Batch, exchange, refused
from gristmill.ledger.finish import Verdict, begin, begin_free, report_progress
from gristmill.ledger.queues import all_queues, next_due, promote
from gristmill.ledger.store import Ledger, Tx
from gristmill.mill import Mill
from gristmill.pipeline import Task
from gristmill.priority import Priority
from gristmill.settings import VERSION
from gristmill.testing.performing import perform

_LEASE = 3650 * 86_400  # seconds: tests move the clock by days, and this worker has no time to renew anything


def drain(
    mill: Mill, until: Literal["idle", "drained"] = "drained", *, queues: Collection[str] = (), most: int = 10_000
) -> int:
    """Does the work that is there, one job at a time, urgent ones first; says how many attempts that took.

    "idle": what is ready now. "drained": also what is delayed or waits to be retried; the mill's frozen clock is moved to
    when it is due. `queues`: only these. `most`: attempts after which something is thought never to end.
    """
    if until not in ("idle", "drained"):
        raise Invalid(f"unknown until={until!r}{did_you_mean(str(until), ['idle', 'drained'])}")
    with _joined(mill.ledger) as worker:
        drainer = _Drainer(mill, worker, _queue_ids(mill, queues))
        while drainer.turn() or (until == "drained" and drainer.wait()):
            if drainer.attempts > most:
                raise AssertionError(f"still work to do after {most} attempts; the last was of {drainer.last!r}")
        return drainer.attempts


def _queue_ids(mill: Mill, only: Collection[str]) -> list[int]:
    ids = mill.ledger.do(names.add_queues, mill.registry.queues())
    for name in only:
        if name not in ids:
            raise Invalid(f"unknown queue {name!r}{did_you_mean(name, ids)}")
    return [number for name, number in sorted(ids.items()) if not only or name in only]


@contextmanager
def _joined(ledger: Ledger) -> Iterator[int]:
    """A worker's number, for a while. What it still holds at the end (the test was interrupted) goes back."""
    who = workers.Registration(host(), os.getpid(), born(os.getpid()) or "", (), 1, VERSION)
    number = ledger.do(workers.register, who, micros(_LEASE))
    try:
        yield number
    finally:
        ledger.do(workers.leave, number)


class _Drainer(Unsupervised):
    """The state of one `drain`; also the host of the contexts that it makes."""

    def __init__(self, mill: Mill, worker: int, queues: list[int]) -> None:
        self.attempts = 0
        self.last = ""
        self._mill = mill
        self._ledger = mill.ledger
        self._worker = worker
        self._queues = queues
        self._known = Knowledge()
        self._unbegun: set[int] = set()  # runs whose rows somebody else held when we wanted to say that they begin
        self._refused: dict[int, Refusal] = {}
        self._rests = 0.0  # seconds: a job gave itself back unspent

    # ---- one job

    def turn(self) -> bool:
        """Does one job; False: none is ready."""
        if self._rests:
            return False
        self._sweep()
        while self._ledger.do(promote):
            pass
        go_on_within_limits(self._ledger, everything=True)
        taken = self._claim()
        if taken is None:
            return False
        for job in taken.jobs:
            self._do(job, taken)
        return True

    def _sweep(self) -> None:
        with self._ledger.reading() as tx:
            stopping, ending, unfinished = stop.stopping_runs(tx), parts.ending(tx), chores.pending(tx)
        for run in stopping:
            sweep_run(self._ledger, run)
        for job in ending:
            sweep_parts(self._ledger, job)
        for run in unfinished:
            carry_on(self._ledger, run)

    def _claim(self) -> Taken | None:
        """The next job: of the highest priority, of the first queue that has one."""
        with self._ledger.reading() as tx:
            of_queues = {queue.id: queue.limit_id for queue in all_queues(tx)}
        for priority in Priority:
            for pool in self._pools():
                lanes = tuple(Lane(queue, pool, int(priority), limit_id=of_queues.get(queue)) for queue in self._queues)
                wants = [Want(pool, 1, lanes)]
                taken = self._ledger.do(exchange, self._worker, Batch(), wants, {pool: 1}, self._meet).taken
                if taken is not None and taken.jobs:
                    return taken
        return None

    def _pools(self) -> list[int]:
        """All that there are: whatever jobs need, they run here."""
        with self._ledger.reading() as tx:
            return [2 * number + kind for number in (0, *names.classes(tx)) for kind in (SYNC, ASYNC)]

    def _meet(self, tx: Tx, kinds: Collection[Kind]) -> None:
        self._known.meet(tx, kinds)
        if runs := runs_of(kinds):
            self._unbegun.update(begin_free(tx, sorted(runs)))

    def _do(self, job: Claimed, taken: Taken) -> None:
        if self._unbegun:
            self._ledger.do(begin, self._worker, sorted(self._unbegun))
            self._unbegun = set()
        common = self._common(job.kind)
        task = self._mill.registry.task(common.task)
        args = None if job.args is None else orjson.loads(job.args)
        ctx = Context((0, job.id, job.attempt, job.key, args), common, time.monotonic(), self)
        report, _ = perform(task, ctx, self._emitter(ctx))
        if report.verdict == "later":
            report = report._replace(ran=1)  # the clock stands still, but it has begun
        self.attempts, self.last = self.attempts + 1, task.name
        ended_claims = [] if taken.claim is None else [taken.claim]
        if report.verdict == WRITTEN:
            self._ledger.do(exchange, self._worker, Batch(ended_claims=ended_claims))
            return
        outcome = outcome_of(report, job)
        if outcome.verdict is Verdict.UNSPENT:
            self._rests = report.delay
        if job.id in self._refused:
            outcome = refused(outcome, self._refused.pop(job.id))
        batch = Batch(outcomes=[outcome], ended_claims=ended_claims, careful=True)
        if report.items and job.run_id is not None:
            number, items = report.items
            batch.emissions.append(Emission(job.id, job.attempt, job.run_id, number, items))
        self._ledger.do(exchange, self._worker, batch)

    def _common(self, kind: Kind) -> Common:
        """What a child would be told about jobs of this kind."""
        name, spec = self._known.tasks[kind.task_id]
        run, stage, part_of = kind.origin
        run_row, row = None, stage_row(self.task(name))
        if run is not None:
            info = self._known.runs[run]
            run_row = (*info[:-1], orjson.loads(info.args))
        if stage is not None:
            row = self._known.stages[stage]
        return Common(name, spec["timeout"], None, run, run_row, row, part_of)

    def _emitter(self, ctx: Context) -> Emitter | None:
        """Where this job's items go: into the ledger at once, so that a generator is never held up."""
        run, stage_row = ctx.run, ctx._common.stage_row
        if run is None or stage_row is None or not stage_row[2]:
            return None

        def send(kind: str, job: int, attempt: int, number: int, items: list[Any]) -> None:
            batch = Batch([Emission(job, attempt, run, number, items)], careful=True)
            why = self._ledger.do(exchange, self._worker, batch).refused_items.get(job)
            if why is not None:
                self._refused[job] = why
            emitter.acknowledged(why and why.reason)

        emitter = Emitter(ctx, stage_row[2], self._mill.registry, ctx._common.run_args, send)
        return emitter

    # ---- what is not ready yet

    def wait(self) -> bool:
        """Moves the clock to when something will be ready; False: nothing will."""
        seconds = self._rests or self._due()
        if seconds is None:
            return False
        if seconds > 0:
            clock = self._ledger.clock
            if not isinstance(clock, FrozenClock):
                raise Invalid(
                    f"a job is not ready for another {seconds:g} s, and this mill's clock is real: open it with"
                    " clock=FrozenClock(), or drain it until='idle'"
                )
            clock.advance(seconds)
        self._rests = 0.0
        return True

    def _due(self) -> float | None:
        with self._ledger.reading() as tx:
            closed = {queue.id for queue in all_queues(tx) if queue.paused}
            due = next_due(tx, [queue for queue in self._queues if queue not in closed])
            free = limits.due(tx)[1]
        times = [at for at in (due, free) if at is not None]
        return max(0.0, min(times) / SECOND) if times else None

    # ---- what contexts ask their host for

    @property
    def worker(self) -> int:
        return self._worker

    def ledger(self) -> Ledger:
        return self._ledger

    def task(self, name: str) -> Task[Any, Any]:
        return self._mill.registry.task(name)

    def report_progress(self, job: int, attempt: int, state: dict[str, Any]) -> None:
        self._ledger.do(report_progress, self._worker, [(job, attempt, orjson.dumps(state).decode())])
