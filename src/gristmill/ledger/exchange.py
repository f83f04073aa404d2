"""A worker's whole turn in one transaction: what its children emitted and finished, and new jobs for them.

One commit instead of three: on both databases the commit is what costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from gristmill.ledger import flow, limits
from gristmill.ledger.claim import Claimed, Kind, Taken, Want, may_start, take
from gristmill.ledger.emit import Added, Emission, Refusal, add_items
from gristmill.ledger.finish import Completed, Outcome, Verdict, forget_claims, runs_of, settle, skip_late
from gristmill.ledger.hold import hold
from gristmill.ledger.store import Tx, repeatable


@dataclass
class Batch:
    """What a worker's children reported and the ledger does not know yet."""

    emissions: list[Emission] = field(default_factory=list)
    completed: Completed = field(default_factory=Completed)
    outcomes: list[Outcome] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # jobs whose own transaction has ended them; only their claims are left
    ended_claims: list[int] = field(default_factory=list)
    careful: bool = False  # take no short cuts: one of them was refused

    def __bool__(self) -> bool:
        return bool(self.emissions or self.completed or self.outcomes or self.written or self.ended_claims)

    def add(self, other: Batch) -> None:
        self.emissions += other.emissions
        self.completed.add(other.completed)
        self.outcomes += other.outcomes
        self.written += other.written
        self.ended_claims += other.ended_claims

    def jobs(self) -> list[int]:
        """The jobs whose end is in here."""
        return [row[0] for row in self.completed.rows] + [outcome.job for outcome in self.outcomes] + self.written

    def begun(self) -> set[int]:
        """Those of them that have run, whatever became of it."""
        unspent = {outcome.job for outcome in self.outcomes if outcome.verdict is Verdict.RELEASED}
        return set(self.jobs()) - unspent

    def split(self, emissions: int) -> tuple[Batch, Batch]:
        """Two batches, the first with so many emissions. Jobs whose items are in the second end there too."""
        if emissions == len(self.emissions):
            return self, Batch()
        later = self.emissions[emissions:]
        jobs = {emission.job for emission in later}
        ends = [outcome for outcome in self.outcomes if outcome.job in jobs]
        others = [outcome for outcome in self.outcomes if outcome.job not in jobs]
        first = Batch(self.emissions[:emissions], self.completed, others, self.written)
        return first, Batch(later, Completed(), ends, ended_claims=self.ended_claims)

    def spelled_out(self) -> Batch:
        """The same with every plain completion as an outcome: slower, but each one is answered for itself."""
        outcomes = self.outcomes + self.completed.spelled_out()
        return Batch(self.emissions, Completed(), outcomes, self.written, self.ended_claims, careful=True)


class Exchanged(NamedTuple):
    refused_items: dict[int, Refusal]  # producers that must stop, and why
    late: list[int]  # jobs that were not this worker's any more
    taken: Taken | None  # None: nothing was asked for
    due: int | None = None  # microseconds until a limit lets something go on by itself
    waited: float = 0.0  # seconds for others who finish jobs of the same runs


Meet = Callable[[Tx, Collection[Kind]], None]


def nobody(tx: Tx, kinds: Collection[Kind]) -> None: ...


@repeatable  # outcomes are fenced, batches of items numbered, and claims that nobody knows of are released as strays
def exchange(
    tx: Tx,
    worker: int,
    batch: Batch,
    wants: Sequence[Want] = (),
    room: Mapping[int, int] = MappingProxyType({}),
    meet: Meet = nobody,
) -> Exchanged:
    """`meet` is called with the kinds of the jobs that were taken, to read here what it does not know of them."""
    hold(tx, worker, leased=bool(wants))
    if not batch:
        return Exchanged({}, [], _taken(tx, worker, wants, room, [], meet) if wants else None, tx.due)
    before = time.monotonic()
    runs = flow.lock_runs(tx, {e.run for e in batch.emissions} | runs_of(batch.outcomes, batch.completed))
    waited = time.monotonic() - before
    if batch.emissions and any(outcome.guards for outcome in batch.outcomes):
        batch = _without_late(tx, batch)
    refused_items, started = _add_items(tx, worker, batch, runs, wants, room) if batch.emissions else ({}, [])
    outcomes = batch.outcomes
    if refused_items:
        batch = batch.spelled_out()
        outcomes = [refused(o, refused_items[o.job]) if o.job in refused_items else o for o in batch.outcomes]
    late = settle(tx, worker, outcomes, batch.completed, runs) if outcomes or batch.completed else []
    forget_claims(tx, worker, batch.ended_claims)
    limits.settle(tx)
    taken = _taken(tx, worker, wants, room, started, meet) if wants else None
    return Exchanged(refused_items, late, taken, tx.due, waited)


def _taken(
    tx: Tx, worker: int, wants: Sequence[Want], room: Mapping[int, int], started: Sequence[Claimed], meet: Meet
) -> Taken:
    taken = take(tx, worker, wants, room, started)
    if any(kind.limited for kind in taken.kinds):
        limits.follow(tx, (job.id for job in taken.jobs if job.kind.limited))
    if taken.kinds:
        meet(tx, taken.kinds)
    return taken


def _without_late(tx: Tx, batch: Batch) -> Batch:
    """What is passed on by a job that is skipped, since something newer was applied, goes with it."""
    outcomes = list(skip_late(tx, batch.outcomes))
    late = {new.job for old, new in zip(batch.outcomes, outcomes, strict=True) if new is not old}
    return replace(batch, emissions=[e for e in batch.emissions if e.job not in late], outcomes=outcomes)


def _add_items(
    tx: Tx, worker: int, batch: Batch, runs: flow.LockedRuns, wants: Sequence[Want], room: Mapping[int, int]
) -> Added:
    """Items that this worker has room for, and that nobody stands in line before, start at once."""
    start = partial(may_start, tx, wants, room)
    return add_items(tx, worker, batch.emissions, runs, careful=batch.careful, may_start=start)


def refused(outcome: Outcome, why: Refusal) -> Outcome:
    """A job whose items were refused did not complete."""
    verdict = Verdict.CANCELLED if why.stopped else Verdict.PERMANENT
    return outcome._replace(verdict=verdict, reason=why.reason, result=None, error_class="Invalid")
