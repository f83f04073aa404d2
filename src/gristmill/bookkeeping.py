"""What a worker writes into the ledger after each turn, and what it says of it in its log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gristmill import reports, traces
from gristmill.clock import SECOND
from gristmill.delivery.protocol import Delivery
from gristmill.demand import labels_of
from gristmill.errors import DatabaseError, Unavailable
from gristmill.identity import born, host
from gristmill.ledger import infos, limits, tracing, workers
from gristmill.ledger.claim import Kind, Taken, Want
from gristmill.ledger.emit import Refusal, SomeTwice
from gristmill.ledger.exchange import Batch, Exchanged, Meet, exchange, nobody, refused
from gristmill.ledger.finish import Outcome, SomeRefused, Verdict
from gristmill.ledger.grab import grab, lines_of
from gristmill.ledger.store import Ledger, repeatable
from gristmill.ledger.tx import Tx
from gristmill.settings import VERSION, WorkerSettings
from gristmill.states import State

log = logging.getLogger("gristmill.worker")

_NO_ROOM: Mapping[int, int] = MappingProxyType({})
_QUIET = (Verdict.COMPLETED, Verdict.UNCHANGED, Verdict.RELEASED, Verdict.LATER, Verdict.WAITING, Verdict.SKIPPED)
_NEXT = {State.FAILED: "; failed for good", State.QUEUED: "; again now", State.IN_PROGRESS: "; again now"}


def introduction(settings: WorkerSettings, queues: Sequence[str], delivery: str) -> workers.Registration:
    """What this process says about itself as a worker."""
    me = (host(), os.getpid(), born(os.getpid()) or "")
    has = (labels_of(settings.labels, "labels"), settings.slots_of(), settings.jobs_mib)
    return workers.Registration(*me, queues, settings.slots, VERSION, *has, delivery)


def for_children(settings: WorkerSettings, sources: Sequence[str], ledger: Ledger, delivery: Delivery) -> dict[str, Any]:
    """What a child is told when it starts."""
    return {
        "sources": list(sources),
        "path": sys.path,
        "database": ledger.absolute_url,
        "delivery": [delivery.name, delivery.url],
        "memory_mib": settings.memory_mib,
        "at_once": settings.async_slots,
        "debug": settings.debug,
        "log_json": settings.log_json,
    }


def write(ledger: Ledger, worker: int, batch: Batch, *asked: Any) -> Exchanged:
    """Exchanges a batch for new jobs; then, if traces are on, tells what ended, and remembers what was taken."""
    done = _write(ledger, worker, batch, *asked)
    if (tracer := traces.tracer()) is not None:
        _trace(ledger, tracer, batch, done)
    return done


def _trace(ledger: Ledger, tracer: traces.Tracer, batch: Batch, done: Exchanged) -> None:
    for job in done.late:
        tracer.forget(job)
    for number, attempt, _, ran in batch.completed.rows:
        tracer.ended(number, attempt, Verdict.COMPLETED, ran)
    for o in batch.outcomes:
        if o.verdict is Verdict.RELEASED:
            tracer.forget(o.job)
        else:
            tracer.ended(o.job, o.attempt, o.verdict, o.ran, o.reason)
    for number in batch.written:
        tracer.ended_by_itself(number)
    if done.taken is not None and done.taken.jobs:
        with contextlib.suppress(DatabaseError):  # then they are not told of
            tracer.took(ledger.glance(tracing.attempts, [job.id for job in done.taken.jobs]))


def _write(
    ledger: Ledger,
    worker: int,
    batch: Batch,
    wants: Sequence[Want] = (),
    room: Mapping[int, int] = _NO_ROOM,
    meet: Meet = nobody,
    knows: Callable[[Collection[Kind]], bool] = lambda kinds: False,
) -> Exchanged:
    """What cannot be stored does not take the rest of the batch with it.

    `knows`: is there nothing that `meet` would do about jobs of these kinds?
    """
    try:
        if not batch and not ledger.is_sqlite and (lines := lines_of(wants, room)) is not None:  # SQLite has no round trips
            taken = ledger.glance(grab, worker, lines)
            strange = taken.jobs and not knows(taken.kinds)
            return Exchanged({}, [], taken, ledger.do(_follow_up, taken, meet) if strange else None)
        try:
            return ledger.do(exchange, worker, batch, wants, room, meet)
        except (SomeRefused, SomeTwice):
            return ledger.do(exchange, worker, batch.spelled_out(), wants, room, meet)
    except Unavailable:
        raise
    except DatabaseError:
        # Something in the batch cannot be stored. Find it, so that it does not take the others with it.
        log.exception("a batch was refused by the database; writing it one by one")
        return _one_by_one(ledger, worker, batch.spelled_out())


@repeatable
def _follow_up(tx: Tx, taken: Taken, meet: Meet) -> int | None:
    """What `exchange` does about jobs that were taken, when that is done already. Says what is due, as that does."""
    limits.follow(tx, (job.id for job in taken.jobs if job.kind.limited))
    meet(tx, taken.kinds)
    return tx.due


def _one_by_one(ledger: Ledger, worker: int, batch: Batch) -> Exchanged:
    refused_items: dict[int, Refusal] = {}
    late: list[int] = []
    for emission in batch.emissions:
        try:
            refused_items.update(ledger.do(exchange, worker, Batch([emission], careful=True)).refused_items)
        except Unavailable:
            raise
        except DatabaseError as error:
            refused_items[emission.job] = Refusal(f"the database refused its items: {error}"[:500])
    for outcome in batch.outcomes:
        if outcome.job in refused_items:
            outcome = refused(outcome, refused_items[outcome.job])
        try:
            late += ledger.do(exchange, worker, Batch(outcomes=[outcome])).late
        except Unavailable:
            raise
        except DatabaseError as error:
            reason = f"the database refused its outcome: {error}"[:500]
            plain = Outcome(*outcome[:3], Verdict.PERMANENT, reason=reason, part_of=outcome.part_of)
            late += ledger.do(exchange, worker, Batch(outcomes=[plain])).late
    ledger.do(exchange, worker, Batch(ended_claims=batch.ended_claims))
    return Exchanged(refused_items, late, None)


def say(ledger: Ledger, outcomes: Sequence[Outcome], late: Sequence[int]) -> None:
    """One line for each attempt that did not simply end well. Their names are read only now: most jobs need none."""
    if late:
        log.warning("%d outcomes were refused: the jobs were no longer this worker's", len(late))
    loud = [o for o in outcomes if o.verdict not in _QUIET and o.job not in late]
    if not loud or not (log.isEnabledFor(logging.INFO) or reports.on()):
        return
    fates: dict[int, infos.Fate] = {}
    with contextlib.suppress(Unavailable), ledger.reading() as tx:
        fates = infos.fates(tx, [outcome.job for outcome in loud])
    for o in loud:
        fate = fates.get(o.job)
        name = "" if fate is None else f" {fate.task}[{fate.key}]" if fate.key else f" {fate.task}"
        why = "".join(f": {said}" for said in (o.verdict.value, o.reason or o.error_class) if said)
        ids = {"subject": fate and fate.subject, "run": o.run, "stage": fate and fate.stage, "job": o.job}
        ids |= {"attempt": o.attempt, "outcome": o.verdict.value, "state": fate and fate.state.word}
        log.info("job %d%s attempt %d%s%s", o.job, name, o.attempt, why, _next(fate), extra=ids)
        if reports.on() and fate is not None and fate.state is State.FAILED and fate.fingerprint is not None:
            about = {"task": fate.task, "stage": fate.stage, "run": o.run, "job": o.job, "attempt": o.attempt}
            kind = o.error_class or o.verdict.value
            reports.failed(fate.fingerprint, kind, o.reason or kind, o.traceback, **about)


def _next(fate: infos.Fate | None) -> str:
    """What happens to a job after an attempt, in words; nothing, where the outcome says it."""
    if fate is None or fate.state not in _NEXT:
        return ""
    if fate.due is None:
        return _NEXT[fate.state]
    return f"; again in {max(0, fate.due) / SECOND:.3g} s"
