"""What a job's function gets as its first argument."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from gristmill.binding import encode
from gristmill.errors import Invalid, Outcome, Skip
from gristmill.settings import KEY_LIMIT

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gristmill.errors import LockLost
    from gristmill.execution.locking import Lock, Locks
    from gristmill.execution.parts import Parts
    from gristmill.ledger.applied import Guard, Version
    from gristmill.ledger.store import Ledger
    from gristmill.ledger.tx import Tx
    from gristmill.model import Stage
    from gristmill.pipeline import Part, Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_EVERY = 0.25  # seconds between two progress messages of one job; the supervisor coalesces further


class Host(Protocol):
    """What a context needs from the process that it lives in."""

    @property
    def worker(self) -> int: ...
    def ledger(self) -> Ledger: ...
    def report_progress(self, job: int, attempt: int, state: dict[str, Any]) -> None: ...
    def task(self, name: str) -> Task[Any, Any]: ...
    def locks(self) -> Locks: ...
    def report_wait(self, job: int, attempt: int, since: float | None, waited: float | None) -> None:
        """A job waits for a lock since then (monotonic); or it goes on, after so many seconds."""

    def lost_lock(self, ctx: Context, error: LockLost) -> None:
        """A job relies on a lock that it does not have any more."""

    def is_on(self, ctx: Context) -> bool:
        """Is this attempt still going on?"""


class Unsupervised:
    """The part of a host that nobody supervises: nothing is timed, and nothing ended from outside."""

    _locks: Locks | None = None

    def ledger(self) -> Ledger:
        raise NotImplementedError

    def locks(self) -> Locks:
        from gristmill.execution.locking import Locks

        if self._locks is None:
            self._locks = Locks(self.ledger(), debug=True, may_block=True)
        return self._locks

    def report_wait(self, job: int, attempt: int, since: float | None, waited: float | None) -> None: ...

    def lost_lock(self, ctx: Context, error: LockLost) -> None:
        """The function learns of it when it leaves the block."""

    def is_on(self, ctx: Context) -> bool:
        return True


@dataclass(slots=True)  # no named tuple: its attributes take twice as long, and each job looks at several
class Common:
    """What the jobs of one kind have in common, as the supervisor told it."""

    task: str = ""
    timeout: float | None = None
    memory_mib: int | None = None
    run: int | None = None
    run_row: Sequence[Any] | None = None  # pipeline, subject, priority, epoch, arguments
    stage_row: Sequence[Any] | None = None  # name, each, stages that it gives items to; of a part, its job's
    part_of: int | None = None

    @property
    def run_args(self) -> Mapping[str, Any]:
        return self.run_row[4] if self.run_row else {}


_NOWHERE = Common()  # a context on its own, for a test


class Kept(NamedTuple):
    """What is written with a job's success."""

    digest: str | None = None  # the fingerprint of what it did, if that can be told
    guards: tuple[Guard, ...] = ()  # the versions that it applied


class Unchanged(Outcome):
    """This run did the same before, and was then retried: what came of it, as JSON, still counts."""

    def __init__(self, result: str | None) -> None:
        super().__init__("unchanged")
        self.result = result


class Context:
    """The job that is running: who it is for, how far it is, and whether it should stop."""

    # Most jobs never change these, so they are not set on each.
    _asked = False  # someone wants this job to stop
    _noticed = False  # and its function has seen that
    _told: _Told | None = None
    _lines: tuple[str, ...] = ()  # what an async job has logged
    _kept: Kept | None = None
    _finished = False  # it has ended itself, in a transaction of its own; or
    _waits = False  # it has handed over parts
    _uses_locks = False
    _waiters = 0  # tasks and threads of it that wait for a lock, since
    _waits_since = 0.0  # then; its time limit does not count meanwhile

    def __init__(
        self,
        row: Sequence[Any] = (0, 0, 1, None, None),
        common: Common = _NOWHERE,
        started: float = 0.0,
        host: Host | None = None,
    ) -> None:
        self._row = row  # number of its kind, id, attempt, key, arguments; with traces its traceparent
        self._common = common
        self._started = started
        self._host = host

    @property
    def job(self) -> int:
        """The job's id."""
        job: int = self._row[1]
        return job

    @property
    def attempt(self) -> int:
        """Which attempt this is; also its fencing token."""
        attempt: int = self._row[2]
        return attempt

    @property
    def task(self) -> str:
        return self._common.task

    @property
    def run(self) -> int | None:
        """The run's id; None for a job on its own."""
        return self._common.run

    @property
    def pipeline(self) -> str | None:
        return self._common.run_row[0] if self._common.run_row else None

    @property
    def subject(self) -> str | None:
        return self._common.run_row[1] if self._common.run_row else None

    @property
    def stage(self) -> str | None:
        return self._common.stage_row[0] if self._common.stage_row else None

    @property
    def key(self) -> str | None:
        """The item's key, or the part's; None outside `each` stages."""
        return self._row[3] or None

    @property
    def part_of(self) -> int | None:
        """The id of the job that this one is a part of; None: it is no part."""
        return self._common.part_of

    @property
    def timeout(self) -> float | None:
        return self._common.timeout

    @property
    def deadline(self) -> float | None:
        """The time at which this attempt is stopped, on `time.monotonic()`; None: no limit. Waits for locks put it off."""
        return None if self.timeout is None else self._started + self.timeout

    @property
    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once someone asked for this job to stop. A function that saw it and returns ends `cancelled`."""
        self._noticed = self._asked
        return self._asked

    @property
    def logger(self) -> logging.Logger:
        """What is logged here (or printed) is kept with the attempt if it fails."""
        return logging.getLogger(f"gristmill.job.{self.task}" if self.task else "gristmill.job")

    def progress(self, done: float | None = None, total: float | None = None, message: str | None = None) -> None:
        """Says how far this job is. Cheap: call it as often as you like."""
        words = None if message is None else storable(str(message))
        said = {"done": _number(done), "total": _number(total), "message": words}
        told = self._telling()
        with told.lock:
            told.state.update({name: value for name, value in said.items() if value is not None})
        self._changed()

    def phase(self, name: str, total: int | None = None) -> Phase:
        """A named phase of this job, whose items are reported one by one."""
        if not isinstance(name, str) or not name:
            raise Invalid(f"a phase needs a name, not {name!r}")
        told = self._telling()
        with told.lock:
            phase = told.phases.setdefault(storable(name), Phase(self, told.lock))
        if total is not None:
            phase.total = _number(total)
        return phase

    def results(self, stage: str) -> Iterator[tuple[str, Any]]:
        """(key, result) of the items of a stage of this run that completed, by key; streamed."""
        from gristmill.ledger.read import results

        return results(self._look, self._run(), stage)

    def counts(self, stage: str) -> Stage:
        """A stage of this run with its counters, as they are now."""
        from gristmill.ledger.read import run

        return self._look(run, self._run()).stage(stage)

    @overload
    def parts(self, part: Part[Any, Coroutine[Any, Any, R]], items: Iterable[Any]) -> Parts[R]: ...

    @overload
    def parts(self, part: Part[Any, R] | str, items: Iterable[Any]) -> Parts[R]: ...

    def parts(self, part: Part[Any, Any] | str, items: Iterable[Any]) -> Parts[Any]:
        """Has parts of this job done, each a job of its own, and reads what became of them.

        `items` are keys, or (key, arguments). This attempt ends here, without a slot or a time limit; when the last part
        has ended the function is called again, from its start, and gets past this call. Parts that are done are not done
        again, unless their arguments are others now.
        """
        from gristmill.execution.parts import Parts

        return Parts.of(self, part, items)

    def skip_unchanged(self, *fingerprint: str | int) -> None:
        """Ends this item `skipped` if its last success had the same fingerprint: a hash of what goes in, and the version
        of what is done to it. Otherwise the fingerprint is kept with this success."""
        from gristmill.ledger.done import done_before, result_before

        if not fingerprint or not all(isinstance(part, str | int) for part in fingerprint):
            raise Invalid(f"a fingerprint is text (a hash, a version): not {fingerprint!r:.80}")
        if self.part_of is not None:
            raise Invalid("a part cannot be unchanged; let the job that it is a part of find out")
        if self.pipeline is None or self.subject is None or self.stage is None:
            raise Invalid("a job on its own belongs to no subject, so it cannot be unchanged")
        words = storable(":".join(map(str, fingerprint)))
        if len(words) > KEY_LIMIT:
            raise Invalid(f"a fingerprint has at most {KEY_LIMIT} characters, this one {len(words)}: give a hash")
        run = self._look(done_before, self.pipeline, self.subject, self.stage, self.key or "", words)
        result = self._look(result_before, self.job) if run == self.run else None
        if run == self.run:
            raise Unchanged(result)
        if run is not None:
            raise Skip(f"unchanged since run {run}")
        self._kept = (self._kept or Kept())._replace(digest=words)

    def skip_stale(
        self,
        *resource: str | int,
        version: Version,
        label: str | None = None,
        force: bool = False,
        connection: Connection | None = None,
    ) -> None:
        """Ends this item `skipped` if a newer version of that resource was applied: `ctx.skip_stale("edition", 42,
        version=build.number)`. Otherwise its version is kept with this success, in one transaction, which looks once more.

        `label`: what others are "superseded by"; `force`: apply it though it is older. With a `connection` it is all
        decided in that transaction, for a job that applies several things.
        """
        from gristmill.ledger import applied

        wanted = applied.guard(resource, version, None if label is None else storable(label), force)
        if self.part_of is not None:
            raise Invalid("a part cannot be late; let the job that it is a part of find out")
        ledger = self._open()
        if connection is not None:
            ledger.check_guest(connection)
            ledger.join(connection, applied.apply, wanted, self.job)
            return
        self._look(applied.refuse_stale, wanted)
        kept = self._kept or Kept()
        self._kept = kept._replace(guards=(*kept.guards, wanted))

    def event(self, name: str, data: Mapping[str, Any] | None = None, *, connection: Connection | None = None) -> None:
        """Tells those who follow of something of your own, like `library.lent`; with `connection`, if that commits."""
        from gristmill.ledger import events

        text, ledger = events.own(name, data), self._open()
        if connection is None:
            return ledger.do(events.add, name, self.run, text)
        ledger.check_guest(connection)
        return ledger.join(connection, events.add, name, self.run, text)

    def lock(self, kind: str | int, item: str | int, *, timeout: float | None = None) -> Lock:
        """`with ctx.lock("edition", 42):` or `async with`: nobody else is in such a block of the same two names.

        It waits for as long as it takes, or raises `LockTimeout`; the time limit of the job does not count meanwhile.
        Numbers are those of PostgreSQL's advisory locks. Ask for one lock at a time.
        """
        from gristmill.execution.locking import JobParty

        self._uses_locks = True
        return self._locks().lock(kind, item, timeout, JobParty(self))

    def transaction(self) -> AbstractContextManager[Connection]:
        """`with ctx.transaction() as connection:` a transaction on the ledger's database, committed at its end.

        Inside a lock it is not committed if that was lost.
        """
        ledger = self._open()
        held = self._held_here()
        return self._fenced(ledger, held) if held else ledger.transaction()

    def _held_here(self) -> Sequence[Lock]:
        return self._locks().held_here() if self._uses_locks else ()

    @contextlib.contextmanager
    def _fenced(self, ledger: Ledger, held: Sequence[Lock]) -> Iterator[Connection]:
        with ledger.transaction() as connection:
            yield connection
            for lock in held:
                lock.check(connection)

    @contextlib.contextmanager
    def finish(self, connection: Connection, result: Any = None) -> Iterator[bool]:
        """`with ctx.finish(connection, result) as mine:` this job ends in that transaction, with whatever else that holds.

        `mine` is False if another attempt has the job by now; then write nothing. From here until the commit nobody else
        can end a job of the same run, so do this last.
        """
        from gristmill.ledger.finish import Outcome, Verdict
        from gristmill.ledger.own import finish_own, lock_own

        if self._common.stage_row is not None and self._common.stage_row[2]:
            raise Invalid("a stage that gives items to others cannot end itself: its last items go with its end")
        ledger = self._open()
        ledger.check_guest(connection)
        text = None if result is None else encode(result, "the result")
        worker = self._worker()
        for lock in self._held_here():
            lock.check(connection)
        kept = self._kept or Kept()
        mine = ledger.join(connection, lock_own, worker, self.job, self.attempt, kept.guards)
        yield mine
        if mine:
            ran = int((time.monotonic() - self._started) * 1e6) + 1
            outcome = Outcome(self.job, self.attempt, self.run, Verdict.COMPLETED, text, ran, digest=kept.digest)
            outcome = outcome._replace(guards=kept.guards, part_of=self.part_of)
            ledger.join(connection, finish_own, worker, outcome)
            self._finished = True

    def _waited(self) -> float | None:
        """Seconds since this job was asked for; None if it was started before."""
        from gristmill.ledger.read import waited

        return self._look(waited, self.job)

    def _has_ended(self) -> bool:
        from gristmill.ledger.own import has_ended

        return self._look(has_ended, self.job)

    def _look(self, look: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Reads from the ledger. That this is away is no error of the job."""
        return self._open().patiently(look, *args, **kwargs)

    def _open(self) -> Ledger:
        if self._host is None:
            raise Invalid("this context has no database")
        return self._host.ledger()

    def _locks(self) -> Locks:
        if self._host is None:
            raise Invalid("this context has no database")
        return self._host.locks()

    def _worker(self) -> int:
        assert self._host is not None
        return self._host.worker

    def _task(self) -> Task[Any, Any]:
        if self._host is None:
            raise Invalid("this context has no database")
        return self._host.task(self.task)

    def _run(self) -> int:
        if self.run is None:
            raise Invalid("a job on its own has no run, and so no stages to read from")
        return self.run

    def _telling(self) -> _Told:
        if self._told is None:
            self._told = _Told()
        return self._told

    def _changed(self) -> None:
        self._telling().dirty = True
        self._tell()

    def _tell(self) -> None:
        """Sends what changed, but not too often; the process's listening thread calls this too, for the last change."""
        now = time.monotonic()
        told = self._told
        if self._host is not None and told is not None and told.dirty and now - told.sent >= _EVERY:
            told.sent, told.dirty = now, False
            self._host.report_progress(self.job, self.attempt, self._snapshot() or {})

    def _snapshot(self) -> dict[str, Any] | None:
        """A copy of what was reported so far; None: nothing."""
        told = self._told
        if told is None:
            return None
        with told.lock:
            phases = {name: phase._snapshot() for name, phase in told.phases.items()}
            return {**told.state, "phases": phases} if phases else dict(told.state)

    def _failed_items(self) -> dict[str, str]:
        phases = self._told.phases.values() if self._told else ()
        return {key: error for phase in phases for key, error in phase._of("failed").items()}


def storable(text: str) -> str:
    """Text that every database takes: no NUL, no lone surrogates (as in a file name that is not UTF-8)."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _number(value: Any) -> float | None:
    """What was given as a number, as JSON can carry it."""
    if value is None or (type(value) is int and value.bit_length() < 64):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Invalid(f"progress is told in numbers, not {value!r:.40}") from None
    return number if math.isfinite(number) else None


class _Told:
    """What a job said about its progress."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: dict[str, Any] = {}
        self.phases: dict[str, Phase] = {}
        self.sent = 0.0
        self.dirty = False


class Phase:
    """Items of one phase of a job. Each report replaces what was said of that item before, in one step."""

    def __init__(self, ctx: Context, lock: threading.Lock) -> None:
        self.total: float | None = None
        self._ctx = ctx
        self._lock = lock
        self._items: dict[str, tuple[str, str]] = {}  # key: (what became of it, why)

    def start(self, key: str) -> None:
        self._set(key, "in_progress")

    def complete(self, key: str) -> None:
        self._set(key, "completed")

    def skip(self, key: str, reason: str) -> None:
        self._set(key, "skipped", reason)

    def fail(self, key: str, error: str | BaseException) -> None:
        """A job that returns although items of it failed ends `completed_with_errors`."""
        self._set(key, "failed", str(error) or type(error).__name__)

    def _set(self, key: str, what: str, why: str = "") -> None:
        with self._lock:
            self._items[storable(str(key))] = (what, storable(str(why)))
        self._ctx._changed()

    def _of(self, what: str) -> dict[str, str]:
        return {key: why for key, (found, why) in self._items.items() if found == what}

    def _snapshot(self) -> dict[str, Any]:
        plain = {what: list(self._of(what)) for what in ("in_progress", "completed")}
        return {"total": self.total, **plain, "skipped": self._of("skipped"), "failed": self._of("failed")}
