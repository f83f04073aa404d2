"""Random verbs in random order against the invariants: Hypothesis looks for a sequence that breaks one, and shortens it.

GRISTMILL_EXAMPLES=2000 pytest tests/ledger/test_machine.py     looks much longer than by default
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from gristmill import Limit, Retries, housekeeping, task
from gristmill.clock import FrozenClock
from gristmill.errors import Invalid, NotFound, NotYours, Refused
from gristmill.housekeeping import carry_out, remove_pending
from gristmill.ledger import again, bulk, chores, queues, workers
from gristmill.ledger.adopt import Adoption, adopt
from gristmill.ledger.claim import Claimed
from gristmill.ledger.exchange import Batch
from gristmill.ledger.finish import Verdict
from gristmill.model import Reason
from gristmill.pruner import Pruner
from gristmill.retention import Rule
from gristmill.schedule import Schedule
from gristmill.states import SUCCESS, TERMINAL, State
from tests.ledger import invariants
from tests.ledger.conftest import empty
from tests.ledger.play import Play, Player, each, end, gate, plain, plan, solo, step
from tests.ledger.test_moment import make

pytestmark = pytest.mark.slow  # of ./run chaos

T = TypeVar("T")
EXAMPLES = int(os.environ.get("GRISTMILL_EXAMPLES", "0"))
SOME = Retries(1, delays=[5], crashes=1, losses=2)

PIPELINES = [
    plan(
        "site",
        find=step(retries=SOME),
        page=each("find", retries=SOME, need=0.5, limit=Limit("page", at_once=2)),
        total=step("page", retries=SOME, limit=Limit("who", per="subject", at_once=1)),
    ),
    plan("join", a=step(need=0), b=step(), both=each("a", "b"), deep=each("both", need=0), end=step("deep", "b")),
    plan("gated", work=step(need=0), ok=gate("work", retries=SOME), after=step("work"), last=step("after", "ok")),
]
for pipeline in PIPELINES:
    for stage in pipeline.stages.values():
        stage.on_terminal = ("INSERT INTO told SELECT id, state FROM jobs",)
DOOR = Limit("door", per="n", at_once=2, breaker=2, cooldown=10)


@task(name="fetch", limit=DOOR, retries=SOME)
def fetch(ctx: Any, n: int = 0) -> None:
    """A job with a limit, whose key is left alone after failures."""


CHOSEN: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 2, "failed": True}, {"key": "*a"}, {"key": "*"}]
)
WHICH = st.integers(0, 30)  # the one to take, of however many there are
# SQLite keeps the row of the highest number for a while, where nobody sees it.
NOT_REMOVED = "SELECT * FROM gm_job WHERE coalesce(stage_id, -1) NOT IN (SELECT stage_id FROM gm_removal)"
SUBJECTS = st.sampled_from(["s", "t"])
VERDICTS = st.sampled_from(list(Verdict))


def pick(things: Sequence[T], which: int) -> T:
    return things[which % len(things)]


@contextmanager
def small_batches() -> Iterator[None]:
    """Batches of two items, so that a few items make several."""
    with ExitStack() as stack:
        for verb in (chores.requeue, chores.prune, chores.take_over):
            stack.enter_context(mock.patch.object(chores, verb.__name__, partial(verb, most=2)))
        yield


class LedgerMachine(RuleBasedStateMachine):
    """Applications, operators, workers on time and workers too late, all on one ledger with a clock that is told."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play = play
        self.play.clock.at = FrozenClock().at
        self.players: list[Player] = []
        self.held: list[tuple[Player, Claimed]] = []
        self.past: list[tuple[Player, Claimed]] = []  # what some worker once held and may still believe to hold
        self.requeued: set[int] = set()
        self.ever_requeued: set[int] = set()
        self.removed_jobs: set[int] = set()
        self.removed_runs: set[int] = set()
        self.last_ids = (0, 0)
        self.jobs: dict[int, Any] = {}
        self.runs: dict[int, Any] = {}
        self.stages: dict[int, Any] = {}

    @initialize(one=WHICH, other=WHICH)
    def begin(self, one: int, other: int) -> None:
        """An empty ledger, two workers and two runs: an example without work shows nothing."""
        empty(self.play.ledger)
        self.play.change("DELETE FROM told")
        self.play.mill._queue_ids.clear()
        self.play.mill._task_ids.clear()
        self.play.mill._usual.clear()
        self.play.mill._limit_ids.clear()
        self.players = [self.play.player() for _ in range(2)]
        self.play.mill.start(pick(PIPELINES, one), "s")
        self.play.mill.start(pick(PIPELINES, other), "t")
        self.players[0].part_kind()  # its name is written once
        self.play.mill.add_schedule(Schedule("job", cron="* * * * *", task=solo))
        self.play.mill.add_schedule(Schedule("run", cron="* * * * *", pipeline="gated", subject="s", catch_up="all"))
        self.play.mill.add_schedule(Schedule("stalest", cron="* * * * *", pipeline="site", not_within=1, batch=2))

    # ---- applications

    @rule(
        which=WHICH,
        subject=SUBJECTS,
        priority=st.sampled_from(["high", "normal", "low"]),
        if_active=st.sampled_from(["join", "wait", "refuse"]),
    )
    def start(self, which: int, subject: str, priority: str, if_active: str) -> None:
        self.allowing(Refused, self.play.mill.start, pick(PIPELINES, which), subject, priority=priority, if_active=if_active)

    @rule(
        which=WHICH,
        subject=SUBJECTS,
        stage=st.integers(0, 2),
        alone=st.booleans(),
        if_active=st.sampled_from(["join", "wait"]),
    )
    def start_a_part(self, which: int, subject: str, stage: int, alone: bool, if_active: str) -> None:
        pipeline = pick(PIPELINES, which)
        first = list(pipeline.stages)[stage]
        only = {first: "*a" if pipeline.stages[first].each else None} if alone else None
        with small_batches():
            self.allowing(Refused, self.play.mill.start, pipeline, subject, from_stage=first, only=only, if_active=if_active)

    @rule(
        unique=st.sampled_from([None, "k"]),
        scope=st.sampled_from(["unfinished", "queued"]),
        delay=st.sampled_from([None, 7]),
    )
    def enqueue(self, unique: str | None, scope: str, delay: float | None) -> None:
        self.play.mill.enqueue(solo, unique=unique, unique_scope=scope, delay=delay, retries=SOME)

    @rule(pass_=st.sampled_from([0, 61, 200]))
    def fire(self, pass_: float) -> None:
        self.play.clock.advance(pass_)
        self.play.mill.scheduler().tick()

    @rule(which=WHICH)
    def start_stalest(self, which: int) -> None:
        self.play.mill.start_stalest(pick(PIPELINES, which), not_within=1)

    @rule(n=st.integers(0, 1), number=st.integers(1, 4), delay=st.sampled_from([None, None, 7]))
    def enqueue_with_a_limit(self, n: int, number: int, delay: float | None) -> None:
        if delay is None:
            self.play.mill.enqueue_many(fetch, [{"n": n}] * number)
        else:
            self.play.mill.enqueue(fetch, args={"n": n}, delay=delay)

    # ---- operators

    @rule(name=st.sampled_from(["door", "page"]), at_once=st.sampled_from([1, 3, None]), default=st.booleans())
    def set_limit(self, name: str, at_once: int | None, default: bool) -> None:
        numbers = None if default else {"at_once": at_once}
        self.allowing(NotFound, self.play.mill.set_limit, name, numbers=numbers)

    @rule(at_once=st.sampled_from([1, 3, None]))
    def limit_queue(self, at_once: int | None) -> None:
        self.play.mill.set_queue("default", limits={"at_once": at_once})

    @precondition(lambda self: self.runs)
    @rule(which=WHICH)
    def cancel_run(self, which: int) -> None:
        self.allowing(Refused, self.play.mill.cancel_run, pick(sorted(self.runs), which))

    @precondition(lambda self: self.jobs)
    @rule(which=WHICH)
    def cancel_job(self, which: int) -> None:
        self.allowing(Refused, self.play.mill.cancel_job, pick(sorted(self.jobs), which))

    @precondition(lambda self: self.jobs)
    @rule(which=WHICH, late=st.booleans())
    def adopt(self, which: int, late: bool) -> None:
        """Reconcile found its work done; or somebody else has taken it since it was asked about."""
        items = [job for job in self.jobs.values() if job.stage_id is not None]
        if items:
            job = pick(items, which)
            found = Adoption(job.id, job.attempt - late, job.run_id, "7")
            done = self.play.ledger.do(adopt, [found], by="me", target="x")
            assert not done or (job.state == State.QUEUED and not late)

    @precondition(lambda self: self.jobs)
    @rule(which=WHICH)
    def requeue(self, which: int) -> None:
        ended = [number for number, job in self.jobs.items() if job.state in TERMINAL]
        number = pick(ended or sorted(self.jobs), which)
        if self.allowing(Refused, self.play.mill.retry_job, number):
            self.requeued |= {number, *self.parts_of(number)}

    @rule(which=WHICH, number=st.integers(1, 3))
    def cancel_many(self, which: int, number: int) -> None:
        """By number, whatever became of them; the others stay."""
        if self.jobs:
            chosen = [pick(sorted(self.jobs), which + n) for n in range(number)]
            self.play.mill.cancel_jobs(ids=chosen)

    @rule(key=st.sampled_from(["a*", "?", "*"]))
    def cancel_by_key(self, key: str) -> None:
        self.play.mill.cancel_jobs(key=key, state="queued")

    @rule()
    def purge_queue(self) -> None:
        self.play.mill.purge_queue("default")

    @rule()
    def run_now(self) -> None:
        self.play.mill.run_jobs_now(older=0)

    @precondition(lambda self: self.jobs)
    @rule(which=WHICH)
    def edit(self, which: int) -> None:
        number = pick(sorted(self.jobs), which)
        if self.jobs[number].run_id is None:
            self.allowing(Refused, self.play.mill.edit_job, number, {"n": which})

    @rule(undo=st.booleans())
    def archive(self, undo: bool) -> None:
        self.play.mill.archive_jobs(older=0, undo=undo)

    @rule(archived=st.booleans())
    def delete_jobs(self, archived: bool) -> None:
        ended = {
            number
            for number, job in self.jobs.items()
            if on_its_own(job) and job.state in TERMINAL and (job.archived_at is not None) == archived
        }
        assert self.play.mill.delete_jobs(older=0, archived=archived).total == len(ended)
        self.removed_jobs |= ended

    @precondition(lambda self: self.runs)
    @rule(which=WHICH)
    def delete_run(self, which: int) -> None:
        run = pick(sorted(self.runs), which)
        ended = self.runs[run].state in TERMINAL
        assert self.play.mill.delete_runs(ids=[run]).counts.get("runs", 0) == ended
        if ended:
            self.removed_runs.add(run)

    @rule(subject=SUBJECTS, which=WHICH, history=st.booleans())
    def purge_subject(self, subject: str, which: int, history: bool) -> None:
        pipeline = pick(PIPELINES, which).name
        self.allowing(NotFound, self.play.mill.purge_subject, pipeline, subject, history=history)
        if history:
            theirs = {run.id for run in self.play.mill.runs(limit=1000)}
            self.removed_runs |= self.runs.keys() - theirs

    @rule(most=st.integers(0, 2))
    def prune(self, most: int) -> None:
        keep = [Rule(tuple(sorted(map(int, TERMINAL))), None, most)]
        subjects = self.play.rows("SELECT last_run_id, last_good_run_id FROM gm_subject")
        pruner = Pruner(self.play.ledger, {}, {}, keep)
        while pruner.tick(0.0) < 3600:
            pass
        left = {run.id for run in self.play.mill.runs(limit=1000)}
        assert {run for row in subjects for run in row if run is not None} <= left
        self.removed_runs |= self.runs.keys() - left
        there = {row.id for row in self.play.rows(NOT_REMOVED)}
        self.removed_jobs |= {n for n, job in self.jobs.items() if on_its_own(job) and n not in there}

    @rule()
    def look_after(self) -> None:
        """What a worker does for commands that did not end."""
        self.play.clock.advance(6)
        with self.play.ledger.reading() as tx:
            orders = bulk.left_alone(tx, 5_000_000)
        for number in orders:
            carry_out(self.play.ledger, number)
        remove_pending(self.play.ledger)
        left = {run.id for run in self.play.mill.runs(limit=1000)}
        self.removed_runs |= self.runs.keys() - left

    @precondition(lambda self: self.runs)
    @rule(which=WHICH, chosen=CHOSEN, dry_run=st.sampled_from([False, False, False, True]))
    def retry_run(self, which: int, chosen: dict[str, Any], dry_run: bool) -> None:
        before = invariants.snapshot(self.play.ledger) if dry_run else None
        self.allowing(Refused, self.play.retry, **self.part_of_a_run(which, chosen), dry_run=dry_run)
        assert before is None or invariants.snapshot(self.play.ledger) == before

    @precondition(lambda self: self.runs)
    @rule(which=WHICH, chosen=CHOSEN)
    def retry_run_and_die(self, which: int, chosen: dict[str, Any]) -> None:
        """A process that dies after the first of its transactions, whose batches are small: others go on with it."""
        with mock.patch.object(housekeeping, "carry_on"), small_batches():
            self.allowing(Refused, self.play.retry, **self.part_of_a_run(which, chosen))

    def part_of_a_run(self, which: int, chosen: dict[str, Any]) -> dict[str, Any]:
        """Of one that has ended, if there is one; stages by their number."""
        ended = [number for number, run in self.runs.items() if run.state in TERMINAL]
        run = pick(ended or sorted(self.runs), which)
        names = sorted(stage.name for stage in self.play.mill.run(run).stages)
        return {"run": run, **chosen, **({"stage": names[chosen["stage"]]} if "stage" in chosen else {})}

    @rule(most=st.integers(1, 3))
    def carry_on(self, most: int) -> None:
        with small_batches(), self.play.ledger.reading() as tx:
            runs = chores.pending(tx)
        for run in runs[:most]:
            self.play.ledger.do(again.carry_on, run)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        (self.play.mill.pause if paused else self.play.mill.resume)("default")

    @rule()
    def reconcile(self) -> None:
        assert {repair.what for repair in self.play.mill.reconcile()} <= {"rescue"}
        self.forget_lost()

    # ---- workers

    @rule(which=WHICH, most=st.integers(1, 6))
    def claim(self, which: int, most: int) -> None:
        player = pick(self.players, which)
        for job in self.allowing(NotYours, player.take, most) or ():
            self.held.append((player, job))

    @rule(
        which=WHICH, keys=st.lists(st.sampled_from("abcd"), max_size=3, unique=True), bad=st.sampled_from([None, *Verdict])
    )
    def work(self, which: int, keys: list[str], bad: Verdict | None) -> None:
        """A worker's whole turn: all that is ready, items included, where all goes well but perhaps for the first job."""
        player = pick(self.players, which)
        jobs = self.allowing(NotYours, player.take) or []
        for job in jobs:
            if job.stage_id is not None:
                player.emit(job, *(f"{self.play.stage_name(job)}{key}" for key in keys))
        unlucky = jobs[:1] if bad else []
        outcomes = [end(job, bad, reason="why", delay=3.0) for job in unlucky if bad]
        late = player.report(Batch(completed=plain(*jobs[len(unlucky) :]), outcomes=outcomes)) if jobs else []
        assert {job.run_id for job in jobs if job.id in late} <= self.retried()  # a producer gave them otherwise just now
        self.past = (self.past + [(player, job) for job in jobs])[-20:]

    @precondition(lambda self: self.held)
    @rule(which=WHICH, verdict=VERDICTS)
    def finish(self, which: int, verdict: Verdict) -> None:
        player, job = pick(self.held, which)
        refused = self.allowing(NotYours, player.end, job, verdict, reason="why", delay=3.0, result='"r"')
        assert refused == []
        self.let_go([(player, job)])

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def finish_all(self, which: int) -> None:
        player, _ = pick(self.held, which)
        mine = [pair for pair in self.held if pair[0] is player]
        assert player.complete(*(job for _, job in mine)) == []
        self.let_go(mine)

    @precondition(lambda self: self.held and self.past)
    @rule(which=WHICH, late=WHICH, verdict=VERDICTS)
    def finish_with_a_late_one(self, which: int, late: int, verdict: Verdict) -> None:
        """A batch of one that is this worker's and one that is not any more."""
        player, job = pick(self.held, which)
        _, old = pick(self.past, late)
        if old.id == job.id:
            return  # no worker says two things of one job in one breath
        refused = player.report(Batch(completed=plain(old), outcomes=[end(job, verdict, reason="why", delay=3.0)]))
        assert refused == [old.id]
        self.let_go([(player, job)])

    @precondition(lambda self: self.past)
    @rule(which=WHICH, verdict=VERDICTS)
    def finish_late(self, which: int, verdict: Verdict) -> None:
        player, job = pick(self.past, which)
        before = invariants.snapshot(self.play.ledger)
        refused = self.allowing(NotYours, player.end, job, verdict, reason="late", result='"late"')
        assert refused in (None, [job.id])
        assert invariants.snapshot(self.play.ledger) == before

    @precondition(lambda self: self.held)
    @rule(which=WHICH, keys=st.lists(st.sampled_from("abcd"), max_size=4, unique=True))
    def emit(self, which: int, keys: list[str]) -> None:
        player, job = pick(self.held, which)
        if job.run_id is not None:
            player.emit(job, *keys)  # a key twice is refused, and counted once

    @precondition(lambda self: self.past)
    @rule(which=WHICH)
    def emit_late(self, which: int) -> None:
        player, job = pick(self.past, which)
        before = invariants.snapshot(self.play.ledger)
        if job.run_id is not None:
            refused = self.allowing(NotYours, player.emit, job, "late")
            assert refused in (None, {job.id: "not yours any more"})
        assert invariants.snapshot(self.play.ledger) == before

    @precondition(lambda self: self.held)
    @rule(which=WHICH, keys=st.lists(st.sampled_from("abc"), max_size=3), n=st.integers(0, 1), wait=st.booleans())
    def hand_over(self, which: int, keys: list[str], n: int, wait: bool) -> None:
        """Parts, the same ones again, the same with other arguments; and perhaps the job waits for them then."""
        player, job = pick(self.held, which)
        if keys and self.tries((Invalid, Refused), player.hand_over, job, *keys, args=str(n)):
            again = self.parts_of(job.id)
            self.requeued |= again
            self.let_go([pair for pair in self.held if pair[1].id in again and not self.holds(*pair)])
        if wait:
            assert player.end(job, Verdict.WAITING) == []
            self.let_go([(player, job)])

    @precondition(lambda self: self.past)
    @rule(which=WHICH)
    def hand_over_late(self, which: int) -> None:
        player, job = pick(self.past, which)
        before = invariants.snapshot(self.play.ledger)
        with pytest.raises((NotYours, Refused)):
            player.hand_over(job, "late")
        assert invariants.snapshot(self.play.ledger) == before

    @rule(which=WHICH)
    def heartbeat(self, which: int) -> None:
        self.allowing(NotYours, pick(self.players, which).heartbeat)

    @rule(which=WHICH)
    def leave_and_come_back(self, which: int) -> None:
        self.allowing(NotYours, self.play.ledger.do, workers.leave, pick(self.players, which).id)
        self.replace(which)

    @rule(which=WHICH)
    def lose_its_hands(self, which: int) -> None:
        """A claim whose COMMIT got no answer: the worker does not know what it holds, and gives it back."""
        player = pick(self.players, which)
        mine = [pair for pair in self.held if pair[0] is player]
        self.allowing(NotYours, self.play.ledger.do, workers.release_strays_of, player.id, held=set())
        self.let_go(mine)

    # ---- time, and what everyone does for all

    @rule(seconds=st.sampled_from([1, 6, 20, 31]))
    def wait(self, seconds: float) -> None:
        self.play.clock.advance(seconds)

    @rule()
    def keep_to_limits(self) -> None:
        housekeeping.go_on_within_limits(self.play.ledger, everything=True)

    @rule(most=st.integers(1, 3))
    def promote(self, most: int) -> None:
        self.play.ledger.do(queues.promote, most)

    @rule(which=WHICH, gone=st.booleans())
    def rescue(self, which: int, gone: bool) -> None:
        self.play.ledger.do(workers.rescue, pick(self.players, which).id, gone=gone)
        self.forget_lost()

    @rule()
    def sweep(self) -> None:
        self.play.sweep()

    @rule()
    def ask_why(self) -> None:
        """Wherever a run is, there is a reason for it, and one that fits its state."""
        for run in self.play.mill.runs(limit=20):
            reason = self.play.mill.why(run=run.id).reason
            assert reason is not Reason.INCONSISTENT
            assert (reason is Reason.FINISHED) == run.terminal
            assert (reason is Reason.BEHIND_RUN) == (run.state == "waiting")
        for job in self.play.mill.jobs(limit=20):
            held = {Reason.IN_PROGRESS, Reason.STOPPING, Reason.WORKER_SILENT}
            reason = self.play.mill.why(job=job.id).reason
            assert (reason is Reason.FINISHED) == (job.finished_at is not None)
            assert reason in held or job.state != "in_progress"

    # ---- keeping up with it

    def allowing(self, error: type[Exception], call: Callable[..., T], *args: Any, **options: Any) -> T | None:
        try:
            return call(*args, **options)
        except error:
            return None

    def tries(self, errors: tuple[type[Exception], ...], call: Callable[..., object], *args: Any, **options: Any) -> bool:
        try:
            call(*args, **options)
        except errors:
            return False
        return True

    def parts_of(self, job: int) -> set[int]:
        return {part.id for part in self.play.mill.jobs(part_of=job, limit=1000)}

    def holds(self, player: Player, job: Claimed) -> bool:
        """Is it still this worker's? A part that is asked for with other arguments is taken away from whoever has it."""
        row = self.play.mill.job(job.id)
        return (row.state, row.worker, row.attempt) == ("in_progress", player.id, job.attempt)

    def let_go(self, pairs: Sequence[tuple[Player, Claimed]]) -> None:
        self.held = [pair for pair in self.held if pair not in pairs]
        self.past = (self.past + list(pairs))[-20:]

    def forget_lost(self) -> None:
        active = {worker.id for worker in self.play.mill.workers()}
        for which, player in enumerate(list(self.players)):
            if player.id not in active:
                self.replace(which)

    def replace(self, which: int) -> None:
        gone = pick(self.players, which)
        self.let_go([pair for pair in self.held if pair[0] is gone])
        self.players[which % len(self.players)] = self.play.player()

    # ---- what must hold after every step

    @invariant()
    def the_ledger_is_consistent(self) -> None:
        invariants.check(self.play.ledger)

    @invariant()
    def history_is_not_rewritten(self) -> None:
        jobs = {row.id: row for row in self.play.rows(NOT_REMOVED)}
        for number, was in self.jobs.items():
            part_of_removed = was.stage_id is None and was.parent_id in self.removed_jobs
            if number in self.removed_jobs or was.run_id in self.removed_runs or part_of_removed:
                assert number not in jobs
                continue
            assert number in jobs
            assert jobs[number].attempt >= was.attempt
            if was.state in TERMINAL and number not in self.requeued and ended(jobs[number]) != ended(was):
                self.was_part_of_a_retry(was, jobs[number])
        runs = {row.id: row for row in self.play.rows("SELECT * FROM gm_run")}
        retried = {number for number, run in self.runs.items() if number in runs and runs[number].epoch != run.epoch}
        for number, run in self.runs.items():
            if number in self.removed_runs:
                assert number not in runs
                continue
            assert runs[number].epoch >= run.epoch
            assert number in retried or run.state not in TERMINAL or tuple(runs[number]) == tuple(run)
        begun = {number for number, run in runs.items() if run.state != State.WAITING}  # others may still be planned anew
        stages = {row.id: row for row in self.play.rows("SELECT * FROM gm_stage") if row.run_id in begun}
        for number, stage in self.stages.items():
            if stage.run_id in self.removed_runs:
                continue
            assert stage.run_id in retried or stages[number].state >= stage.state
            assert stage.run_id in retried or stages[number].waiting_for <= stage.waiting_for
        self.no_number_is_given_twice(jobs, runs)
        self.jobs, self.runs, self.stages = jobs, runs, stages
        self.ever_requeued |= self.requeued
        self.requeued.clear()
        self.application_was_told_of_every_end()

    def application_was_told_of_every_end(self) -> None:
        told = Counter((row.job, row.state) for row in self.play.rows("SELECT job, state FROM told"))
        retried = self.retried()
        for number, job in self.jobs.items():
            over = {(number, State(job.state).word): 1} if job.stage_id is not None and job.state in TERMINAL else {}
            if number in self.ever_requeued or job.run_id in retried:
                assert told.keys() >= over.keys()
            else:
                assert {end: n for end, n in told.items() if end[0] == number} == over

    def no_number_is_given_twice(self, jobs: Collection[int], runs: Collection[int]) -> None:
        """New ones have higher numbers than all that ever were."""
        new = (set(jobs) - self.jobs.keys(), set(runs) - self.runs.keys())
        assert all(number > last for numbers, last in zip(new, self.last_ids, strict=True) for number in numbers)
        most = (max(jobs, default=0), max(runs, default=0))
        self.last_ids = (max(self.last_ids[0], most[0]), max(self.last_ids[1], most[1]))

    def was_part_of_a_retry(self, was: Any, now: Any) -> None:
        """An ended job changes only if its run was retried: it is queued again, or an attempt later something else."""
        assert was.run_id in self.retried()
        queued_again = now.state == State.QUEUED and now.epoch is not None
        assert queued_again or now.attempt > was.attempt

    @invariant()
    def what_workers_hold_is_theirs(self) -> None:
        """Unless a retry of the run took it from them: then they do not know it yet."""
        retried = self.retried()
        for player, job in list(self.held):
            row = self.jobs[job.id]
            if (row.state, row.worker_id, row.attempt) != (State.IN_PROGRESS, player.id, job.attempt):
                assert job.run_id in retried
                self.let_go([(player, job)])

    def retried(self) -> set[int | None]:
        """Runs that were ever retried."""
        return {row.id for row in self.play.rows("SELECT id FROM gm_run WHERE epoch > 1")}

    # ---- the end: whatever happened, the rest can be done

    def teardown(self) -> None:
        self.play.mill.resume("default")
        self.play.mill.set_queue("default", limits={"at_once": None})
        for player in self.players:
            self.play.ledger.do(workers.rescue, player.id, gone=True)
        self.play.drain_later()
        invariants.check(self.play.ledger)
        assert self.play.unfinished() == 0
        assert all(run.terminal for run in self.play.mill.runs(limit=1000))
        self.good_runs_got_what_they_need()

    def good_runs_got_what_they_need(self) -> None:
        for run in self.play.mill.runs(limit=1000):
            if run.state == "completed" and run.reason is None:
                assert all(stage.done == stage.total for stage in run.stages)
                assert all(stage.outcome in {s.word for s in SUCCESS} for stage in run.stages)


def on_its_own(job: Any) -> bool:
    return job.run_id is None and job.parent_id is None


def ended(job: Any) -> tuple[Any, ...]:
    """All of an ended job but who emitted it last: a retry of its producer may say the same again; and if it is listed."""
    return tuple(value for name, value in job._mapping.items() if name not in {"parent_attempt", "archived_at"})


@pytest.mark.timeout(3600 if EXAMPLES else 600)  # Hypothesis would take an interruption for a failure, and shorten that
def test_no_sequence_of_verbs_breaks_an_invariant(database_url: str) -> None:
    by_default = 60 if database_url.startswith("sqlite") else 12
    play = Play(database_url, [*PIPELINES, fetch])
    make(play, "told", "job bigint, state text")
    try:
        run_state_machine_as_test(
            lambda: LedgerMachine(play),  # type: ignore[arg-type]  # it only calls it
            settings=settings(
                max_examples=EXAMPLES or by_default,
                stateful_step_count=30,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        empty(play.ledger, "DROP TABLE told")
        play.close()
