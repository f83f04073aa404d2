"""All children of one worker: gives them jobs, hears what became of these, stops those that must be stopped."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import orjson
from orjson import Fragment

from gristmill.demand import NOTHING, Demand
from gristmill.execution.child import LEASE_OVER, LOCK_LOST
from gristmill.execution.children import Child, Held, fate, let_go
from gristmill.execution.frames import SPOKEN, updated
from gristmill.execution.known import Knowledge, check_completed, encoded, end_of, outcome_of, runs_of, stages_of
from gristmill.execution.room import ASYNC, SYNC, Room
from gristmill.execution.run import WRITTEN, Report
from gristmill.execution.stopping import Stopping, timeout_words
from gristmill.ledger.claim import Claimed, Kind
from gristmill.ledger.emit import Emission, Refusal
from gristmill.ledger.exchange import Batch, refused
from gristmill.ledger.finish import Outcome, Verdict
from gristmill.ledger.moment import Ended
from gristmill.settings import WorkerSettings
from gristmill.traces import on, traced

log = logging.getLogger("gristmill.worker")

_A_WHILE = 0.2
_KEPT_MIB = 256  # memory that a process may keep when the job is over that it was for
_SUSPECT_WAITS = 1.0  # seconds until a suspect of a crash is claimed again, when all processes for such are taken
_SPAWN_AGAIN = 5.0  # seconds until it is tried again, where no process could be made
_TO_START, _TO_BEGIN = 300.0, 15.0  # seconds that a process has to load the application; to begin a job that it was given
_STILLBORN = 3  # processes in a row that end before they begin anything: then the job that they were given is to blame


class Crew:
    """The children, and everything that they hold."""

    def __init__(self, setup: Mapping[str, Any], settings: WorkerSettings) -> None:
        self._setup = dict(setup)
        self.settings = settings
        self.demand: Callable[[int], Demand] = lambda pool: NOTHING  # what jobs of a pool ask for
        self.children: list[Child] = []
        self.known = Knowledge()
        self.room = Room(self.children, settings)
        self.batch = Batch()
        self.progress: dict[tuple[int, int], str] = {}
        self.rest_for = 0.0  # a job asked for a pause of this worker: seconds
        self.broken: str | None = None
        self.tasks: set[str] | None = None  # that the application knows; None until a child has loaded it
        self.lease_deadline = time.monotonic() + settings.lease
        self.returned: Counter[int] = Counter()  # jobs per queue that were given to a child and came back unstarted
        self._claim_left: dict[int, int] = {}
        self._refused: dict[int, Refusal] = {}
        self.timed_out: set[int] = set()  # jobs that were told to stop, since their time is over
        self._told_changes: set[tuple[str, str]] = set()
        self.begun: set[int] = set()  # jobs that were at work when the lease ended, or it was found to be lost
        self._spawn_at = 0.0
        self._stillborn = 0
        self._stopping = Stopping(self)

    # ---- what they hold

    @property
    def held(self) -> int:
        return sum(len(child.held) for child in self.children)

    @property
    def flowing(self) -> bool:
        """Will there be more to report in a moment? Some child has another job to go on with, or emits."""
        return any(len(child.held) > 1 or child.producers & child.held.keys() for child in self.children)

    def forget_idle_runs(self) -> None:
        """Keeps what is known about runs and stages from growing for ever. Children remember on their own."""
        jobs = [held[0] for child in self.children for held in child.held.values()]
        self.known.keep({job.run_id for job in jobs if job.run_id}, {job.stage_id for job in jobs if job.stage_id})
        for child in self.children:
            child.send(["forget"])
            child.runs, child.stages = set(), set()

    def long_held(self, now: float) -> list[int]:
        """Jobs that have been in a child's hands for a while, so that someone may have cancelled them."""
        return [job for child in self.children for job, held in child.held.items() if now - held[2] > _A_WHILE]

    def held_ids(self) -> list[int]:
        return [job for child in self.children for job in child.held]

    def holding(self, jobs: Sequence[Claimed]) -> set[int]:
        """Which of these jobs, just claimed, a child still has an older attempt of."""
        ids = set(map(itemgetter(0), jobs))
        return {job for child in self.children for job in ids & child.held.keys()} if self.held else set()

    # ---- giving

    def grow(self, place: int = SYNC) -> None:
        """One more child for plain functions, if there may be."""
        if self.may_grow(place):
            self._spawn(place)

    def may_grow(self, place: int) -> bool:
        most = self.room.slots(place) - self.room.held_back.get(place, 0)
        return len(self.room.of(place)) < most and time.monotonic() >= self._spawn_at

    def grow_for(self, places: Iterable[int]) -> None:
        """The same for a job that takes more than a slot, which room is kept for."""
        for place in places:
            if len(self.room.of(place)) < self.room.slots(place) and all(child.ready for child in self.room.of(place)):
                self._spawn(place)

    @property
    def starting(self) -> bool:
        return self.room.starting

    def _spawn(self, place: int) -> Child | None:
        """None: that cannot be done now. What runs goes on, and others may have room."""
        try:
            child = Child({**self._setup, "async": place == ASYNC}, self.lease_deadline, place)
        except OSError as error:
            self._spawn_at = time.monotonic() + _SPAWN_AGAIN
            log.warning("no process for jobs can be started: %s; trying again in %g s", error, _SPAWN_AGAIN)
            return None
        self.children.append(child)
        return child

    def give(self, claim: int, jobs: Sequence[Claimed], kinds: Iterable[Kind]) -> None:
        """Deals claimed jobs out to the children."""
        now = time.monotonic()
        places = {(kind.queue_id, kind.pool): self.room.place(kind.queue_id, kind.pool) for kind in kinds}
        heavy = {line for line, place in places.items() if place != ASYNC and self.demand(line[1]).heavy}
        if heavy:
            self._give_heavy(claim, [job for job in jobs if job.kind[5:] in heavy], now)
            jobs = [job for job in jobs if job.kind[5:] not in heavy]
        wanted = {place for line, place in places.items() if line not in heavy}
        for place in sorted(wanted):
            some = jobs if len(wanted) == 1 else [job for job in jobs if places[job.kind[5:]] == place]
            if place == ASYNC:
                self._give_async(claim, some, now)
            else:
                self._give_plain(claim, some, place, now)

    def _give_plain(self, claim: int, jobs: Sequence[Claimed], place: int, now: float) -> None:
        free = self.room.free(place)
        shares = self.room.deal(jobs, free)
        for child, share in zip(free, shares, strict=True):
            self._hand(child, share, claim, now)
        self._release(claim, jobs[sum(map(len, shares)) :])

    def _give_heavy(self, claim: int, jobs: Sequence[Claimed], now: float) -> None:
        """Each to a child that has nothing else."""
        for job in jobs:
            empty = self.room.empty(self.room.place(job.kind.queue_id, job.kind.pool))
            if empty:
                child = min(empty, key=lambda child: not child.kept)
                child.heavy, child.kept = True, False
                self._hand(child, [job], claim, now)
            else:
                self._release(claim, [job])

    def _give_async(self, claim: int, jobs: Sequence[Claimed], now: float) -> None:
        together = [job for job in jobs if not job.kind.alone]
        if together:
            child = self.room.loop or self._spawn(ASYNC)
            if child is not None:
                self._hand(child, together, claim, now)
            else:
                self._release(claim, together, _SPAWN_AGAIN)
        for job in jobs:
            if job.kind.alone:
                self._give_alone(claim, job, now)

    def _give_alone(self, claim: int, job: Claimed, now: float) -> None:
        """A suspect of a crash gets a process to itself, but not more of them at once than there are slots."""
        if sum(1 for child in self.children if child.alone) >= self.settings.slots:
            self._end(claim, end_of(job, Verdict.LATER, delay=_SUSPECT_WAITS, alone=True))
            return
        child = self._spawn(ASYNC)
        if child is None:
            self._end(claim, end_of(job, Verdict.LATER, delay=_SPAWN_AGAIN, alone=True))
            return
        child.alone = True
        self._hand(child, [job], claim, now)

    def _hand(self, child: Child, jobs: Sequence[Claimed], claim: int, now: float) -> None:
        if not jobs:
            return
        ids, attempts, keys, args, of, _ = zip(*jobs, strict=True)
        alike = of.count(of[0]) == len(of)  # as nearly always
        kinds = {kind: n for n, kind in enumerate(of[:1] if alike else set(of))}
        self.room.weigh(of[0].queue_id, args)  # as if all were of the first one's queue
        if child.is_async:
            child.line_up(jobs, self.settings.async_slots)
            child.late_at = min(child.late_at, now + min(map(self.known.time_limit, kinds)))
        child.held.update(zip(ids, zip(jobs, repeat(claim), repeat(now)), strict=True))
        for job in ids if child.lock_waits else ():
            child.lock_waits.pop(job, None)  # of an earlier attempt
        child.queues.update(kind.queue_id for kind in kinds)
        child.unique = child.unique or any(kind.unique_scope is not None for kind in kinds)
        child.bounded = child.bounded or any(self.demand(kind.pool).memory for kind in kinds)
        child.keeps_limits = child.keeps_limits or any(kind.limited for kind in kinds)
        numbers = [0] * len(of) if alike else list(map(kinds.__getitem__, of))
        columns = (numbers, ids, attempts, keys, encoded(args), *traced(ids, attempts))
        child.send(["jobs", *self._new_origins(child, kinds), [self._told(kind) for kind in kinds], columns])

    def _told(self, kind: Kind) -> tuple[Any, ...]:
        """What a child must know about jobs of a kind."""
        task = self.known.tasks[kind.task_id]
        return (task.name, task.spec["timeout"], self.demand(kind.pool).memory or None, *kind.origin)

    def _new_origins(self, child: Child, kinds: Iterable[Kind]) -> tuple[list[Any], list[Any]]:
        """Runs and stages that this child has not heard of."""
        runs, stages = runs_of(kinds) - child.runs, stages_of(kinds) - child.stages
        child.runs |= runs
        child.stages |= stages
        told = [(number, *run[:4], Fragment(run.args)) for number in runs for run in [self.known.runs[number]]]
        return told, [(number, *self.known.stages[number]) for number in stages]

    def _release(self, claim: int, jobs: Iterable[Claimed], delay: float = 0.0) -> None:
        for job in jobs:
            self._end(claim, end_of(job, Verdict.RELEASED, delay=delay))

    def accept(self, claim: int, jobs: int) -> None:
        """So many jobs came with this claim; it ends when the last of them has left this crew's hands."""
        self._claim_left[claim] = jobs

    def turn_away(self, claim: int, outcomes: Sequence[Outcome]) -> None:
        """Jobs that were claimed but will not be run here. (Not by way of `_end`: an older attempt may still be here.)"""
        for outcome in outcomes:
            self.batch.outcomes.append(outcome)
            self._ended(claim, 1)

    # ---- hearing

    def catch_up(self) -> None:
        """Hears what children did during the turn: who is through with his jobs gets more of the next ones."""
        for child in [child for child in self.children if child.ready and child.held]:
            self.hear(child)

    def hear(self, child: Child) -> None:
        for message in child.messages():
            if message == ["gone"]:
                self.bury(child)
                return
            try:
                self._understand(child, message)
            except Exception as error:  # a job can write to its process's socket: whatever that says, this worker lives
                current = child.current()
                one_of = child.is_async and len(child.held) > 1  # who knows which? Each has a process to itself next time
                culprit = current[0] if current else None if one_of else next(iter(child.held), None)
                what = f"what its process said made no sense ({type(error).__name__})"
                log.warning("a process for jobs is replaced: %s", what)
                child.doom(culprit, Verdict.CRASH, what)
                self.bury(child)
                return

    def _understand(self, child: Child, message: list[Any]) -> None:
        match message:
            case ["done", completed, others, seconds]:
                if completed:
                    self._hear_completed(child, *completed)
                self._hear_others(child, others)
                self._learn(child, (len(completed[0]) if completed else 0) + len(others), seconds)
            case ["emit", job, attempt, number, items]:
                self._hear_items(child, job, attempt, number, items)
            case ["progress", job, attempt, state]:
                self.progress[job, attempt] = orjson.dumps(state).decode()
            case ["lock", job, attempt, since, waited]:
                child.hear_lock(job, attempt, since, waited)
                child.late_at = 0.0
            case ["returned", jobs]:
                self._hear_returned(child, jobs)
            case ["hello", tasks, has_async, spoken] if spoken == SPOKEN and not child.ready:
                child.ready = True
                self.tasks, self.room.has_async = set(tasks), has_async
                now = child.heard_at = time.monotonic()  # their time did not count while the process was starting
                child.held = {job: (held[0], held[1], now) for job, held in child.held.items()}
            case ["hello", _, _, *spoken] if not child.ready:
                self.broken = updated(SPOKEN, next(iter(spoken), None))
                child.doom(None, Verdict.RELEASED, "")
            case ["broken", text] if not child.ready:
                self.broken = text
            case ["changed", task, what]:
                self._hear_changed(child, task, what)
            case _:
                raise ValueError("no such message")

    def _hear_changed(self, child: Child, task: str, what: str) -> None:
        """A job has changed its process for those after it: they get another one."""
        if (task, what) not in self._told_changes:
            self._told_changes.add((task, what))
            log.warning("a job of %s changed its process (%s): it is replaced, after each that does so", task, what)
        child.retire()

    def _hear_completed(
        self, child: Child, jobs: list[int], attempts: list[int], results: list[str | None], ran: list[int]
    ) -> None:
        """Plain completions go to the ledger as they came."""
        rows = list(zip(jobs, attempts, results, ran, strict=True))
        check_completed(attempts, results, ran)
        ids = set(jobs)
        unusual = self._refused or self.timed_out or child.producers & ids or len(child.held.keys() & ids) < len(jobs)
        if unusual:  # each is looked at for itself
            self._hear_others(child, [(job, attempt, "completed", result, ran) for job, attempt, result, ran in rows])
            return
        held, claims, _ = zip(*map(child.held.pop, jobs), strict=True)
        if child.is_async:
            child.went_on(len(jobs), sum(ran), time.monotonic())
        completed = self.batch.completed
        completed.rows += rows
        kinds = list(map(itemgetter(4), held))  # by number: by name it takes three times as long
        completed.origins += map(itemgetter(0), kinds)
        completed.time(kinds, ran, list(map(itemgetter(5), held)))
        if child.unique:
            completed.unique += [job.id for job in held if job.kind.unique_scope is not None]
        if child.keeps_limits:
            completed.limited += [job.id for job in held if job.kind.limited]
        if watched := self.known.watched:
            completed.watched += [Ended(job.id, job.kind.task_id) for job in held if job.kind.task_id in watched]
        for claim, number in Counter(claims).items():
            self._ended(claim, number)

    def _hear_others(self, child: Child, reports: Sequence[Sequence[Any]]) -> None:
        for report in reports:
            held = child.held.get(report[0])
            if held is None:
                continue
            outcome = None if report[2] == WRITTEN else self._outcome(held, Report(*report))
            del child.held[report[0]]  # not before: what makes no sense ends nothing
            if child.is_async:
                child.went_on(1, report[4], time.monotonic())
            if outcome is not None:
                self._end(held[1], outcome)
            else:
                self.timed_out.discard(report[0])
                self.batch.written.append(report[0])
                self._ended(held[1], 1)

    def _learn(self, child: Child, jobs: int, seconds: float) -> None:
        child.finished += jobs
        child.heard_at, self._stillborn = time.monotonic(), 0
        if not child.is_async:
            self.room.learn(child, jobs, seconds)
        child.recalled = child.recalled and bool(child.held)
        if child.alone and not child.held:
            child.retire()
        if (child.heavy or child.bounded) and not child.held:
            if not child.is_async and child.mib() > _KEPT_MIB:
                child.retire()  # what a big job leaves behind in its process is not there for others
            child.heavy = child.bounded = False

    def _outcome(self, held: Held, report: Report) -> Outcome:
        outcome = outcome_of(report, held[0])
        if report.job in self.timed_out:
            reason = timeout_words(self.known.time_limit(held[0].kind))
            outcome = outcome._replace(verdict=Verdict.TIMEOUT, reason=reason, delay=0.0)
        if report.items and held[0].run_id is not None:
            number, items = report.items
            self.batch.emissions.append(Emission(report.job, report.attempt, held[0].run_id, number, items))
        if outcome.verdict is Verdict.UNSPENT:
            self.rest_for = max(self.rest_for, report.delay)
        return outcome

    def _hear_items(self, child: Child, job: int, attempt: int, number: int, items: Any) -> None:
        held = child.held.get(job)
        if held is not None and held[0].run_id is not None:
            child.producers = {*(child.producers & child.held.keys()), job}
            self.batch.emissions.append(Emission(job, attempt, held[0].run_id, number, items))

    def acknowledge(self, emissions: Iterable[Emission], refusals: Mapping[int, Refusal]) -> None:
        """Tells producers that their items are in the ledger, or why not."""
        for emission in emissions:
            if child := next((child for child in self.children if emission.job in child.held), None):
                why = refusals.get(emission.job)
                if why is not None:
                    self._refused[emission.job] = why
                child.send(["ack", emission.job, why and why.reason])

    def _hear_returned(self, child: Child, jobs: list[int]) -> None:
        for job in jobs:
            if held := child.held.pop(job, None):
                self.returned[held[0].kind.queue_id] += 1
                self._end(held[1], end_of(held[0], Verdict.RELEASED))
        if child.is_async:
            child.given -= len(jobs)
            child.begin_next(len(child.ahead), time.monotonic())  # what it did not give back
            child.turnover.forget()
        child.recalled = child.recalled and bool(child.held) and not child.is_async
        if not child.held:
            child.heavy = child.bounded = False

    def _end(self, claim: int, outcome: Outcome) -> None:
        """The one place where a job leaves this crew's hands."""
        if self._refused and outcome.job in self._refused:
            outcome = refused(outcome, self._refused.pop(outcome.job))
        self.timed_out.discard(outcome.job)
        self.batch.outcomes.append(outcome)
        self._ended(claim, 1)

    def _ended(self, claim: int, jobs: int) -> None:
        self._claim_left[claim] -= jobs
        if not self._claim_left[claim]:
            del self._claim_left[claim]
            self.batch.ended_claims.append(claim)

    def take(self) -> Batch:
        batch, self.batch = self.batch, Batch()
        return batch

    # ---- stopping

    def tick(self, now: float) -> float:
        """Stops what is over its time or memory; says when to look again."""
        return self._stopping.tick(now)

    def wait_to_begin(self, child: Child, now: float) -> float:
        """It was given jobs, and is at none. One that never will be (it was frozen, an import hangs) is replaced."""
        given = next(iter(child.held.values()))[2]
        until = max(given, child.heard_at) + _TO_BEGIN if child.ready else child.heard_at + _TO_START
        if now < until:
            return now + 0.05 if child.ready else until
        what = "has not begun what it was given" if child.ready else "has not loaded the application"
        log.warning("a process for jobs %s after %g s: it is replaced", what, _TO_BEGIN if child.ready else _TO_START)
        child.doom(None, Verdict.RELEASED, "")
        return now

    def cancel(self, jobs: Iterable[int]) -> None:
        """Asks running jobs to stop; those that do not are killed after a while."""
        wanted = set(jobs)
        at = time.monotonic() + self.settings.cancel_grace
        for child in self.children:
            for job in wanted & child.held.keys() - child.cancelling.keys():
                child.cancelling[job] = at
                child.send(["cancel", job, child.held[job][0].attempt])

    def recall(self) -> None:
        """Asks for all jobs that were not started."""
        for child in self.children:
            if child.ahead if child.is_async else child.held:
                child.recall()

    def bury(self, child: Child) -> None:
        """A child is gone: its job crashed (or was stopped by us), what it had not started goes back unspent."""
        if child not in self.children:
            return
        self.children.remove(child)
        doomed, current, at_work = child.doomed, child.current(), child.at_work()
        how, output = child.died(), child.output()
        if child.process.returncode in (LEASE_OVER, LOCK_LOST):
            doomed = doomed or (None, Verdict.RELEASED, "")
        if child.process.returncode == LEASE_OVER:
            log.warning("a process for jobs has ended itself, since the lease was not renewed in time; its jobs begin again")
        if doomed is not None and doomed[1] is Verdict.RELEASED:
            self.begun.update(at_work)
        begun = set(at_work)
        by_itself = not (doomed or begun or child.retiring or self.broken)
        guilty = self._never_began(child, how, output) if by_itself else None
        for held in child.held.values():
            if held[0].id == guilty:
                self._end(held[1], end_of(held[0], Verdict.CRASH, reason=how, log=output))
            else:
                self._end(held[1], fate(child, held, doomed, current, begun, how, output))
        child.held = {}
        child.ahead.clear()
        child.close()
        if by_itself and self.tasks is None and not self.children:
            self.grow()  # whether the application can be loaded is not known yet

    def _never_began(self, child: Child, how: str, output: str | None) -> int | None:
        """A process is gone that was at no job, though it was given some, or before it could be. Once may be by chance;
        again and again, the first of its jobs has to do with it, or the application, if that was never loaded."""
        if child.ready and not child.held:
            return None
        said = f"; it said: {output[-500:]}" if output else ""
        log.warning("a process for jobs ended before it began one: %s%s", how, said)
        self._stillborn += 1
        if self._stillborn >= _STILLBORN and self.tasks is None:
            self.broken = f"{how}\n{output or ''}"
            return None
        if self._stillborn > 1 and not child.ready and self.tasks is not None:
            self._spawn_at = time.monotonic() + _SPAWN_AGAIN
        return next(iter(child.held), None) if self._stillborn >= _STILLBORN else None

    def kill_all(self) -> None:
        """Ends every child; what they held goes back unspent."""
        if on():
            let_go([child for child in self.children if not child.held])
        for child in list(self.children):
            child.doomed = child.doomed or (None, Verdict.RELEASED, "")
            child.kill()
        for child in list(self.children):
            child.process.wait()
            self.hear(child)  # what was finished, was finished
            self.bury(child)

    def begin(self, worker: int) -> None:
        """From now on children are this worker's. What was known may be of a ledger that a backup has replaced."""
        self._setup["worker"] = worker
        self.known = Knowledge()
        self._claim_left, self._refused, self.timed_out = {}, {}, set()

    def live_until(self, deadline: float) -> None:
        self.lease_deadline = deadline
        self.begun = set()
        for child in self.children:
            child.status.live_until(deadline)
