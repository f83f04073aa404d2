"""The worker: one loop with three inputs, its children, the doorbell and the clock.

It claims jobs, hands them to its children, and writes what became of them, all in batches. It never imports the
application; its children do. What it promises others, it keeps by its lease: a worker that cannot reach the database
stops its children before the lease ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import selectors
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from gristmill.appetite import Appetite
from gristmill.bookkeeping import for_children, introduction, say, write
from gristmill.clock import SECOND, micros
from gristmill.collecting import few_collections
from gristmill.delivery.protocol import ALL, Bell, Delivery, Seat
from gristmill.errors import AppError, DatabaseError, NotYours, Unavailable
from gristmill.execution.children import Child
from gristmill.execution.crew import Crew
from gristmill.execution.known import end_of, runs_of
from gristmill.execution.room import ASYNC, SYNC
from gristmill.housekeeping import Housekeeping, Tickers, stopped_by_signals
from gristmill.ledger import names, queues, workers
from gristmill.ledger.claim import Claimed, Kind, Taken
from gristmill.ledger.exchange import Batch
from gristmill.ledger.finish import Outcome, Verdict, begin, begin_free, report_progress
from gristmill.ledger.store import DELAYED, Ledger
from gristmill.ledger.tx import Tx
from gristmill.machine import machine
from gristmill.settings import WorkerSettings

Until = Literal["idle", "drained"] | None
log = logging.getLogger("gristmill.worker")

_UNKNOWN_TASK = 10.0  # seconds until another worker may have learned a task that this one does not know
_STILL_STOPPING = 0.5  # seconds until a job is looked at again whose last attempt has not stopped yet
_HOLD = 0.1  # seconds that items may wait for children that run through theirs in no time
_CROWDED = 0.01  # seconds that a turn waits where many finish jobs of the same runs
_REPORT_EVERY = 1.0  # seconds between writes of progress
_BACKOFF = (0.1, 0.2, 0.5, 1.0, 2.0)


def backoff(failures: int) -> float:
    """Seconds until the database is tried again; not the same for all, who else would all come back at once."""
    return _BACKOFF[min(failures, len(_BACKOFF) - 1)] * (0.5 + random.random())


class Worker:
    """`run()` works until it is stopped, or until there is nothing left if told so."""

    def __init__(
        self,
        ledger: Ledger,
        delivery: Delivery,
        sources: Sequence[str],
        settings: WorkerSettings,
        queues: Sequence[str] = (),
        tickers: Sequence[Callable[[float], float]] = (),
        run: int | None = None,
        beside: contextlib.AbstractContextManager[None] | None = None,
    ) -> None:
        self.ledger = ledger
        self.delivery = delivery
        self.settings = settings = replace(settings, jobs_mib=settings.jobs_mib or machine().for_jobs)
        self.only = tuple(queues)
        self._tickers = Tickers(tickers)
        self.id = 0
        self._lost_as = 0  # the number under which it was declared lost, until what it held has its losses back
        self.crew = Crew(for_children(settings, sources, ledger, delivery), settings)
        self.only_run = run
        self._seat = Seat(self.only, run is None)
        self._beside = beside or contextlib.nullcontext()  # what goes on in another thread while it works
        self.appetite = Appetite(ledger, self.crew.room, settings, queues, run)
        self.crew.demand = self.appetite.admission.demand
        self.house = Housekeeping(ledger, run)
        self.stopping_since: float | None = None
        self._bell: Bell | None = None
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._pending = Batch()  # taken from the crew, not yet known to be written
        self._begun: set[int] = set()  # runs that are known to have begun: a transaction that met them was committed
        self._unbegun: set[int] = set()  # runs that have begun, but whose rows others held when we wanted to say so
        self._strange: dict[int, str] = {}  # tasks of claimed jobs that the application does not know
        self._waited = 0.0  # seconds that the last turn with something to write waited for others
        self._claims_next = False  # the last turn only wrote what was done
        self._recalled = False
        self._ended = False
        self._gathered_at = 0.0  # when completions that wait for company are written at the latest; 0: none wait
        self._held_back_at = 0.0  # when the first items that wait for room are written at the latest; 0: none wait
        self._rest_until = 0.0
        self._offline_until = 0.0
        self._failures = 0
        self._outage: set[str] = set()  # what was said of the outage that lasts
        self._beat_at = self._house_at = self._report_at = 0.0

    # ---- the loop

    def run(self, until: Until = None) -> None:
        """Works until `stop()`, a signal, or (`until`) nothing is ready, or nothing is queued either; for one run, until
        that ends."""
        with stopped_by_signals(self.stop), few_collections(), self._beside:
            try:
                self._start()
                while True:
                    due = self.tick(time.monotonic())
                    if self._over(until):
                        break
                    self._wait(due)
                if self.crew.broken:
                    raise AppError(f"a child cannot load the application:\n{self.crew.broken}")
            finally:
                self._finish()

    def stop(self) -> None:
        """Asks for a graceful stop; a second time, for an immediate one. May be called from a signal handler."""
        self.stopping_since = time.monotonic() if self.stopping_since is None else -1e9
        if not self._ended:  # its end of the pipe may be someone else's file by then
            self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._woken, b"!")

    def tick(self, now: float) -> float:
        """Does everything that is due; says in how many seconds something will be."""
        due = [now + self.crew.tick(now)]
        if self.crew.broken:
            self._give_up(self.crew.broken)
        self._rest(now)
        if now >= self._offline_until:
            try:
                self._beat(now)
                self._keep_house(now)
                if self.house.limits_are_due(now):
                    self.appetite.look_again()
                self._turn(now)
                self._report(now)
                self._failures = 0
            except Unavailable as error:
                self._went_offline(now, error)
            except NotYours as error:
                self._was_lost(error)
        if now >= self.crew.lease_deadline and self.crew.children:
            log.warning("the database was out of reach until the lease ended: its jobs are stopped")
            self.crew.kill_all()
        due += [self._offline_until] if self._offline_until > now else [self._beat_at, self._house_at]
        due += [self._report_at] if self.crew.progress else []
        due += [self.house.limits_at] if self._offline_until <= now else []
        due += [at for at in (self._gathered_at, self._held_back_at) if at]
        due += [now] if self.appetite.admission.once_more() or self._claims_next else []
        due += [self._rest_until] if self.appetite.look and self._rest_until > now else []
        due += [self.stopping_since + self.settings.grace] if self.stopping_since is not None else []
        return max(0.0, min(due + self._tickers.tick(now)) - now)

    def _give_up(self, broken: str) -> None:
        """The application cannot be loaded. If it could before (it is being changed), what runs of it may end."""
        if self.crew.tasks is None or not self.crew.held:
            raise AppError(f"a child cannot load the application:\n{broken}")
        if self.stopping_since is None:
            log.error("the application cannot be loaded any more, so this worker ends when its jobs have: %s", broken)
            self.stop()

    def _wait(self, seconds: float) -> None:
        """Sleeps until a child says something, the bell rings, or it is time."""
        wanted: dict[Any, int] = {self._wake: selectors.EVENT_READ}
        for child in self.crew.children:
            wanted[child] = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.writing else 0)
        if self._bell is not None:
            wanted[self._bell] = selectors.EVENT_READ
        self._watch(wanted)
        for key, events in self._selector.select(seconds):
            source = key.fileobj
            if isinstance(source, Child):
                if events & selectors.EVENT_WRITE:
                    source.write()
                if events & selectors.EVENT_READ:
                    was_ready = source.ready
                    self.crew.hear(source)
                    if source.ready and not was_ready:
                        self.appetite.look_again()
            elif source is self._bell:
                self._heard()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 1024)

    def _watch(self, wanted: dict[Any, int]) -> None:
        watched = {key.fileobj: key.events for key in self._selector.get_map().values()}
        for source in watched.keys() - wanted.keys():
            self._selector.unregister(source)
        for source, events in wanted.items():
            if source not in watched:
                self._selector.register(source, events)
            elif watched[source] != events:
                self._selector.modify(source, events)

    def _heard(self) -> None:
        assert self._bell is not None
        try:
            rung = self._bell.heard()
            self.appetite.offers.hear(rung.jobs)
            if rung.queues:
                self.appetite.look_again(None if ALL in rung.queues else rung.queues)
            if DELAYED in rung.queues:
                self._house_at = min(self._house_at, self.house.soonest)
        except Unavailable as error:
            log.warning("%s", error)
            self.appetite.look_again()
            self._hang_up()

    # ---- its place in the ledger

    def _start(self) -> None:
        self._register()
        self.crew.grow()  # one child at once: it shows whether the application can be loaded at all

    def _register(self) -> None:
        before = time.monotonic()
        who = introduction(self.settings, self.only, self.delivery.name)
        self.id = self.ledger.do(workers.register, who, micros(self.settings.lease))
        self.crew.begin(self.id)
        self.appetite.admission.forget()
        self._house_at = 0.0
        self._begun, self._unbegun, self._strange = set(), set(), {}
        self._leased(before)
        self.appetite.look_again()
        if self._bell is None:
            self._bell = self.delivery.bell(self._seat)

    def _leased(self, before: float) -> None:
        """The lease counts from before the call; children end a little earlier than others may take their jobs."""
        self._beat_at = before + self.settings.lease / 3
        self.crew.live_until(before + self.settings.lease * 0.95)

    def _beat(self, now: float) -> None:
        if self._lost_as:
            self.ledger.do(workers.come_back, self._lost_as, self.crew.begun)
            self._lost_as = 0
        if self.id == 0:
            self._register()
        if self._bell is None:
            self._bell = self.delivery.bell(self._seat)
            self.appetite.look_again()
        if now < self._beat_at:
            return
        self.ledger.do(workers.heartbeat, self.id, micros(self.settings.lease))
        self._leased(now)

    def _was_lost(self, error: NotYours) -> None:
        """Others have our jobs now. Whatever the children still do is of no use; we start again under a new number."""
        log.warning("%s; starting again", error)
        self.crew.kill_all()
        self._pending.add(self.crew.take())
        self.crew.begun.update(self._pending.begun())
        if self.appetite.fed:
            self._hang_up()
        self._pending = Batch()
        self._gathered_at = self._held_back_at = 0.0
        self._lost_as, self.id = self.id or self._lost_as, 0

    def _went_offline(self, now: float, error: Unavailable) -> None:
        delay = backoff(self._failures)
        if self._failures == 0:
            self._outage = set()
        if str(error) not in self._outage:  # first the connection is gone, then it is said why there is no other
            self._outage.add(str(error))
            log.warning("%s; trying again", error)
        self._failures += 1
        self._offline_until = now + delay
        self._gathered_at = self._held_back_at = 0.0  # what is done waits for the database now
        self._house_at = 0.0  # strays may be in our name: a claim whose commit got no answer
        self.house.strays_possible = True
        self._hang_up()

    def _hang_up(self) -> None:
        if self._bell is not None:
            self._watch({k: v for k, v in self._watched().items() if k is not self._bell})
            with contextlib.suppress(Exception):
                self._bell.close()
            self._bell = None
            self.appetite.stop_being_fed()

    def _watched(self) -> dict[Any, int]:
        return {key.fileobj: key.events for key in self._selector.get_map().values()}

    def _keep_house(self, now: float) -> None:
        if now < self._house_at:
            return
        self._house_at = now + self.settings.poll
        if self._unbegun:
            self.ledger.do(begin, self.id, sorted(self._unbegun))
            self._unbegun = set()
        known = max(self.appetite.admission.classes, default=0)
        possible = self.house.strays_possible
        seen = self.house.tick(now, self.id, self._in_hand, self.crew.long_held(now), known)
        # What is not written yet hides a stray: the same job, claimed once more by a turn whose answer was lost.
        self.house.strays_possible = possible and bool(self._pending)
        self.appetite.see(seen.queues)
        self.appetite.admission.learn(seen.classes)
        self.appetite.look_again()
        self.crew.cancel(seen.to_cancel)
        if seen.next_due is not None:
            self._house_at = min(self._house_at, now + max(0.001, seen.next_due / SECOND))

    def _in_hand(self) -> set[int]:
        return {*self.crew.held_ids(), *self._pending.jobs(), *self.crew.batch.jobs()}

    # ---- a turn: write what is done, take what is next

    def _turn(self, now: float) -> None:
        if self.crew.returned:
            self.appetite.took_back(self.crew.returned)
            self.crew.returned = Counter()
        resting = self.stopping_since is not None or now < self._rest_until
        if resting:
            self._held_back_at = 0.0  # nothing is held back: there is no room to wait for
        else:
            self._grow()
        self._pending.add(self.crew.take())
        if self._pending.emissions:
            self.appetite.look_again()  # they will be there when this turn comes to take something
        for place in self.appetite.be_fed(self._bell, resting) if self._bell is not None else ():
            self.crew.grow(place)
        wants, room = ([], {}) if resting else self.appetite.wants(now)
        if self.appetite.admission.grow:
            self.crew.grow_for(self.appetite.admission.grow)
        batch, later = (self._pending, Batch()) if resting else self._pending.split(self._emissions_now(now, room))
        if wants and self._crowded(batch):
            wants, room = [], {}
        if not wants and (not batch or self._may_gather(batch, now)):
            return
        self._gathered_at = 0.0
        done = write(self.ledger, self.id, batch, wants, room, self._meet, partial(self.crew.known.suffices, self._begun))
        self.crew.room.learn_turn(time.monotonic() - now)
        self.crew.acknowledge(batch.emissions, done.refused_items)
        self._pending = later
        self._waited = done.waited if batch else self._waited
        self.house.limits_in(now, done.due)
        if done.taken is not None:
            self._took(done.taken, room)
        if self.appetite.fed and self._bell is not None:
            self.appetite.was_fed(self._bell, batch.jobs(), done.taken, resting)
        say(self.ledger, batch.outcomes, done.late)

    def _emissions_now(self, now: float, room: Mapping[int, int]) -> int:
        """How many batches of items are written now: those that can start at once.

        Others wait while children run through what they hold in no time: a job that stands in line costs twice as much.
        The first of them waits 0.1 s at most.
        """
        left = sum(number for place, number in room.items() if place <= SYNC)
        for n, emission in enumerate(self._pending.emissions):
            left -= len(emission.items)
            if left < 0 and self.crew.room.keeps_up(len(emission.items)):
                self._held_back_at = now + _HOLD if n or not self._held_back_at else self._held_back_at
                if now < self._held_back_at:
                    return n
                break
        self._held_back_at = 0.0
        return len(self._pending.emissions)

    def _crowded(self, batch: Batch) -> bool:
        """Do others finish jobs of the same runs? Then what is done is written by itself: they would wait for a claim in the
        same transaction too. That is the next turn's."""
        self._claims_next = self._waited > _CROWDED and not self._claims_next and bool(batch) and not batch.emissions
        return self._claims_next

    def _may_gather(self, batch: Batch, now: float) -> bool:
        """May what is done wait for company? Only a moment, and only if more is about to come."""
        if batch.outcomes or not self.crew.flowing:
            return False
        self._gathered_at = self._gathered_at or now + self.crew.room.gather
        return now < self._gathered_at

    def _took(self, taken: Taken, room: Mapping[int, int]) -> None:
        """Hands new jobs to the children; what that means for the next claim is looked at while they begin."""
        if taken.jobs:
            self._hand_over(taken)
        for place in self.appetite.took(taken, room) - {ASYNC}:
            self.crew.grow(place)
        self._put_off(kind for kind in taken.kinds if kind.task_id in self._strange)

    def _hand_over(self, taken: Taken) -> None:
        assert taken.claim is not None
        self.crew.accept(taken.claim, len(taken.jobs))
        self._begun |= runs_of(taken.kinds)
        jobs = self._turn_away(taken)
        self.crew.catch_up()
        if self.crew.batch:
            self._wake_up()  # its sockets will not do that any more
        self.crew.give(taken.claim, self.appetite.in_turn(jobs, taken.kinds), taken.kinds)

    def _grow(self) -> None:
        """All children of a place are busy: one more, if there may be and if there is work for it. Before the first one has
        started, as many as there is work for: nobody knows yet how long it takes."""
        if self.crew.tasks is None and not self.crew.children:
            self.crew.grow()  # only a child that has loaded the application says which kinds there can be
        for place in self.appetite.look - {ASYNC}:
            first, room = self.crew.tasks is None, self.crew.room
            if not room.idle(place) and self.crew.may_grow(place) and (first or not self.crew.starting):
                most, there = (room.slots(place), len(room.of(place))) if first else (1, 0)
                waiting = self.house.waiting(self.appetite.open_at(place), self.appetite.admission.light(place), most)
                for _ in range(waiting - there):
                    self.crew.grow(place)
                if not waiting:
                    self.appetite.look.discard(place)

    def _meet(self, tx: Tx, kinds: Collection[Kind]) -> None:
        """Reads what is not known yet about the tasks, runs and stages of jobs just taken; their runs have begun now."""
        known = self.crew.known
        if known.too_much:
            self.crew.forget_idle_runs()
            self._begun &= known.runs.keys()
        known.meet(tx, kinds)
        runs = sorted(runs_of(kinds) - self._begun)
        if runs:
            self._unbegun.update(begin_free(tx, runs))

    def _turn_away(self, taken: Taken) -> list[Claimed]:
        """Jobs of stopped runs end here. Some go back for a while: those of tasks that this application does not know, and
        those of which a child still has an attempt that was taken away from it by a retry of the run."""
        tasks = self.crew.tasks
        unknown = {t: i.name for t, i in self.crew.known.tasks.items() if tasks is not None and i.name not in tasks}
        for name in sorted(set(unknown.values()) - set(self._strange.values())):
            log.warning("this application does not know the task %r: its jobs go back for %g s", name, _UNKNOWN_TASK)
        self._strange = unknown
        disowned = self.crew.holding(taken.jobs)
        if not unknown and not self.house.stopping and not disowned:
            return taken.jobs
        assert taken.claim is not None
        self.crew.cancel(disowned)
        turned_away: list[Outcome] = []
        for job in taken.jobs:
            if job.id in disowned:
                reason = "an attempt that was taken from this worker is still being stopped"
                turned_away.append(end_of(job, Verdict.LATER, reason=reason, delay=_STILL_STOPPING))
            elif job.run_id in self.house.stopping:  # cancelled, unless the run goes on again: it was retried just now
                turned_away.append(end_of(job, Verdict.LATER, delay=_STILL_STOPPING))
            elif job.task_id in unknown:
                reason = self._does_not_know(job.task_id)
                turned_away.append(end_of(job, Verdict.LATER, reason=reason, delay=_UNKNOWN_TASK))
        self.crew.turn_away(taken.claim, turned_away)
        ids = {outcome.job for outcome in turned_away}
        return [job for job in taken.jobs if job.id not in ids]

    def _does_not_know(self, task: int) -> str:
        return f"worker {self.id} does not know the task {self._strange[task]!r}"

    def _put_off(self, kinds: Iterable[Kind]) -> None:
        """More of the same may stand in line behind these: claimed one by one, they would hold up what can be run."""
        for queue, pool, task in sorted({(kind.queue_id, kind.pool, kind.task_id) for kind in kinds}):
            why = self._does_not_know(task)
            self.ledger.do(queues.put_off, self.id, queue, pool, [task], micros(_UNKNOWN_TASK), why)

    def _report(self, now: float) -> None:
        if now < self._report_at or not self.crew.progress:
            return
        self._report_at = now + _REPORT_EVERY
        rows = [(job, attempt, state) for (job, attempt), state in self.crew.progress.items()]
        self.crew.progress.clear()
        self.ledger.do(report_progress, self.id, rows)

    def _rest(self, now: float) -> None:
        if self.crew.rest_for:
            log.warning("resting for %g s: a job gave itself back unspent", self.crew.rest_for)
            self._rest_until = max(self._rest_until, now + self.crew.rest_for)
            self.crew.rest_for = 0.0
            self.crew.recall()

    # ---- the end

    def _over(self, until: Until) -> bool:
        if self.stopping_since is not None:
            waited = time.monotonic() - self.stopping_since
            if not self._recalled:
                self._recalled = True
                self.crew.recall()
                if self.crew.held:
                    words = "stopping: %d running %s %g s to end; once more to stop at once"
                    log.info(words, self.crew.held, "job has" if self.crew.held == 1 else "jobs have", self.settings.grace)
            return waited > self.settings.grace or not (self.crew.held or self.crew.batch or self._pending)
        if (until is None and self.only_run is None) or self.id == 0 or self.crew.starting:
            return False
        if self.appetite.look or self.crew.held or self.crew.batch or self._pending or not self.appetite.queues:
            return False
        try:
            with self.ledger.reading() as tx:
                known = self.crew.tasks
                strange = {t: name for t, name in names.tasks(tx) if known is not None and name not in known}
                if self.only_run is not None:
                    return self.house.run_is_over(tx, self.only_run, self._served(), strange)
                over = self.house.nothing_left(tx, self._served(), until == "drained", strange)
                lacks = self.appetite.admission.lacks
                for words in self.house.left_behind(tx, self.appetite.queues, strange, lacks) if over else ():
                    log.warning("%s", words)
                return over
        except Unavailable:
            return False

    def _served(self) -> dict[int, list[int]]:
        """The pools of each open queue that this worker serves."""
        return {queue: self.appetite.admission.pools(queue) for queue in self.appetite.open_queues()}

    def _finish(self) -> None:
        """Whatever happens, no child is left and nothing is held."""
        self.crew.kill_all()
        with contextlib.suppress(DatabaseError, NotYours):
            if self.id:
                self._pending.add(self.crew.take())
                write(self.ledger, self.id, self._pending)
                self.appetite.offers.give_back()
                self.ledger.do(workers.leave, self.id)
        bell = self._bell
        self._hang_up()
        if bell is not None:
            bell.say_goodbye()
        self._ended = True
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)
