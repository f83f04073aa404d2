"""Plays a worker against a ledger without any processes: register, take jobs, say how they ended.

play = Play(url, plan("site", find=step(), page=each("find"), total=step("page")), clock=clock)
run = play.mill.start("site", "example.org")
play.drain(items={"find": ["a", "b"]}, verdicts={"page/a": Verdict.PERMANENT})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import text

from gristmill import Mill, Pipeline, Retries, task
from gristmill.clock import FrozenClock, micros
from gristmill.housekeeping import carry_on, go_on_within_limits, sweep_parts, sweep_run
from gristmill.ledger import chores, limits, parts, queues, stop, workers
from gristmill.ledger.claim import Claimed, Kind, Lane, Origin, Want, claim
from gristmill.ledger.emit import Emission, Item, SomeTwice
from gristmill.ledger.exchange import Batch, Exchanged, exchange
from gristmill.ledger.finish import Completed, Outcome, SomeRefused, Verdict, finish
from gristmill.ledger.moment import Ended
from gristmill.ledger.workers import Registration
from gristmill.model import RetriedRun, Run

LEASE = 30.0

Items = Mapping[str, Sequence[str | Item] | Callable[[Claimed], Sequence[str | Item]]]
Verdicts = Mapping[str, Verdict | Callable[[Claimed], Verdict]]


# ---- pipelines in one line


@dataclass(frozen=True)
class Step:
    kind: str
    after: tuple[str, ...]
    options: Mapping[str, Any]


def step(*after: str, **options: Any) -> Step:
    return Step("stage", after, options)


def each(*after: str, **options: Any) -> Step:
    return Step("stage", after, {**options, "each": True})


def gate(*after: str, **options: Any) -> Step:
    return Step("gate", after, options)


def nothing(ctx: Any) -> None:
    """What a stage does here is decided by the test, not by a function."""


def plan(name: str, /, **steps: Step) -> Pipeline:
    pipeline = Pipeline(name)
    for stage, made in steps.items():
        decorate = pipeline.gate if made.kind == "gate" else pipeline.stage
        decorate(after=list(made.after), name=stage, **made.options)(nothing)
    return pipeline


@task(name="solo")
def solo(ctx: Any, n: int = 0, word: str = "") -> None:
    """A job on its own."""


@task(name="stubborn", retries=Retries(3, delays=[10, 20], timeouts=1, crashes=2, losses=1))
def stubborn(ctx: Any) -> None:
    """A job on its own that is tried again."""


@solo.part(name="page", retries=Retries(1, delays=[5], losses=1))
def solo_page(ctx: Any) -> None:
    """What the parts of a job are here."""


PART_SPEC = orjson.dumps(solo_page.spec()).decode()


# ---- a worker without processes


def remembered(number: int, attempt: int = 1, **known: Any) -> Claimed:
    """A claim as some worker remembers it, whether it still holds or never did."""
    kind = Kind(**{"origin": Origin(None, None)} | dict.fromkeys(Kind._fields[1:], 0) | known)
    return Claimed(number, attempt, None, None, kind, 0)


def end(job: Claimed, verdict: Verdict = Verdict.COMPLETED, **details: Any) -> Outcome:
    return Outcome(job.id, job.attempt, job.run_id, verdict, part_of=job.part_of, **details)


def plain(*jobs: Claimed, result: str | None = None) -> Completed:
    """Plain completions, in the short form that workers use for nearly every job."""
    rows = [(job.id, job.attempt, result, 0) for job in jobs]
    unique = [job.id for job in jobs if job.kind.unique_scope is not None]
    limited = [job.id for job in jobs if job.kind.limited]
    watched = [Ended(job.id, job.task_id) for job in jobs]
    made = Completed(rows, [job.kind.origin for job in jobs], unique, watched, limited)
    made.time([job.kind for job in jobs], [0] * len(jobs), [job.waited for job in jobs])
    return made


class Player:
    """One worker: what it takes and what it says about it."""

    def __init__(self, play: Play, lease: float = LEASE, queues: Sequence[str] = (), **has: Any) -> None:
        self.play = play
        self.ledger = play.ledger
        who = Registration("elsewhere", 1, "never", queues, 1, "test")._replace(**has)
        self.id: int = self.ledger.do(workers.register, who, micros(lease))
        self._batches: Counter[tuple[int, int]] = Counter()

    def take(self, most: int = 1000, *, queues: Iterable[str] | None = None) -> list[Claimed]:
        """Up to `most` ready jobs of all (or the named) queues, the urgent ones first."""
        ids = self.play.queue_ids()
        limits = {row.id: row.limit_id for row in self.play.rows("SELECT id, limit_id FROM gm_queue")}
        wanted = [ids[name] for name in queues] if queues is not None else sorted(ids.values())
        wants = [
            Want(pool, most, tuple(Lane(queue, pool, p, limit_id=limits[queue]) for p in (0, 1, 2) for queue in wanted))
            for pool in (0, 1)
        ]
        return self.ledger.do(claim, self.id, wants, {0: most, 1: most}).jobs

    def take_one(self) -> Claimed:
        (job,) = self.take(1)
        return job

    def finish(self, *outcomes: Outcome) -> list[int]:
        return self.ledger.do(finish, self.id, outcomes)

    def end(self, job: Claimed, verdict: Verdict = Verdict.COMPLETED, **details: Any) -> list[int]:
        return self.finish(end(job, verdict, **details))

    def report(self, batch: Batch) -> list[int]:
        """Writes a batch as a worker does: all at once, and spelled out if some of it is refused."""
        return self.exchange(batch).late

    def exchange(self, batch: Batch) -> Exchanged:
        try:
            return self.ledger.do(exchange, self.id, batch)
        except (SomeRefused, SomeTwice):
            return self.ledger.do(exchange, self.id, batch.spelled_out())

    def complete(self, *jobs: Claimed, result: str | None = None) -> list[int]:
        return self.report(Batch(completed=plain(*jobs, result=result)))

    def emit(self, job: Claimed, *items: str | Item) -> dict[int, str]:
        """Says which producers must stop (at most this one), and why."""
        refused = self.exchange(Batch(emissions=[self.batch_of(job, *items)])).refused_items
        return {producer: refusal.reason for producer, refusal in refused.items()}

    def batch_of(self, job: Claimed, *items: str | Item) -> Emission:
        """The next batch of items of this attempt."""
        assert job.run_id is not None
        self._batches[job.id, job.attempt] += 1
        made = [Item(item, None) if isinstance(item, str) else item for item in items]
        return Emission(job.id, job.attempt, job.run_id, self._batches[job.id, job.attempt], made)

    def hand_over(self, job: Claimed, *keys: str, args: str | None = None, task: str = "part") -> None:
        """Parts of a job that this worker holds, as its attempt hands them over."""
        self.ledger.do(parts.hand_over, self.id, job.id, job.attempt, self.part_kind(task), [(key, args) for key in keys])

    def part_kind(self, task: str = "part") -> parts.PartKind:
        return parts.kind_of(self.ledger, task, (), PART_SPEC, "default", 0)

    def split(self, job: Claimed, *keys: str, **how: Any) -> None:
        """The same, and then it waits for them."""
        self.hand_over(job, *keys, **how)
        assert self.end(job, Verdict.WAITING) == []

    def heartbeat(self, lease: float = LEASE) -> None:
        self.ledger.do(workers.heartbeat, self.id, micros(lease))


# ---- the whole stage


@dataclass
class Play:
    """A mill, its clock, and short ways to look at rows."""

    url: str
    parts: Sequence[Any]
    clock: FrozenClock = field(default_factory=FrozenClock)
    consistent: bool = True  # a test that damages rows and leaves them so says no

    def __post_init__(self) -> None:
        self.mill = Mill.open(self.url, *self.parts, solo, stubborn, clock=self.clock)
        self.ledger = self.mill.ledger
        self.ran: list[str] = []  # "stage" or "stage/key" of every attempt that `drain` ended
        self._stages: dict[int, str] = {}

    def close(self) -> None:
        self.mill.close()

    def player(self, **options: Any) -> Player:
        return Player(self, **options)

    # ---- looking

    def rows(self, sql: str, **values: Any) -> list[Any]:
        with self.ledger.engine.connect() as connection:
            return list(connection.execute(text(sql), values))

    def value(self, sql: str, **values: Any) -> Any:
        return self.rows(sql, **values)[0][0]

    def change(self, sql: str, **values: Any) -> int:
        """Raw SQL behind the ledger's back: damage, for tests of repair and of constraints."""
        with self.ledger.engine.connect() as connection:
            count: int = connection.execute(text(sql), values).rowcount
            connection.commit()
        return count

    def queue_ids(self) -> dict[str, int]:
        return {row.name: row.id for row in self.rows("SELECT id, name FROM gm_queue")}

    def stage_name(self, job: Claimed) -> str:
        if job.stage_id is None:
            return "-"
        if job.stage_id not in self._stages:
            self._stages.update({row.id: row.name for row in self.rows("SELECT id, name FROM gm_stage")})
        return self._stages[job.stage_id]

    def label(self, job: Claimed) -> str:
        return f"{self.stage_name(job)}/{job.key}" if job.key else self.stage_name(job)

    def labelled(self, jobs: Iterable[Claimed]) -> dict[str, Claimed]:
        return {self.label(job): job for job in jobs}

    def counters(self, run: int, stage: str) -> tuple[int, int, int, int, int]:
        """(total, completed, failed, skipped, cancelled)"""
        s = self.mill.run(run).stage(stage)
        return s.total, s.completed, s.failed, s.skipped, s.cancelled

    def stage_states(self, run: int) -> dict[str, str]:
        return {stage.name: stage.state for stage in self.mill.run(run).stages}

    # ---- moving

    def drain(self, player: Player | None = None, *, items: Items | None = None, verdicts: Verdicts | None = None) -> None:
        """Plays everything that is ready, stage by stage, until nothing is. Stopped runs are swept."""
        player = player or self.player()
        while self.turn(player, items or {}, verdicts or {}) or self.sweep() or self.carry_on():
            pass

    def drain_later(self, **script: Any) -> None:
        """The same, and what is delayed too: the clock goes to when it is due."""
        while True:
            self.drain(**script)
            with self.ledger.reading() as tx:
                times = [at for at in (queues.next_due(tx), limits.due(tx)[1]) if at is not None]
            if not times:
                return
            self.clock.at += max(0, min(times))
            self.ledger.do(queues.promote)
            go_on_within_limits(self.ledger, everything=True)

    def turn(self, player: Player, items: Items, verdicts: Verdicts) -> bool:
        """One claim, and the end of all that it took."""
        jobs = player.take()
        for job in jobs:
            self.ran.append(self.label(job))
            keys = items.get(self.label(job), items.get(self.stage_name(job), ()))
            chosen = keys(job) if callable(keys) else keys
            if chosen:
                assert player.emit(job, *chosen) == {}
        ends = [(job, self._verdict(job, verdicts)) for job in jobs]
        completed = plain(*(job for job, verdict in ends if verdict is Verdict.COMPLETED))
        others = [end(job, verdict) for job, verdict in ends if verdict is not Verdict.COMPLETED]
        assert player.report(Batch(completed=completed, outcomes=others)) == []
        return bool(jobs)

    def _verdict(self, job: Claimed, verdicts: Verdicts) -> Verdict:
        chosen = verdicts.get(self.label(job), verdicts.get(self.stage_name(job), Verdict.COMPLETED))
        return chosen if isinstance(chosen, Verdict) else chosen(job)

    def sweep(self) -> int:
        """Sweeps every run, and every job, that is being stopped; says how many jobs that ended."""
        with self.ledger.reading() as tx:
            stopping, ending = stop.stopping_runs(tx), parts.ending(tx)
        before = self.unfinished()
        for job in ending:
            sweep_parts(self.ledger, job)
        for run in stopping:
            sweep_run(self.ledger, run)
        return before - self.unfinished()

    def retry(self, run: Run | int, **which: Any) -> RetriedRun:
        return self.mill.retry_run(run if isinstance(run, int) else run.id, **which)

    def carry_on(self) -> bool:
        """Does what retries have left to do, as every worker does; says whether there was anything."""
        with self.ledger.reading() as tx:
            runs = chores.pending(tx)
        for run in runs:
            carry_on(self.ledger, run)
        return bool(runs)

    def unfinished(self) -> int:
        count: int = self.value("SELECT count(*) FROM gm_job WHERE finished_at IS NULL")
        return count

    def run(self, run: Run) -> Run:
        return self.mill.run(run.id)
