"""What a job's function gets as its first argument."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gristmill.errors import Invalid

if TYPE_CHECKING:
    from gristmill.ledger.store import Ledger
    from gristmill.model import Stage

_EVERY = 0.25  # seconds between two progress messages of one job; the supervisor coalesces further


class Context:
    """The job that is running: who it is for, how far it is, and whether it should stop."""

    def __init__(
        self,
        *,
        job: int = 0,
        attempt: int = 1,
        task: str = "",
        run: int | None = None,
        pipeline: str | None = None,
        subject: str | None = None,
        stage: str | None = None,
        key: str | None = None,
        priority: str = "normal",
        timeout: float | None = None,
        started: float = 0.0,
        ledger: Callable[[], Ledger] | None = None,
        send_progress: Callable[[int, int, dict[str, Any]], None] | None = None,
    ) -> None:
        self.job = job  #: the job's id
        self.attempt = attempt  #: which attempt this is; also its fencing token
        self.task = task
        self.run = run  #: the run's id; None for a job on its own
        self.pipeline = pipeline
        self.subject = subject
        self.stage = stage
        self.key = key  #: the item's key; None outside `each` stages
        self.priority = priority
        self.timeout = timeout
        self.cancelled = False  #: True once someone asked for this job to stop
        self._started = started or time.monotonic()
        self._ledger = ledger
        self._send = send_progress
        self._sent = 0.0
        self._state: dict[str, Any] = {}
        self._phases: dict[str, Phase] = {}
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] = lambda: None  # an async job is told at once

    @property
    def deadline(self) -> float | None:
        """The time at which this attempt is stopped, on `time.monotonic()`; None: no limit."""
        return None if self.timeout is None else self._started + self.timeout

    @property
    def seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def logger(self) -> logging.Logger:
        """What is logged here (or printed) is kept with the attempt if it fails."""
        return logging.getLogger(f"gristmill.job.{self.task}" if self.task else "gristmill.job")

    def progress(self, done: float | None = None, total: float | None = None, message: str | None = None) -> None:
        """Says how far this job is. Cheap: call it as often as you like."""
        self._merge({"done": done, "total": total, "message": message})

    def phase(self, name: str, total: int | None = None) -> Phase:
        """A named phase of this job, whose items are reported one by one."""
        if not isinstance(name, str) or not name:
            raise Invalid(f"a phase needs a name, not {name!r}")
        with self._lock:
            phase = self._phases.setdefault(name, Phase(self))
        if total is not None:
            phase.total = total
        return phase

    def results(self, stage: str) -> Iterator[tuple[str, Any]]:
        """(key, result) of the items of a stage of this run that completed, by key; streamed."""
        from gristmill.ledger.read import results

        return results(self._open(), self._run(), stage)

    def counts(self, stage: str) -> Stage:
        """A stage of this run with its counters, as they are now."""
        from gristmill.ledger.read import run

        with self._open().reading() as tx:
            return run(tx, self._run()).stage(stage)

    def _open(self) -> Ledger:
        if self._ledger is None:
            raise Invalid("this context has no database")
        return self._ledger()

    def _run(self) -> int:
        if self.run is None:
            raise Invalid("a job on its own has no run, and so no stages to read from")
        return self.run

    # ---- progress, as the supervisor wants it

    def _merge(self, values: dict[str, Any]) -> None:
        with self._lock:
            self._state.update({name: value for name, value in values.items() if value is not None})
        self._changed()

    def _changed(self) -> None:
        now = time.monotonic()
        if self._send is not None and now - self._sent >= _EVERY:
            self._sent = now
            self._send(self.job, self.attempt, self._snapshot() or {})

    def _snapshot(self) -> dict[str, Any] | None:
        """A copy of what was reported so far; None: nothing."""
        if not self._state and not self._phases:
            return None
        with self._lock:
            phases = {name: phase._snapshot() for name, phase in self._phases.items()}
            return {**self._state, "phases": phases} if phases else dict(self._state)

    def _failed_items(self) -> dict[str, str]:
        return {key: error for phase in self._phases.values() for key, error in phase._of("failed").items()}


class Phase:
    """Items of one phase of a job. Each report replaces what was said of that item before, in one step."""

    def __init__(self, ctx: Context) -> None:
        self.total: int | None = None
        self._ctx = ctx
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
        with self._ctx._lock:
            self._items[str(key)] = (what, why)
        self._ctx._changed()

    def _of(self, what: str) -> dict[str, str]:
        return {key: why for key, (found, why) in self._items.items() if found == what}

    def _snapshot(self) -> dict[str, Any]:
        plain = {what: list(self._of(what)) for what in ("in_progress", "completed")}
        return {"total": self.total, **plain, "skipped": self._of("skipped"), "failed": self._of("failed")}
