"""Who asked for work: recorded in its own transaction where a person did, by API or pages. Programs do not pay for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gristmill.ledger import start as starting
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx


class Wanted(NamedTuple):
    """A run of a subject, which is given by its number."""

    pipeline: str
    subject: int
    args: str
    plan: Callable[[Tx], Sequence[starting.PlannedStage]]


def start(tx: Tx, pipeline: str, subject: str, *asked: Any, by: str) -> starting.Started:
    """`start.start`; who joins a run that is there starts nothing."""
    answer = starting.start(tx, pipeline, subject, *asked)
    if answer.created:
        audit(tx, by, "run.start", f"run {answer.run_id}", pipeline=pipeline, subject=subject)
    return answer


def start_idle(tx: Tx, wanted: Sequence[Wanted], priority: int, *, by: str) -> list[int]:
    """Starts runs of subjects that have none under way; says which. One entry for all."""
    found = [starting.start_idle(tx, one.pipeline, one.subject, one.args, priority, one.plan(tx)) for one in wanted]
    runs = [run for run in found if run is not None]
    if runs:
        audit(tx, by, "run.start", f"{len(runs)} subjects", runs=runs)
    return runs


def enqueue(tx: Tx, job: starting.NewJob, *, by: str, task: str) -> tuple[int, bool, Any]:
    """`start.enqueue`; a twin that was there is nobody's doing."""
    answer = starting.enqueue(tx, job)
    if answer[1]:
        audit(tx, by, "job.enqueue", f"job {answer[0]}", task=task)
    return answer


def enqueue_many(tx: Tx, *asked: Any, by: str, task: str) -> list[int]:
    """`start.enqueue_many`: one entry for all."""
    ids = starting.enqueue_many(tx, *asked)
    audit(tx, by, "job.enqueue", f"task {task}", jobs=len(ids), first=ids[0], last=ids[-1])
    return ids
