"""The state machine: every state a job, a run or a stage can be in, and who moves it on.

This module is the only place that says which change of state is legal. The ledger's verbs take their
`from` states here, docs/lifecycle.md is generated from here, and nothing here does any I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class State(IntEnum):
    """States of jobs and runs. Stored as small integers: text states cost SQLite a factor of four."""

    QUEUED = 0  #: it may be claimed once it is ready (a worker moves it on); until then it is delayed or waits for its parts
    IN_PROGRESS = 1  #: one worker holds it, under the number of its attempt (that worker moves it on, or a rescue)
    COMPLETED = 2  #: done
    COMPLETED_WITH_ERRORS = 3  #: done, but some of its own items failed, by name; counts as completed
    FAILED = 4  #: its budget is spent, or trying again is pointless (an operator may requeue it)
    CANCELLED = 5  #: someone stopped it, or the run that it belonged to was stopped
    SKIPPED = 6  #: there was nothing to do, for a reason; counts as success
    WAITING = 7  #: runs only: behind the subject's active run (which starts it when it ends)

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


class StageState(IntEnum):
    """States of a stage within a run."""

    WAITING = 0  #: something before it is not closed yet
    OPEN = 1  #: items may still come
    SEALED = 2  #: no more items will come; some are not terminal yet
    CLOSED = 3  #: sealed, and every item is terminal

    @property
    def word(self) -> str:
        return self.name.lower()


class UniqueScope(IntEnum):
    """Among which jobs a unique key is unique."""

    UNFINISHED = 0
    QUEUED = 1  #: a claim frees the key


class WorkerState(IntEnum):
    """A worker's row. `LOST` is for ever: the process has to register anew."""

    ACTIVE = 0
    STOPPED = 1
    LOST = 2

    @property
    def word(self) -> str:
        return self.name.lower()


NOBODY = 0  # no worker has this number: it stands for whatever ends without one
TERMINAL = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS, State.FAILED, State.CANCELLED, State.SKIPPED})
SUCCESS = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS, State.SKIPPED})
ACTIVE_RUN = frozenset({State.QUEUED, State.IN_PROGRESS})


@dataclass(frozen=True)
class Transition:
    """One legal change of state: the verb that makes it, from where to where, and who calls the verb."""

    verb: str
    source: State | None
    target: State
    who: str


JOB_TRANSITIONS = (
    Transition("enqueue", None, State.QUEUED, "an application, or a stage that starts or emits"),
    Transition("claim", State.QUEUED, State.IN_PROGRESS, "a worker; the attempt grows by one"),
    Transition("claim", None, State.IN_PROGRESS, "the same for an item as it is written, if the worker has room for it"),
    Transition(
        "adopt", State.QUEUED, State.COMPLETED, "reconcile, when a probe finds its work done; the attempt grows by one"
    ),
    Transition("finish", State.IN_PROGRESS, State.COMPLETED, "the worker that holds the attempt; or the attempt itself"),
    Transition("finish", State.IN_PROGRESS, State.COMPLETED_WITH_ERRORS, "the same, when items of the job's own failed"),
    Transition("finish", State.IN_PROGRESS, State.SKIPPED, "the same, on Skip"),
    Transition("finish", State.IN_PROGRESS, State.FAILED, "the same, on Permanent or when the budget is spent"),
    Transition("finish", State.IN_PROGRESS, State.QUEUED, "the same, while the budget allows a retry"),
    Transition(
        "wait", State.IN_PROGRESS, State.QUEUED, "the same, when it has handed over parts; ready when the last has ended"
    ),
    Transition("release", State.IN_PROGRESS, State.QUEUED, "the same, unspent: Later, Unspent, drain, a dead child"),
    Transition("rescue", State.IN_PROGRESS, State.QUEUED, "anyone, when the worker is lost"),
    Transition("rescue", State.IN_PROGRESS, State.FAILED, "anyone, when it was lost too often"),
    Transition("cancel", State.QUEUED, State.CANCELLED, "an operator, or the sweep of a stopped run"),
    Transition("cancel", State.IN_PROGRESS, State.CANCELLED, "its worker, once the work is stopped; or a rescue"),
    *(
        Transition("end", State.QUEUED, state, "the end of the last part of a job whose own end was decided before")
        for state in (State.COMPLETED, State.COMPLETED_WITH_ERRORS, State.SKIPPED, State.FAILED, State.CANCELLED)
    ),
    Transition("requeue", State.FAILED, State.QUEUED, "an operator"),
    Transition("requeue", State.CANCELLED, State.QUEUED, "an operator"),
    Transition("requeue", State.SKIPPED, State.QUEUED, "an operator"),
    Transition("requeue", State.COMPLETED_WITH_ERRORS, State.QUEUED, "an operator"),
    *(
        Transition("redo", state, State.QUEUED, "for a part, the job that asks for it again with other arguments")
        for state in State
        if state not in (State.QUEUED, State.WAITING)
    ),
    Transition("rerun", State.COMPLETED, State.QUEUED, "a retry of its run that chose it, or that it depends on"),
    Transition("rerun", State.COMPLETED_WITH_ERRORS, State.QUEUED, "the same"),
    Transition("rerun", State.FAILED, State.QUEUED, "the same"),
    Transition("rerun", State.CANCELLED, State.QUEUED, "the same"),
    Transition("rerun", State.SKIPPED, State.QUEUED, "the same"),
    Transition("rerun", State.IN_PROGRESS, State.QUEUED, "the same, if its producer gave it other arguments"),
    Transition("set_aside", State.QUEUED, State.CANCELLED, "a retry of its run, until what it waits for is closed again"),
    Transition("set_aside", State.IN_PROGRESS, State.CANCELLED, "the same; its worker's late report changes nothing"),
    Transition("prune", State.QUEUED, State.SKIPPED, "a retry of its run, if its producer did not give it again"),
    Transition("prune", State.IN_PROGRESS, State.SKIPPED, "the same"),
    Transition("prune", State.COMPLETED, State.SKIPPED, "the same"),
    Transition("prune", State.COMPLETED_WITH_ERRORS, State.SKIPPED, "the same"),
    Transition("prune", State.FAILED, State.SKIPPED, "the same"),
    Transition("prune", State.CANCELLED, State.SKIPPED, "the same"),
)

RUN_TRANSITIONS = (
    Transition("start", None, State.QUEUED, "an application"),
    Transition("start", None, State.WAITING, "an application, when the subject has an active run"),
    Transition("begin", State.QUEUED, State.IN_PROGRESS, "the first worker that holds one of its jobs"),
    Transition("activate", State.WAITING, State.QUEUED, "the end of the run before it; or reconcile, if there is none"),
    Transition("end", State.QUEUED, State.COMPLETED, "the closing of its last stage, when there was nothing to do"),
    Transition("end", State.IN_PROGRESS, State.COMPLETED, "the closing of its last stage, or EndRun"),
    Transition("end", State.IN_PROGRESS, State.COMPLETED_WITH_ERRORS, "the same, when items failed but enough succeeded"),
    Transition("end", State.IN_PROGRESS, State.FAILED, "a stage that did not get what it needs; or one recovery too many"),
    Transition("end", State.QUEUED, State.COMPLETED_WITH_ERRORS, "the same, when its jobs were cancelled before one ran"),
    Transition("end", State.QUEUED, State.FAILED, "the same, when that left too little success"),
    Transition("end", State.QUEUED, State.CANCELLED, "an operator, once its last job is terminal"),
    Transition("end", State.IN_PROGRESS, State.CANCELLED, "an operator, once its last job is terminal"),
    Transition("end", State.WAITING, State.CANCELLED, "an operator"),
    Transition("retry", State.COMPLETED, State.IN_PROGRESS, "an operator; its epoch grows by one"),
    Transition("retry", State.COMPLETED_WITH_ERRORS, State.IN_PROGRESS, "the same"),
    Transition("retry", State.FAILED, State.IN_PROGRESS, "the same"),
    Transition("retry", State.CANCELLED, State.IN_PROGRESS, "the same"),
)


def sources(verb: str, transitions: tuple[Transition, ...] = JOB_TRANSITIONS) -> tuple[int, ...]:
    """The states that `verb` may start from, as the numbers that are stored."""
    return tuple(sorted({int(t.source) for t in transitions if t.verb == verb and t.source is not None}))
