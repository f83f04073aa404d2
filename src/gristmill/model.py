"""What the ledger tells: plain values for runs, stages, jobs, attempts, subjects, queues and workers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gristmill.clock import iso
from gristmill.errors import Invalid, NotFound, did_you_mean, quoted

Rank = tuple[int, int, str]  # of an error in the list of them
_PLACE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-(.{1,200})", re.DOTALL)


@dataclass(frozen=True)
class Stage:
    """One step of a run, with its counters."""

    name: str
    state: str  #: waiting, open, sealed or closed
    outcome: str | None  #: once closed: completed, completed_with_errors, failed, skipped or cancelled
    total: int
    completed: int
    failed: int
    skipped: int
    cancelled: int
    queue: str
    each: bool
    gate: bool
    opened_at: datetime | None
    closed_at: datetime | None
    items_with_parts: int = 0  #: items that have parts which have not ended
    parts: int = 0  #: of these, all; in no other counter
    parts_left: int = 0  #: of these, that have not ended
    taken_from: int | None = None  #: the run whose results these are, if it was not run in this one

    @property
    def done(self) -> int:
        return self.completed + self.failed + self.skipped + self.cancelled


@dataclass(frozen=True)
class Run:
    """One passage of one subject through one pipeline."""

    id: int
    pipeline: str
    subject: str
    state: str
    priority: str
    epoch: int
    args: dict[str, Any]
    error: str | None
    reason: str | None  #: why it ended early: `unchanged`, `no_documents`, …
    stopping: str | None  #: set while a stop is being carried out: why
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    retried_at: datetime | None = None  #: when it went on, after it had ended; the last time
    stages: tuple[Stage, ...] = ()
    results: dict[str, Any] = field(default_factory=dict, repr=False)
    created: bool = field(default=True, repr=False)  #: False when `start` joined a run that was there

    @property
    def terminal(self) -> bool:
        return self.finished_at is not None

    @property
    def began_at(self) -> datetime | None:
        """Since when it has been worked on: what lies between an end and a retry is nobody's work."""
        return self.retried_at or self.started_at

    def stage(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise NotFound(f"run {self.id} has no stage {name!r}{did_you_mean(name, [s.name for s in self.stages])}")

    def result(self, stage: str) -> Any:
        """What the one job of `stage` returned; None while it has not."""
        if self.stage(stage).each:
            raise Invalid(f"stage {stage!r} has many items: read them with mill.results({self.id}, {stage!r})")
        return self.results.get(stage)


@dataclass(frozen=True)
class RetriedRun:
    """What a retry of a run queued again, or would."""

    run: int
    epoch: int  #: from now on
    items: dict[str, dict[str, int]]  #: by stage, how many of each state there were
    after: tuple[str, ...]  #: stages that depend on these and are run again

    @property
    def queued(self) -> int:
        return sum(number for counts in self.items.values() for number in counts.values())


@dataclass(frozen=True)
class Job:
    """One unit of work."""

    id: int
    run: int | None
    stage: str | None
    subject: str | None
    key: str | None
    task: str
    queue: str
    state: str
    priority: str
    attempt: int
    errors: int
    crashes: int
    timeouts: int
    losses: int
    returns: int
    args: dict[str, Any] | None
    result: Any
    error: str | None
    error_class: str | None
    fingerprint: str | None  #: of the error, while the job is failed: the same for all that failed alike
    progress: Any
    worker: int | None
    unique: str | None
    run_at: datetime | None  #: not before then: it was delayed, or is retried
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    waits: str | None = None  #: why it is queued but not ready: delayed, retrying, limited, or for parts
    part_of: int | None = None  #: the job that it is a part of
    parts: int | None = None  #: how many it has itself; None: none
    parts_left: int | None = None  #: that have not ended
    parts_failed: int | None = None  #: or were cancelled
    ends_as: str | None = None  #: the state that it will end in, once its parts have stopped
    archived_at: datetime | None = None  #: since when lists leave it out
    created: bool = field(default=True, repr=False)  #: False when a job with the same unique key was there
    adopted: bool = False  #: reconcile found its work done, and took it as completed
    missed: str | None = None  #: why its task's `on_terminal` failed when it ended; reconcile tries again


@dataclass(frozen=True)
class Attempt:
    """One attempt that did not succeed, kept with what is needed to understand it."""

    job: int
    attempt: int
    outcome: str
    error_class: str | None
    error: str | None
    fingerprint: str | None
    traceback: str | None
    log: str | None
    worker: int | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class Signature:
    """An error, and all the failures that have its fingerprint."""

    fingerprint: str
    error_class: str | None
    error: str | None  #: the newest example of its message
    failed: int  #: jobs that are failed now, by this error
    attempts: int  #: failed attempts in all
    subjects: int
    first_seen: datetime | None
    last_seen: datetime | None
    ignored: bool

    @property
    def rank(self) -> Rank:
        """Where it stands in the list: what fails the most jobs now is first."""
        return -self.failed, -self.attempts, self.fingerprint

    @property
    def place(self) -> str:
        """The same as text: what a page of the list goes on after."""
        return f"{self.failed}-{self.attempts}-{self.fingerprint}"

    @staticmethod
    def rank_of(place: str) -> Rank:
        found = _PLACE.fullmatch(place)
        if found is None:
            raise Invalid(f"{quoted(place)} is no place in the list of errors; give the `place` of one")
        return -int(found[1]), -int(found[2]), found[3]


@dataclass(frozen=True)
class ErrorPlace:
    """A stage, or a task on its own, in which an error happens."""

    pipeline: str | None
    stage: str | None
    task: str
    queue: str
    failed: int
    attempts: int


@dataclass(frozen=True)
class ErrorSubject:
    """A subject that an error happens to."""

    pipeline: str
    subject: str
    failed: int
    attempts: int


@dataclass(frozen=True)
class ErrorDetail:
    """A signature with its newest example, and where it happens: the most affected first, at most 100 of each."""

    signature: Signature
    example: Attempt
    places: tuple[ErrorPlace, ...]
    subjects: tuple[ErrorSubject, ...]
    jobs: tuple[int, ...]  #: failed now, newest first


@dataclass(frozen=True)
class RetriedError:
    """What became of the failed jobs of one error (or would, in a dry run)."""

    fingerprint: str
    queued: int
    refused: int
    refusal: str | None  #: the first of the reasons


@dataclass(frozen=True)
class Queue:
    """A queue's settings, and what is in it now."""

    name: str
    weight: float
    paused: bool
    ready: int
    delayed: int
    in_progress: int
    oldest: datetime | None
    workers: int
    limited: int = 0  #: jobs that wait for a limit
    at_once: int | None = None  #: how many may be in progress; None: no limit
    per_second: float | None = None  #: how many may start


@dataclass(frozen=True)
class LimitState:
    """A limit (its key is ''), or a key of one: its numbers, and what it does now."""

    name: str
    key: str
    at_once: int | None
    per_second: float | None
    breaker: int | None  #: failures in a row after which its circuit opens
    cooldown: float  #: seconds that it stays so
    set_by: str  #: whose numbers these are: "application" or "operator"
    running: int
    ready: int
    waiting: int
    circuit: str | None  #: "closed", "open", "half-open"; None: it has none
    failures: int
    open_until: datetime | None


@dataclass(frozen=True)
class Worker:
    """A worker's registration."""

    id: int
    host: str
    pid: int
    state: str
    queues: tuple[str, ...]
    slots: int
    own_slots: dict[str, int]  # that queues have for themselves, beside these
    labels: tuple[str, ...]
    memory_mib: int  # for jobs that say how much they need
    version: str
    delivery: str  #: how it learns of work
    holding: int
    doing: tuple[str, ...]  # the names of the tasks of some of these jobs, each once
    registered_at: datetime | None
    heartbeat_at: datetime | None
    lease_until: datetime | None
    late: bool = False  #: active, but its lease has ended by the database's clock; another worker will notice


@dataclass(frozen=True)
class LockUser:
    """Who holds a lock, or waits for it: a job, a program outside jobs, or somebody else's session on PostgreSQL."""

    job: int | None
    worker: int | None
    host: str | None
    pid: int  #: of its process; on PostgreSQL that of the session, for a job
    program: str | None  #: what somebody else's session calls itself
    since: datetime | None  #: when it got the lock, or asked for it

    @property
    def words(self) -> str:
        """`job 3 (worker 1 on mill-1)`."""
        if self.job is not None:
            return f"job {self.job} (worker {self.worker} on {self.host or 'a host that nobody knows'})"
        if self.program is not None:
            return f"session {self.pid} ({self.program})"
        return f"process {self.pid}{f' on {self.host}' if self.host else ''}"


@dataclass(frozen=True)
class Lock:
    """A named lock that is held."""

    resource: str
    kind: int  #: the numbers of PostgreSQL's advisory lock
    object: int
    holder: LockUser
    waiters: tuple[LockUser, ...]  #: in their order


@dataclass(frozen=True)
class Subject:
    """What goes through a pipeline: its runs, how fresh it is, what people said about it."""

    id: int
    pipeline: str
    name: str
    labels: dict[str, str]
    interval: float | None  #: seconds between two runs, where it wants its own
    active_run: int | None
    active_state: str | None
    waiting_run: int | None  #: the follow-up behind the active one
    last_run: int | None  #: that ended
    last_state: str | None
    last_run_at: datetime | None  #: when it ended
    last_good_run: int | None  #: the last that ended completed or completed_with_errors
    last_good_at: datetime | None
    age: float | None  #: seconds since the last good run ended, by the database's clock; None: there was none
    created_at: datetime | None

    @property
    def state(self) -> str | None:
        """Of its active run, else of its last one; None: it never had one."""
        return self.active_state or self.last_state


@dataclass(frozen=True)
class Bulk:
    """What an action on many jobs or runs did, or (rehearsed) would do."""

    counts: dict[str, int]  #: how many became what: {"cancelled": 120, "told to stop": 4}
    left: int = 0  #: of those given by number, how many stay as they are
    refusal: str | None = None  #: why they do
    record: int | None = None  #: the number of its entry in the audit
    open: bool = False  #: some of it has to wait until a run has ended; workers see to it then

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class AuditEntry:
    """Something that somebody did."""

    id: int
    at: datetime | None
    who: str
    verb: str
    target: str
    detail: dict[str, Any]
    done: dict[str, int]  #: of an action on many: how many became what
    open: bool  #: it is not done yet


@dataclass(frozen=True)
class Pruned:
    """What retention removed, or would remove."""

    runs: int
    jobs: int  #: those of the runs too
    workers: int = 0  #: that were gone for long
    audit: int = 0  #: entries of the audit
    open: bool = False  #: it had not the time for all of it; a worker's own retention goes on, once an hour


@dataclass(frozen=True)
class Repair:
    """One thing that reconcile found and mended (or would), or has to leave to a person."""

    what: str
    target: str
    detail: str

    @property
    def left(self) -> bool:
        """Nothing was mended: a person has to look at it."""
        return self.what in {"look into", "not mended", "probe failed", "check failed", "fail"}


@dataclass(frozen=True)
class Recovery:
    """What one pass of reconcile did for a subject."""

    at: datetime | None
    what: str  #: `repair` of the ledger, what an application's `check` found, or `adopt`
    pipeline: str
    subject: str
    run: int | None
    items: int
    found: tuple[Repair, ...]  #: the first of them


class Reason(StrEnum):
    """Why a run, a job or a subject is not moving."""

    IN_PROGRESS = "in_progress"  #: nothing is wrong: a worker has it
    STAGE_WAITS = "stage_waits"  #: nothing is wrong: a stage waits for items, and some are in progress
    PARTS = "parts"  #: nothing is wrong: it waits for its parts, and some are in progress
    LOCKED = "locked"  #: it waits for a lock that another holds
    IN_LINE = "in_line"  #: others are before it, or all workers are busy
    LIMITED = "limited"  #: its limit, or that of its queue, lets no more run now; or the circuit of its key is open
    DELAYED = "delayed"  #: it is not to run before a moment: delayed, or retried
    BEHIND_RUN = "behind_run"  #: its subject has an active run
    STOPPING = "stopping"  #: it was told to stop, and that takes a moment
    QUEUE_PAUSED = "queue_paused"
    NO_WORKER = "no_worker"  #: none that is running serves its queue
    WORKER_SILENT = "worker_silent"  #: who holds it is not heard of any more
    PREPARING = "preparing"  #: a retry, or the start of a part run, has not queued all items yet
    FINISHED = "finished"
    INCONSISTENT = "inconsistent"  #: nothing will move it: what `reconcile` is for


@dataclass(frozen=True)
class Why:
    """The one reason that something is not moving."""

    target: str
    reason: Reason
    sentence: str
    command: tuple[str, ...] = ()  #: what mends it, as words after `gristmill`; empty: nothing has to be done
    at: datetime | None = None  #: since when, or until when


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule in the ledger, and where it has got to."""

    name: str
    state: str  #: `on`, `paused`, `off`, or `broken`: this code cannot read it
    when: str  #: its times in plain words
    spec: dict[str, Any]  #: what it was declared or added with
    next_at: datetime | None
    last_at: datetime | None  #: the last fire time that started something
    last_started_at: datetime | None
    last_job: int | None
    last_run: int | None
    declared: bool  #: in code; else added by hand
    undeclared_at: datetime | None  #: since when the code does not declare it any more
    paused_at: datetime | None
    paused_by: str | None
    problem: str | None
    late: bool = False  #: it should have fired two minutes ago, by the database's clock: workers look every second


@dataclass(frozen=True)
class Firing:
    """What became of one fire time of a schedule."""

    schedule: str
    fire_at: datetime | None
    at: datetime | None  #: when that was decided
    outcome: str  #: `started`, or why not: `overlap`, `window`, `missed`, `failed`
    job: int | None
    runs: tuple[int, ...]
    detail: str | None
    by: str | None  #: who asked for it out of turn


@dataclass(frozen=True)
class Status:
    """The overall picture."""

    runs: dict[str, int]  #: how many, by state
    active: tuple[Run, ...]
    queues: tuple[Queue, ...]
    workers: tuple[Worker, ...]
    at: datetime  #: when it was so, by the database's clock: what is old is old by this


@dataclass(frozen=True)
class Backup:
    """A backup, and what is in it."""

    file: str
    size: int  #: bytes, compressed
    taken_at: datetime | None
    database: str  #: sqlite or postgresql: what it was taken of
    revision: str
    version: str
    subjects: int
    runs: int
    jobs: int


@dataclass(frozen=True)
class Diagnosis:
    """One thing that `doctor` looked at."""

    check: str
    ok: bool
    sentence: str
    command: tuple[str, ...] = ()  #: what mends it, or shows more, word by word


def to_json(value: Any) -> Any:
    """A model as JSON values: dataclasses become objects, times RFC 3339."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.name not in {"created", "results"}}
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    return value
