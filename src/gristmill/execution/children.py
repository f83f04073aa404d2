"""One child process, from its supervisor's side."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import psutil

from gristmill.execution.frames import AT_ONCE, SPOKEN, Unpacker, pack
from gristmill.execution.home import LOG_LIMIT
from gristmill.execution.known import end_of
from gristmill.execution.run import clean
from gristmill.execution.status import Status, make_file
from gristmill.execution.turnover import Turnover
from gristmill.ledger.claim import Claimed
from gristmill.ledger.finish import Outcome, Verdict
from gristmill.machine import kernel_kills

_CAPTURE_LIMIT = 64 << 20  # bytes of output on disk before it is cut: a job that prints for ever must not fill it


Doom = tuple[int | None, Verdict, str]  # why we killed a child: whose fault, what it is called, and in words
Held = tuple[Claimed, int, float]  # a job in a child's hands, the claim that it came with, and when it was given


class LockWait(NamedTuple):
    """How long a job has waited for locks, and since when it does."""

    waited: float = 0.0  # seconds
    since: float | None = None


class Child:
    """A process, its socket, its shared status and its captured output."""

    def __init__(self, setup: dict[str, Any], lease_deadline: float, place: int = 0) -> None:
        self.is_async: bool = setup["async"]
        self.place = place
        self.kept = False  # nothing more is given to it, so that there will be room for a job that takes more than a slot
        self.heavy = False  # it has such a job
        self.bounded = False  # some job in its hands says how much memory it may use
        self.kills = kernel_kills()
        self.held: dict[int, Held] = {}  # in the order in which they were given
        self.ahead: deque[int] = deque()  # of an event loop: those that wait until others have ended, as far as heard
        self.given = 0  # jobs that an event loop was given, and has not given back
        self.turnover = Turnover()  # of an event loop
        self.late_at = 0.0  # when one of its jobs may be over its time, at the earliest
        self.cancelling: dict[int, float] = {}  # job: when to kill, if it has not ended by then
        self.lock_waits: dict[int, LockWait] = {}  # of jobs that have waited for a lock
        self.queues: set[int] = set()  # of the jobs in its hands
        self.unique = False  # has any of them a unique key, which ends with it?
        self.keeps_limits = False  # has any a limit, which lets another go on when it ends?
        self.producers: set[int] = set()  # those that have emitted items
        self.runs: set[int] = set()
        self.stages: set[int] = set()
        self.finished = 0
        self.ready = False
        self.heard_at = time.monotonic()  # when it was made, was ready, or last told of jobs
        self.retiring = False
        self.alone = False
        self.recalled = False
        self.doomed: Doom | None = None
        self._out = bytearray()
        self._unpacker = Unpacker()
        self._launch(setup, lease_deadline)

    def _launch(self, setup: dict[str, Any], lease_deadline: float) -> None:
        """Or not, and then no file stays open: it is tried again, for as long as there is no room for one."""
        with contextlib.ExitStack() as its_own, contextlib.ExitStack() as kept:
            status = make_file()
            its_own.callback(os.close, status)
            ours, theirs = socket.socketpair()
            its_own.callback(theirs.close)
            kept.callback(ours.close)
            with tempfile.TemporaryFile(prefix="gristmill-") as output:
                self._output = os.dup(output.fileno())
            kept.callback(os.close, self._output)
            fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)  # so that it can be emptied under the writer
            self.status = Status(status)
            self.status.live_until(lease_deadline)
            fds = (theirs.fileno(), status)
            log = _own_stderr() if setup["log_json"] else None
            if log is not None:
                its_own.callback(os.close, log)
            command = [sys.executable, "-m", "gristmill.execution.child", *map(str, fds), str(os.getpid())]
            self.process = subprocess.Popen(
                command,
                pass_fds=fds if log is None else (*fds, log),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,  # Ctrl-C is for the supervisor; and a kill reaches what the job started
                env={**os.environ, "PYTHONUNBUFFERED": ""},
            )
            kept.pop_all()
        ours.setblocking(False)
        self._link = ours
        self.send(["setup", {**setup, "log": log, "spoken": SPOKEN}])

    def fileno(self) -> int:
        return self._link.fileno()

    # ---- messages

    def send(self, message: list[Any]) -> None:
        """Queues a message; the loop writes the rest when the child reads."""
        self._out += pack(message)
        self.write()

    @property
    def writing(self) -> bool:
        return bool(self._out)

    def write(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._out:
                sent = self._link.send(memoryview(self._out)[: 1 << 20])
                del self._out[:sent]

    def messages(self) -> Iterator[list[Any]]:
        """What the child said; at its end, `["gone"]`, and `["garbled"]` if someone else wrote to its socket."""
        while True:
            try:
                data = self._link.recv(AT_ONCE)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                yield ["gone"]
                return
            try:
                yield from self._unpacker.feed(data)
            except ValueError:
                yield ["garbled"]
                return

    # ---- what it is doing

    @property
    def alive(self) -> bool:
        """Looked at without reaping: until then its process group's number cannot come round again."""
        if not hasattr(os, "waitid"):
            return self.process.poll() is None
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def current(self) -> tuple[int, float] | None:
        """The job that it is on, and since when; None: between jobs, or an event loop."""
        if not self.held:
            return None
        job, started = self.status.current()
        return (job, started) if job in self.held else None

    def at_work(self) -> list[int]:
        """What it has begun, and not ended: one job, or all of an event loop's but the last ones, which still wait."""
        if self.is_async:
            return list(self.held)[: len(self.held) - (self.given - self.status.begun())]
        current = self.current()
        return [current[0]] if current else []

    def line_up(self, jobs: Sequence[Claimed], at_once: int) -> None:
        """An event loop is given these: those that are more than may run at once wait behind the others."""
        self.given += len(jobs)
        free = max(0, at_once - len(self.held) + len(self.ahead))
        self.ahead.extend(job.id for job in jobs[free:])

    def waits_since(self) -> float:
        """Since when those that wait have seen no other end: the first of them was given, or one has ended."""
        held = self.held.get(self.ahead[0])
        return max(held[2], self.turnover.ended_at) if held is not None else time.monotonic()

    def begun(self) -> Iterator[float]:
        """When those that an event loop has begun were, the first one first."""
        return (held[2] for held in islice(self.held.values(), max(0, len(self.held) - len(self.ahead))))

    def fetch_at(self, soon: float, now: float) -> float:
        """When others should be fetched for the places of those that an event loop will then end soon."""
        at = self.turnover.due_at(next(self.begun(), now), soon) if self.turnover.takes else now
        return at if at > now else now + 3600.0

    def went_on(self, ended: int, ran: int, now: float) -> None:
        """So many of an event loop's jobs have ended, after so many microseconds in all: as many of those that waited have
        begun."""
        self.begin_next(ended, now)
        self.turnover.ended(ended, ran / ended / 1e6, now)

    def begin_next(self, number: int, now: float) -> None:
        """So many of those that waited have begun: their time counts from now."""
        for _ in range(min(number, len(self.ahead))):
            job = self.ahead.popleft()
            if held := self.held.get(job):
                self.held[job] = (held[0], held[1], now)

    def mib(self) -> int:
        """The memory that its process uses."""
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self.process.pid).memory_info().rss) >> 20
        return 0

    def output(self) -> str | None:
        """The end of what it printed."""
        with contextlib.suppress(OSError):
            size = os.fstat(self._output).st_size
            if size:
                return clean(
                    os.pread(self._output, LOG_LIMIT, max(0, size - LOG_LIMIT)).decode("utf-8", "replace"), LOG_LIMIT
                )
        return None

    def bound_output(self) -> None:
        with contextlib.suppress(OSError):
            if os.fstat(self._output).st_size > _CAPTURE_LIMIT:
                os.ftruncate(self._output, 0)

    def hear_lock(self, job: int, attempt: int, since: float | None, waited: float | None) -> None:
        """A job begins to wait for a lock, or goes on: its time limit does not count meanwhile."""
        held = self.held.get(job)
        if held is not None and held[0].attempt == attempt:
            before = self.lock_waits.get(job, LockWait())
            self.lock_waits = {n: wait for n, wait in self.lock_waits.items() if n in self.held}
            self.lock_waits[job] = LockWait(before.waited + (waited or 0.0), since)

    def waited(self, job: int) -> float:
        """Seconds that do not count: infinitely many while it waits for a lock."""
        wait = self.lock_waits.get(job) if self.lock_waits else None
        return 0.0 if wait is None else float("inf") if wait.since is not None else wait.waited

    # ---- its end

    def recall(self) -> None:
        """Asks for all jobs that it has not started."""
        self.recalled = True
        self.send(["recall"])

    def retire(self) -> None:
        """Lets it end when it is through with what it has."""
        if not self.retiring:
            self.retiring = True
            self.send(["stop"])

    def doom(self, job: int | None, verdict: Verdict, reason: str) -> None:
        """Kills it, and remembers whose fault that is: the first one's, if there are several."""
        if self.doomed is None:
            self.doomed = (job, verdict, reason)
            self.kill()

    def kill(self) -> None:
        """Ends it and everything that it started, now; also what has a session of its own, as browsers do."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(psutil.Error):
            this = psutil.Process(self.process.pid)
            this.suspend()  # so that it starts nothing more
            for started in this.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    started.kill()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def died(self) -> str:
        """How it ended, in words; what it started ends too."""
        self.kill()
        code = self.process.wait()
        if code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
                if -code == signal.SIGKILL and self.starved:
                    return "the kernel ended its process, since the machine, or its control group, was out of memory"
                hint = " (out of memory, perhaps)" if -code == signal.SIGKILL else ""
                return f"its process was ended by {name}{hint}"
        return f"its process ended with exit code {code}"

    @property
    def starved(self) -> bool:
        """Did the kernel end it for want of memory? It counts whom it ends so, and nothing else is known about it."""
        return self.process.returncode == -signal.SIGKILL and self.kills is not None and kernel_kills() != self.kills

    def close(self) -> None:
        self.kill()
        self.process.wait()
        self._link.close()
        self.status.close()
        os.close(self._output)


def let_go(children: Sequence[Child], within: float = 2.0) -> None:
    """Lets children that have nothing to do end themselves: they may have spans to send."""
    until = time.monotonic() + within
    for child in children:
        child.send(["stop"])
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, until - time.monotonic()))


def _own_stderr() -> int | None:
    """For a child, whose own is captured; None: this process has none."""
    with contextlib.suppress(OSError):
        return os.dup(2)
    return None


def fate(
    child: Child,
    held: Held,
    doomed: Doom | None,
    current: tuple[int, float] | None,
    begun: Collection[int],
    how: str,
    log: str | None,
) -> Outcome:
    """What the death of its process means for one job. `begun`: those that it was at."""
    job, _, given = held
    suspects = begun or child.held  # if it has begun none: who knows which of them it did not even take
    now = time.monotonic()
    began = current[1] if current and 0 < current[1] <= now else given  # not of one that was just being told of
    ran = int((now - began) * 1e6)
    released = end_of(job, Verdict.RELEASED, ran=max(1, ran) if job.id in begun else 0)
    blamed = released._replace(ran=ran, log=log, alone=child.is_async)
    if doomed is not None:
        culprit, verdict, reason = doomed
        if job.id == culprit:
            return blamed._replace(verdict=verdict, reason=reason)
        by_one = culprit is None and verdict in (Verdict.MEMORY, Verdict.CRASH)
        return released._replace(alone=by_one and job.id in suspects)
    suspect = child.is_async and job.id in suspects
    if (current is not None and job.id == current[0]) or (suspect and len(suspects) == 1):
        return blamed._replace(verdict=Verdict.MEMORY if child.starved else Verdict.CRASH, reason=how)
    return released._replace(alone=suspect)
