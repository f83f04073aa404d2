"""What every worker does once a second for all: due jobs get ready, lost workers' jobs come back, stopped runs end.

Any number of workers may do it at once: each step is a guarded verb, and whoever is second finds nothing to do.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from gristmill import reports, traces
from gristmill.clock import SECOND
from gristmill.demand import Demand
from gristmill.errors import DatabaseError, NotFound, Refused
from gristmill.identity import gone, host, near
from gristmill.ledger import (
    again,
    bulk,
    chores,
    commits,
    events,
    failures,
    limiting,
    limits,
    minutes,
    names,
    parts,
    queues,
    remove,
    stop,
    tracing,
    workers,
)
from gristmill.ledger.duties import Duties, duties
from gristmill.ledger.queues import QueueRow
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Ledger, Tx
from gristmill.states import TERMINAL, StageState, State

log = logging.getLogger("gristmill.housekeeping")

_SWEEP_AGAIN = 15.0  # seconds until a stopped run is swept once more: for jobs that were just being claimed
_STRAYS_EVERY = 30.0
_TIDY_EVERY = 60.0
_TICK_AGAIN = 2.0  # seconds after the database refused something
_ABANDONED = 5 * SECOND  # what somebody began on many jobs goes on here if nothing has happened to it for so long
_LOOKED_AFTER_BY = 2  # workers on the same host that see at once when one is gone
_AT_MOST = 0.5  # seconds of a worker's turn for the work of others
_SOON = 0.05  # seconds between two looks, however often the bell rings: every retry rings it
_LOOK_AT_KEYS = 0.1  # seconds for the keys of limits, which may be many; the next look goes on where this one ended
_READY = Sql(
    "SELECT count(*) FROM (SELECT 1 FROM gm_job WHERE ready IS NOT NULL AND queue_id {in ids} AND pool {in pools}"
    " LIMIT :most) AS line"
)
_LEFT = Sql(
    "SELECT 1 FROM gm_job WHERE ready IS NOT NULL AND queue_id = :queue AND pool {in pools}"
    " AND NOT task_id {in strange} LIMIT 1"
)
_DELAYED_LEFT = Sql(
    "SELECT 1 FROM gm_job WHERE run_at IS NOT NULL AND queue_id = :queue AND pool {in pools}"
    " AND NOT task_id {in strange} LIMIT 1"
)
_COUNT_LEFT = Sql(
    "SELECT queue_id, task_id, pool, count(*) AS n FROM (SELECT queue_id, task_id, pool FROM gm_job WHERE ready IS NOT NULL"
    " AND queue_id {in ids} UNION ALL SELECT queue_id, task_id, pool FROM gm_job WHERE run_at IS NOT NULL"
    " AND queue_id {in same}) AS waiting GROUP BY queue_id, task_id, pool"
)
_CLASSES = Sql("SELECT 1 FROM gm_class LIMIT 1")


_RUN_STATE = Sql("SELECT state, stop FROM gm_run WHERE id = :run")
_LEFT_OF_RUN = Sql(
    "SELECT DISTINCT queue_id, task_id, pool, state FROM gm_job WHERE stage_id IN (SELECT id FROM gm_stage"
    f" WHERE run_id = :run AND state <> {StageState.CLOSED:d}) AND state IN ({State.QUEUED:d}, {State.IN_PROGRESS:d})"
)


Served = Mapping[int, Sequence[int]]  # pools, by queue
Lacks = Callable[[int, int], list[str]]  # (queue, pool): what a worker would need for such jobs and has not


class Seen(NamedTuple):
    """What a look at the ledger showed."""

    queues: list[QueueRow]
    to_cancel: list[int]  # of the jobs that this worker holds
    next_due: int | None  # microseconds until the next delayed job is
    classes: dict[int, Demand]  # that are new


class Housekeeping:
    """One worker's share of it."""

    def __init__(self, ledger: Ledger, only_run: int | None = None) -> None:
        self.ledger = ledger
        self._only_run = only_run
        self.stopping: set[int] = set()
        self.strays_possible = True
        self.limits_at = math.inf  # when a limit lets something go on by itself
        self.soonest = 0.0  # when it is worth while to look again, if the bell says so
        self._limited: set[int] = set()  # queues that have a limit, as far as it was seen
        self._last_key = 0  # of those for whose limit jobs wait, and which were looked at
        self._swept: dict[int, float] = {}
        self._sweeps: dict[int, Iterator[None]] = {}  # of runs with so many jobs that their sweep goes on from turn to turn
        self._taken_over: set[int] = set()
        self._strays_at = 0.0
        self._tidy_at = 0.0

    def tick(self, now: float, worker: int, held: Callable[[], set[int]], running: Collection[int], known: int = 0) -> Seen:
        """`held`: all jobs in this worker's hands; `running`: those that have been there for a while; `known`: the last
        class that it knows."""
        self.soonest = now + _SOON
        found = self.ledger.glance(duties, known, _ABANDONED)
        all_queues = self.ledger.glance(queues.all_queues)
        to_cancel = self.ledger.glance(workers.asked_to_stop, worker, running) if running else []
        due, classes = found.due, self.ledger.glance(names.classes, known) if found.classes else {}
        until = time.monotonic() + _AT_MOST
        while due is not None and due <= 0 and time.monotonic() < until and self.ledger.do(queues.promote):
            with self.ledger.reading() as tx:
                due = queues.next_due(tx)
        self._see_limits(all_queues)
        if found.limits:
            until = time.monotonic() + _LOOK_AT_KEYS
            self._last_key = go_on_where_forgotten(self.ledger, self._last_key, until)
            self.limits_in(now, go_on_within_limits(self.ledger))
        if self._only_run is not None:
            prefer_run(self.ledger, self._only_run)
        for number in self.ledger.glance(workers.expired) if found.expired else ():
            self._rescue(number, gone=False)
        self._look_after_next(worker)
        until = time.monotonic() + _AT_MOST
        self._sweep(now, found, until)
        for run in self.ledger.glance(chores.pending) if found.unfinished else ():
            carry_on(self.ledger, run, until)
        orders = self.ledger.glance(bulk.left_alone, _ABANDONED) if found.orders else ()
        self._go_on({*orders, *self._taken_over}, found.removals)
        self._number(found.events, until)
        self._tidy(now, worker, until)
        if self.strays_possible or now >= self._strays_at:
            self._release_strays(worker, held(), now)
        return Seen(all_queues, to_cancel, due, classes)

    def _number(self, new_events: bool, until: float) -> None:
        """Events get their places, for readers that may not write."""
        while new_events and self.ledger.do(events.number) and time.monotonic() < until:
            pass

    def _tidy(self, now: float, worker: int, until: float) -> None:
        """Old events, minutes and traces go. That is one worker's for all: there is nothing to do for a second one."""
        if now < self._tidy_at:
            return
        self._tidy_at = now + _TIDY_EVERY
        if not self.ledger.glance(workers.is_first, worker):
            return
        self.ledger.do(tracing.forget)
        self.ledger.do(commits.forget)
        self.ledger.do(failures.tidy)
        while self.ledger.do(events.forget) and time.monotonic() < until:
            pass
        for level in range(len(minutes.LEVELS)):
            while self.ledger.do(minutes.tidy, level) and time.monotonic() < until:
                pass

    def _see_limits(self, all_queues: Sequence[QueueRow]) -> None:
        """A queue has a limit that it had not: what this worker took of it meanwhile, perhaps nobody has counted."""
        limited = {queue.id for queue in all_queues if queue.limit_id is not None}
        if limited - self._limited:
            self.ledger.do(limiting.count_running)
        self._limited = limited

    def _sweep(self, now: float, found: Duties, until: float) -> None:
        """What is left of runs that are being stopped, and of jobs that end with their parts."""
        self.stopping = set(self.ledger.glance(stop.stopping_runs)) if found.stopping else set()
        for run in sorted(self.stopping):
            if run in self._sweeps or now >= self._swept.get(run, 0.0):
                sweep = self._sweeps.setdefault(run, sweeping(self.ledger, run))
                if _exhausted(sweep, until):
                    del self._sweeps[run]
                    self._swept[run] = now + _SWEEP_AGAIN
        self._swept = {run: at for run, at in self._swept.items() if run in self.stopping}
        self._sweeps = {run: sweep for run, sweep in self._sweeps.items() if run in self.stopping}
        for job in self.ledger.glance(parts.ending) if found.ending else ():
            sweep_parts(self.ledger, job, until)

    def _look_after_next(self, worker: int) -> None:
        """Rescues from the workers on this host that come next in a ring, until two of them are there: so all are looked
        after by two, not by all."""
        ring = sorted(w for w in self.ledger.glance(workers.on_host, host()) if w[0] != worker and near(w[2]))
        there = 0
        for number, pid, birth in [w for w in ring if w[0] > worker] + [w for w in ring if w[0] < worker]:
            if gone(pid, birth):
                self._rescue(number, gone=True)
            elif (there := there + 1) == _LOOKED_AFTER_BY:
                return

    def limits_in(self, now: float, microseconds: int | None) -> None:
        """In so long a limit lets something go on; None: none will."""
        if microseconds is not None:
            self.limits_at = min(self.limits_at, now + max(0.001, microseconds / SECOND))

    def limits_are_due(self, now: float) -> bool:
        """Lets go on what is due, if it is time for that; says whether it was."""
        if now < self.limits_at:
            return False
        self.limits_at = math.inf
        self.limits_in(now, go_on_within_limits(self.ledger))
        return True

    def _go_on(self, orders: Collection[int], removals: bool) -> None:
        """What a command began and did not end: it was killed, or waits for a run to end."""
        until = time.monotonic() + _AT_MOST
        self._taken_over = {number for number in orders if not self._settled(number, until)}
        if removals:
            remove_pending(self.ledger, until)

    def _settled(self, order: int, until: float) -> bool:
        try:
            return carry_out(self.ledger, order, until).settled
        except NotFound:  # another ledger was put in the place of this one
            return True

    def _rescue(self, worker: int, *, gone: bool) -> None:
        tracer = traces.tracer()
        told = tracer is not None or reports.on()
        held = self.ledger.glance(tracing.held_by, worker) if told else {}
        jobs = self.ledger.do(workers.rescue, worker, gone)
        if jobs and told:
            self._tell_lost(held, tracer)
        if jobs is not None:
            log.warning("worker %d is %s: %d jobs taken back", worker, "gone" if gone else "lost", jobs)

    def _tell_lost(self, held: Mapping[int, traces.Attempt], tracer: traces.Tracer | None) -> None:
        """Of attempts whose end nobody else could write: each as a span, and to Sentry if its job failed by it."""
        for lost in self.ledger.glance(tracing.lost, held):
            attempt = held[lost.job]
            if attempt.attempt != lost.attempt:
                continue
            if tracer is not None:
                tracer.tell(attempt, "lost", attempt.since, lost.ended_at * 1000)
            if lost.fingerprint is not None and reports.on():
                about = {name: attempt.about[name] for name in ("task", "stage", "run")}
                reports.failed(lost.fingerprint, lost.kind, lost.error, None, **about, job=lost.job, attempt=lost.attempt)

    def _release_strays(self, worker: int, held: set[int], now: float) -> None:
        strays = self.ledger.do(workers.release_strays_of, worker, held)
        if strays:
            log.warning("%d jobs were in this worker's name but not in its hands: released", strays)
        self.strays_possible = False
        self._strays_at = now + _STRAYS_EVERY

    def waiting(self, queues: Sequence[int], pools: Sequence[int], most: int = 1) -> int:
        """How many ready jobs of these pools there are, up to `most`."""
        with self.ledger.reading_in_turn() as tx:
            return int(tx.value(_READY, ids=list(queues), pools=list(pools), most=most))

    def nothing_left(self, tx: Tx, served: Served, drained: bool, strange: Collection[int]) -> bool:
        """Nothing is ready in these pools of queues, and, if asked, nothing is delayed and no run or job is being stopped.

        Jobs of `strange` tasks do not count: this worker could wait for ever, and still not run them.
        """
        which = [{"queue": queue, "pools": pools, "strange": sorted(strange)} for queue, pools in served.items()]
        if any(tx.one(_LEFT, **one) is not None for one in which):
            return False
        if not drained:
            return True
        unfinished = stop.stopping_runs(tx) or parts.ending(tx) or chores.pending(tx)
        return not unfinished and all(tx.one(_DELAYED_LEFT, **one) is None for one in which)

    def run_is_over(self, tx: Tx, run: int, served: Served, strange: Mapping[int, str]) -> bool:
        """It has ended; or all that is left of it is what this worker may not or cannot do, which is said."""
        row = tx.one(_RUN_STATE, run=run)
        if row is None or row.state in TERMINAL:
            return True
        if row.stop is not None or run in chores.pending(tx):
            return False
        left = tx.all(_LEFT_OF_RUN, run=run)
        here = [job for job in left if job.pool in served.get(job.queue_id, ()) and job.task_id not in strange]
        if here or any(job.state == State.IN_PROGRESS for job in left):
            return False
        what = "its queue is paused, or not served, or it needs what this worker has not"
        log.warning("run %d is not over, but what is left of it is not done here: %s", run, what)
        return True

    def left_behind(self, tx: Tx, queues: Sequence[QueueRow], strange: Mapping[int, str], lacks: Lacks) -> list[str]:
        """What stays queued although there is nothing left to do here, in words: paused queues, strange tasks, and jobs
        that need what this worker has not."""
        paused = {queue.id: queue.name for queue in queues if queue.paused}
        if not paused and not strange and tx.one(_CLASSES) is None:
            return []
        ids = [queue.id for queue in queues]
        counts: Counter[str] = Counter()
        for queue, task, pool, number in tx.all(_COUNT_LEFT, ids=ids, same=ids):
            if queue in paused:
                counts[f"in queue {paused[queue]!r}, which is paused"] += number
            elif task in strange:
                counts[f"of task {strange[task]!r}, which this application does not know"] += number
            elif missing := lacks(queue, pool):
                counts[f"for want of {' and '.join(missing)}"] += number
        return [f"left queued: {number} job{'' if number == 1 else 's'} {what}" for what, number in sorted(counts.items())]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop gracefully, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Tickers:
    """What a worker does beside its own work, each in its own rhythm: fires schedules, publishes, prunes."""

    def __init__(self, tickers: Iterable[Callable[[float], float]]) -> None:
        self._tickers = [(0.0, ticker) for ticker in tickers]
        self._failing: set[int] = set()  # an outage is told once, not every two seconds

    def tick(self, now: float) -> list[float]:
        """Calls those that are due; says when each is next."""
        for n, (at, ticker) in enumerate(self._tickers):
            if now >= at:
                try:
                    at = now + ticker(now)
                    self._failing.discard(n)
                except DatabaseError as error:
                    if n not in self._failing:
                        log.warning("%s; trying again every %g s", error, _TICK_AGAIN)
                    self._failing.add(n)
                    at = now + _TICK_AGAIN
                self._tickers[n] = (at, ticker)
        return [at for at, _ in self._tickers]


@contextmanager
def beside(loop: Callable[[threading.Event], None]) -> Iterator[None]:
    """A loop in a thread of its own: a worker must not wait for a slow look, nor its lease end meanwhile."""
    stop = threading.Event()
    thread = threading.Thread(target=loop, args=(stop,), daemon=True, name="gristmill-beside")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)


def _exhausted(steps: Iterator[None], until: float) -> bool:
    """Takes at least one of these steps, and more until it is time; says whether there are no more."""
    return all(time.monotonic() < until for _ in steps)


def carry_on(ledger: Ledger, run: int, until: float = math.inf) -> None:
    """Does what a retry, or the start of a part run, has left to do, in batches of one transaction each."""
    while ledger.do(again.carry_on, run) and time.monotonic() < until:
        pass


def sweep_run(ledger: Ledger, run: int) -> None:
    """Ends the queued jobs of a stopped run."""
    for _ in sweeping(ledger, run):
        pass


def sweeping(ledger: Ledger, run: int) -> Iterator[None]:
    """The same in steps of one transaction each; parts before what they are parts of."""
    with ledger.reading() as tx:
        stages = stop.stages_to_sweep(tx, run)
        with_parts = parts.parents_in(tx, run)
    for job in with_parts:
        while ledger.do(parts.sweep, job):
            yield
    for stage in stages:
        key: str | None = ""
        while key is not None:
            key = ledger.do(stop.sweep, run, stage, key)
            yield


def sweep_parts(ledger: Ledger, job: int, until: float = math.inf) -> None:
    """Ends the queued parts of a job that ends, or whose run does."""
    while ledger.do(parts.sweep, job) and time.monotonic() < until:
        pass


def sweep_ending(ledger: Ledger) -> None:
    """The same for all jobs whose end waits for that of their parts."""
    with ledger.reading() as tx:
        ending = parts.ending(tx)
    for job in ending:
        sweep_parts(ledger, job)


def carry_out(ledger: Ledger, number: int, until: float = math.inf) -> bulk.Order:
    """Goes on with an action on many, in batches of one transaction each; says how far it is.

    Until all is done, or (monotonic) time is up, or what is left has to wait.
    """
    refusals: list[str] = []
    while True:
        with ledger.reading() as tx:
            order = bulk.order(tx, number)._replace(refusals=refusals)
            chosen = None if order.reached is None else bulk.portion(tx, order)
        if order.reached is None or chosen is None or chosen.blocked:
            return order._replace(settled=True)
        if time.monotonic() > until:
            return order
        refusals += _step(ledger, number, order.reached, chosen)
        if order.verb == "run.cancel":
            for run in chosen.ids:
                sweep_run(ledger, run)
        elif order.verb == "run.retry_many":
            for run in chosen.ids:
                carry_on(ledger, run, until)
        elif order.action.runs:
            remove_pending(ledger, until)
        else:
            sweep_ending(ledger)


def _step(ledger: Ledger, number: int, reached: int, chosen: bulk.Portion) -> list[str]:
    """One step of an action on many; says why some of it were left as they are."""
    said = ""
    for _ in range(10):
        try:
            return ledger.do(bulk.step, number, reached, chosen)
        except again.Changed as moved:
            said = str(moved)
            carry_on(ledger, moved.run)  # what an earlier retry has left
            if len(chosen.ids) > 1:
                return []  # they have to be looked at once more
        except Refused as refused:
            if len(chosen.ids) != 1:
                raise
            ledger.do(bulk.leave, number, reached, chosen)
            return [str(refused)]
    ledger.do(bulk.leave, number, reached, chosen)
    return [said]


def remove_pending(ledger: Ledger, until: float = math.inf) -> None:
    """Deletes the jobs of runs that were removed, in batches of one transaction each."""
    with ledger.reading() as tx:
        stages = remove.pending(tx)
    for stage in stages:
        while time.monotonic() < until and ledger.do(remove.remove_jobs, stage):
            pass


def prefer_run(ledger: Ledger, run: int) -> None:
    """For a worker of one run: others' jobs do not keep its own out of the line."""
    with ledger.reading() as tx:
        waits = limits.waits(tx, run)
    if waits:
        ledger.do(limits.prefer, run)


def go_on_where_forgotten(ledger: Ledger, after: int = 0, until: float = math.inf) -> int:
    """Lets jobs go on that wait for a limit though they need not, key by key; says where to go on (0: from the start)."""
    while True:
        with ledger.reading() as tx:
            ids, after = limits.to_promote(tx, after)
        if ids:
            ledger.do(limits.promote, ids, wait=False)
        if not after or time.monotonic() > until:
            return after


def go_on_within_limits(ledger: Ledger, everything: bool = False) -> int | None:
    """Lets jobs go on whose limit is due; with `everything`, also where it was forgotten. Says when the next is due."""
    if everything:
        go_on_where_forgotten(ledger)
    with ledger.reading() as tx:
        ids, due = limits.due(tx)
    if ids:
        ledger.do(limits.promote, ids, wait=False)
        with ledger.reading() as tx:
            due = limits.due(tx)[1]
    return due
