"""Processes that die in the middle of a verb, by SIGKILL, at a place that is asked for.

`python -m tests.ledger.crash` reads one order per line and forks for each: the fork runs the verb and kills itself after
its n-th statement, just before its COMMIT, or just after. It says where, before it dies. This parent never opens a database
(SQLite must not be carried across a fork), and having imported everything already makes a death cost 20 ms instead of 1 s.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from gristmill.ledger import (
    adopt,
    again,
    asked,
    bulk,
    limiting,
    limits,
    minutes,
    once,
    parts,
    prune,
    recover,
    remove,
    repair,
    schedules,
    stale,
    start,
    stop,
    subjects,
    workers,
)
from gristmill.ledger.choose import Choice
from gristmill.ledger.chores import Selection
from gristmill.ledger.claim import Lane, Origin, Want, claim
from gristmill.ledger.emit import Emission, Item, emit
from gristmill.ledger.exchange import Batch, exchange
from gristmill.ledger.finish import Completed, Outcome, Verdict, finish
from gristmill.ledger.own import finish_own, lock_own
from gristmill.ledger.start import IfActive, NewJob, PlannedStage
from gristmill.ledger.store import Ledger
from gristmill.ledger.tx import Tx
from gristmill.schedule import Stalest
from tests.ledger.hooks import hooked

AFTER_COMMIT = 1_000_000


class Order(NamedTuple):
    """Run this verb on this database and die there: after statement `at`, before COMMIT if it has fewer, or after it."""

    url: str
    now: int
    verb: str
    arguments: Mapping[str, Any]
    at: int


# ---- the process that dies


def _outcomes(rows: list[list[Any]]) -> list[Outcome]:
    return [Outcome._make([*row[:3], Verdict(row[3]), *row[4:]]) for row in rows]


def _emissions(rows: list[list[Any]]) -> list[Emission]:
    return [Emission._make([*row[:4], [Item(*item) for item in row[4]]]) for row in rows]


def _chosen(run: int, epoch: int, state: int, items: Any, selection: list[Any], stage: str | None) -> again.Chosen:
    return again.Chosen(run, epoch, state, items, Selection(tuple(selection[0]), *selection[1:]), stage)


def _plan(stages: list[list[Any]]) -> list[PlannedStage]:
    return [PlannedStage._make([*stage[:-1], tuple(stage[-1])]) for stage in stages]


def _new_run(pipeline: str, subject: str, args: str, priority: int, stages: list[list[Any]]) -> schedules.NewRun:
    return schedules.NewRun(pipeline, subject, args, priority, _plan(stages))


def _wanted(pipeline: str, args: str, priority: int, stages: list[list[Any]], stalest: list[Any], gap: Any) -> stale.Wanted:
    return stale.Wanted(pipeline, args, priority, lambda tx, subject: _plan(stages), Stalest._make(stalest), gap)


def _wants(queue: int) -> list[Want]:
    return [Want(0, 10, (Lane(queue, 0),))]


def _own_end(tx: Tx, worker: int, outcome: Outcome) -> None:
    """What `ctx.finish` does in a transaction of the application's."""
    assert lock_own(tx, worker, outcome.job, outcome.attempt)
    finish_own(tx, worker, outcome)


Do = Callable[..., Any]  # Ledger.do with the verb hooked
VERBS: dict[str, Callable[..., Any]] = {
    "tidy_minutes": lambda do, level: do(minutes.tidy, level),
    "finish": lambda do, worker, outcomes: do(finish, worker, _outcomes(outcomes)),
    "complete": lambda do, worker, rows, origins: do(
        finish, worker, [], Completed([tuple(row) for row in rows], [Origin(*origin) for origin in origins])
    ),
    "emit": lambda do, worker, emissions: do(emit, worker, _emissions(emissions)),
    "exchange": lambda do, worker, emissions, outcomes, queue: do(
        exchange, worker, Batch(_emissions(emissions), outcomes=_outcomes(outcomes)), _wants(queue), {0: 10}
    ),
    "claim": lambda do, worker, queue: do(claim, worker, _wants(queue), {0: 10}),
    "start": lambda do, pipeline, subject, stages: do(start.start, pipeline, subject, "{}", 1, _plan(stages), IfActive.WAIT),
    "start_idle": lambda do, subjects, stages: do(
        asked.start_idle, [asked.Wanted("site", one, "{}", lambda tx: _plan(stages)) for one in subjects], 1, by="me"
    ),
    "cancel_run": lambda do, run: do(stop.cancel_run, run, by="me"),
    "cancel_job": lambda do, job: do(stop.cancel_job, job, by="me"),
    "requeue_job": lambda do, job: do(stop.requeue_job, job, by="me"),
    "retry_run": lambda do, chosen: do(again.retry, _chosen(*chosen), by="me"),
    "carry_on": lambda do, run: do(again.carry_on, run),
    "own": lambda do, worker, outcome: do(_own_end, worker, _outcomes([outcome])[0]),
    "forget": lambda do, pipeline, subject: do(stop.forget_done, pipeline, subject, None, by="me"),
    "set_subject": lambda do, labels: do(subjects.set_subject, "site", "s", 5, labels, create=True, by="me"),
    "sweep": lambda do, run, stage: do(stop.sweep, run, stage),
    "hand_over": lambda do, worker, job, attempt, kind, rows: do(
        parts.hand_over,
        worker,
        job,
        attempt,
        parts.PartKind._make([*kind[:3], tuple(kind[3]), *kind[4:]]),
        [tuple(row) for row in rows],
    ),
    "sweep_parts": lambda do, job: do(parts.sweep, job),
    "rescue": lambda do, worker: do(workers.rescue, worker, True),
    "recover": lambda do, worker: do(recover.rescue, worker, True, 5, "its process is gone"),
    "come_back": lambda do, worker: do(workers.come_back, worker, []),
    "adopt": lambda do, rows, item: do(
        adopt.adopt, [adopt.Adoption._make([*row, [Item(*item)]]) for row in rows], by="me", target="x"
    ),
    "repair_run": lambda do, run: do(repair.repair_run, run, True, 0, 5),
    "repair_stranded": lambda do, run: do(repair.repair_stranded, run, True, 0, 5),
    "leave": lambda do, worker: do(workers.leave, worker),
    "begin_bulk": lambda do, verb: do(bulk.begin, verb, Choice(states=(0,)), by="me"),
    "bulk": lambda do, order, ids: do(bulk.step, order, 0, bulk.Portion(ids, last=True)),
    "purge_subject": lambda do: do(bulk.purge_subject, Choice(pipeline="site", subject="s"), history=True, by="me"),
    "promote": lambda do, limits_: do(limits.promote, limits_),
    "set_limit": lambda do, name, numbers: do(limiting.set_limit, name, "", numbers, by="me"),
    "limit_queue": lambda do, numbers: do(limiting.limit_queue, "default", numbers, by="me"),
    "edit_job": lambda do, job: do(stop.edit_job, job, '{"n":2}', by="me"),
    "remove_jobs": lambda do, stage: do(remove.remove_jobs, stage),
    "prune_run": lambda do, run: do(prune.prune_run, run, prune.Record(), by="me"),
    "prune_jobs": lambda do, jobs: do(prune.prune_jobs, jobs, prune.Record(), by="me"),
    "fire_job": lambda do, number, spec, job: do(schedules.fire, number, spec, NewJob._make(job)),
    "fire_run": lambda do, number, spec, run: do(schedules.fire, number, spec, _new_run(*run)),
    "fire_stalest": lambda do, number, spec, wanted: do(schedules.fire, number, spec, _wanted(*wanted)),
    "once": lambda do, job: do(once.once, "job solo:k", start.enqueue, NewJob(*job)),
}


def die(where: str) -> None:
    os.write(1, f"{where}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def carry_out(order: Order) -> None:
    ledger = Ledger(order.url, lambda: order.now)

    def after(statement: int) -> None:
        if statement == order.at:
            die("statement")

    if order.at != AFTER_COMMIT:
        Tx.commit = lambda self: die("commit")  # type: ignore[method-assign]
    VERBS[order.verb](lambda verb, *args, **kwargs: ledger.do(hooked(verb, after), *args, **kwargs), **order.arguments)
    die("done")


def serve() -> None:
    Ledger("postgresql://nobody@nowhere/nothing")  # opens nothing, but imports the driver: once, not in every fork
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                carry_out(Order(*json.loads(line)))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            os.write(1, b"failed\n")


# ---- the one who gives orders


class Crasher:
    """Gives orders, and says where the process died: "statement", "commit" or "done"."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ledger.crash"],
            cwd=Path(__file__).parent.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate()

    def __call__(self, order: Order) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        where = self._process.stdout.readline().strip()
        assert where in {"statement", "commit", "done"}, f"{order.verb}: the process did not die as told: {where!r}"
        return where


if __name__ == "__main__":
    serve()
