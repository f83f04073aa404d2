"""The child process: reads jobs from its supervisor, runs them, and says what became of each.

The main thread runs jobs (or, for async functions, an event loop). A second thread reads the supervisor's messages, so
that a recall or a cancellation is heard while a job runs, and ends the process when the supervisor or its lease is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import faulthandler
import logging
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.execution.context import Context
from gristmill.execution.emitter import Emitter
from gristmill.execution.frames import Unpacker, pack
from gristmill.execution.load import load_sources
from gristmill.execution.run import Report, clean, failed, succeeded
from gristmill.execution.status import Status
from gristmill.model import Priority
from gristmill.pipeline import Registry, Task

if TYPE_CHECKING:
    from gristmill.ledger.store import Ledger

LOG_LIMIT = 16 * 1024  # bytes of captured output kept with a failed attempt
_FLUSH_EVERY = 0.005  # seconds that a finished job may wait for company before it is reported
_FLUSH_AT = 200
_STDOUT = 1


class Given(NamedTuple):
    """A job as it came over the wire, with its run and stage (None for a job on its own)."""

    job: list[Any]  # id, attempt, task, timeout, memory, run, stage, key, arguments
    run: list[Any] | None  # pipeline, subject, priority, epoch, arguments
    stage: list[Any] | None  # name, each, stages that it gives items to


class Child:
    """The state that both threads share."""

    def __init__(self, link: socket.socket, status: Status, setup: dict[str, Any]) -> None:
        self.link = link
        self.status = status
        self.registry: Registry = load_sources(setup["sources"])
        self.database: str = setup["database"]
        self.memory_mib: int = setup["memory_mib"]
        self.inbox: queue.SimpleQueue[Given | None] = queue.SimpleQueue()
        self.runs: dict[int, list[Any]] = {}
        self.stages: dict[int, list[Any]] = {}
        self.contexts: dict[int, Context] = {}
        self.emitters: dict[int, Emitter] = {}
        self.cancelled: set[int] = set()
        self._sending = threading.Lock()
        self._ledger: Ledger | None = None

    def send(self, *message: Any) -> None:
        data = pack(list(message))
        with self._sending:
            self.link.sendall(data)

    def ledger(self) -> Ledger:
        """Opened only when a job's code asks."""
        if self._ledger is None:
            from gristmill.ledger.store import Ledger

            self._ledger = Ledger(self.database)
        return self._ledger

    def context(self, given: Given, started: float) -> Context:
        number, attempt, name, timeout, _, run_id, _, key, _ = given.job
        run, stage = given.run, given.stage
        ctx = Context(
            job=number,
            attempt=attempt,
            task=name,
            run=run_id,
            pipeline=run[0] if run else None,
            subject=run[1] if run else None,
            stage=stage[0] if stage else None,
            key=key or None,
            priority=Priority(run[2]).word if run else "normal",
            timeout=timeout,
            started=started,
            ledger=self.ledger,
            send_progress=self.report_progress,
        )
        ctx.cancelled = number in self.cancelled
        self.contexts[number] = ctx
        return ctx

    def call(self, given: Given) -> tuple[Task[Any, Any], dict[str, Any]]:
        """The task that a job names, and the arguments of the call."""
        task = self.registry.task(given.job[2])
        return task, task.parameters.select(given.job[8], given.run[4] if given.run else None)

    def report_progress(self, job: int, attempt: int, state: dict[str, Any]) -> None:
        self.send("progress", job, attempt, state)

    def emitter(self, ctx: Context, given: Given) -> Emitter | None:
        """Where this job's items go; None: no `each` stage comes after it."""
        if given.stage is None or not given.stage[2]:
            return None
        emitter = Emitter(ctx, given.stage[2], self.registry, given.run[4] if given.run else {}, self.send)
        self.emitters[ctx.job] = emitter
        return emitter

    def forget(self, job: int) -> None:
        self.contexts.pop(job, None)
        self.emitters.pop(job, None)
        self.cancelled.discard(job)


# ---- the thread that listens


def listen(child: Child, unpacker: Unpacker, early: list[list[Any]]) -> None:
    """Reads messages until the supervisor is gone; then so is this process. `early`: what came with the set-up."""
    try:
        for message in early:
            _hear(child, message)
        while True:
            patience = 0.05 if child.emitters else 1.0
            readable, _, _ = select.select([child.link], [], [], patience)
            if time.monotonic() > child.status.deadline():
                os._exit(75)  # the lease is over: whatever runs here is someone else's now
            for emitter in list(child.emitters.values()):
                emitter.flush_if_old()
            if readable:
                data = child.link.recv(1 << 20)
                if not data:
                    break
                for message in unpacker.feed(data):
                    _hear(child, message)
    finally:
        os._exit(0)


def _hear(child: Child, message: list[Any]) -> None:
    match message:
        case ["jobs", runs, stages, jobs]:
            child.runs.update({number: info for number, *info in runs})
            child.stages.update({number: info for number, *info in stages})
            for job in jobs:
                child.inbox.put(Given(job, child.runs.get(job[5]), child.stages.get(job[6])))
        case ["ack", job, refusal]:
            if emitter := child.emitters.get(job):
                emitter.acknowledged(refusal)
        case ["recall"]:
            jobs = _drained(child.inbox)
            child.send("returned", [given.job[0] for given in jobs if given is not None])
            if None in jobs:
                child.inbox.put(None)
        case ["cancel", job]:
            child.cancelled.add(job)
            if ctx := child.contexts.get(job):
                ctx.cancelled = True
                ctx._cancel()
        case ["forget"]:
            child.runs, child.stages = {}, {}
        case ["stop"]:
            child.inbox.put(None)


def _drained(inbox: queue.SimpleQueue[Given | None]) -> list[Given | None]:
    jobs: list[Given | None] = []
    with contextlib.suppress(queue.Empty):
        while True:
            jobs.append(inbox.get_nowait())
    return jobs


# ---- plain functions, one after another


def work(child: Child) -> None:
    """Runs jobs until told to stop. Finished ones are reported in batches while more are waiting."""
    done: list[Report] = []
    since = time.monotonic()
    while True:
        try:
            given = child.inbox.get_nowait()
        except queue.Empty:
            _report(child, done)
            given = child.inbox.get()
            since = time.monotonic()
        if given is None:
            _report(child, done)
            return
        done.append(_run(child, given))
        now = time.monotonic()
        if len(done) >= _FLUSH_AT or now - since > _FLUSH_EVERY:
            _report(child, done)
            since = now


def _report(child: Child, done: list[Report]) -> None:
    if done:
        child.send("done", [_short(report) for report in done], time.monotonic())
        done.clear()


def _short(report: Report) -> tuple[Any, ...]:
    """Most reports say only that a job completed."""
    if report.verdict == "completed" and report.progress is None and report.items is None:
        return report[:5]
    return tuple(report)


def _run(child: Child, given: Given) -> Report:
    started = child.status.begin(given.job[0])
    ctx = child.context(given, started)
    memory = given.job[4]
    try:
        if ctx.cancelled:
            return Report(ctx.job, ctx.attempt, "cancelled", None, started)
        if memory:
            _limit_memory(memory)
        task, arguments = child.call(given)
        emitter = child.emitter(ctx, given)
        value = task.fn(ctx, **arguments)
        if task.streams:
            value = _drain_generator(value, emitter)
        return succeeded(ctx, value, started, _last_items(emitter, task, value))
    except BaseException as error:
        return failed(ctx, error, started, _captured)
    finally:
        if memory:
            _limit_memory(child.memory_mib)
        child.forget(ctx.job)
        child.status.end()
        _forget_output()


def _last_items(emitter: Emitter | None, task: Task[Any, Any], value: Any) -> Any:
    if emitter is None:
        return None
    if not task.streams:
        emitter.pass_on(value)
    return emitter.rest()


def _drain_generator(items: Any, emitter: Emitter | None) -> Any:
    """Emits what a generator yields; its `return` is the result."""
    while True:
        try:
            item = next(items)
        except StopIteration as stop:
            return stop.value
        if emitter is not None:
            emitter.add(item)


# ---- captured output: this process's stdout and stderr are one file, emptied between jobs


def _captured() -> str | None:
    sys.stdout.flush()
    sys.stderr.flush()
    size = os.fstat(_STDOUT).st_size
    if not size:
        return None
    data = os.pread(_STDOUT, LOG_LIMIT, max(0, size - LOG_LIMIT))
    return clean(data.decode("utf-8", "replace"), LOG_LIMIT)


def _forget_output() -> None:
    # What the function did to these (closed, replaced) must not end the process that runs the next job.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        if os.fstat(_STDOUT).st_size:
            os.ftruncate(_STDOUT, 0)


# ---- async functions, many at once


_log_of_job: contextvars.ContextVar[deque[str] | None] = contextvars.ContextVar("log_of_job", default=None)


class _JobLog(logging.Handler):
    """Keeps the last lines that each async job logged; printed output cannot be told apart."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = _log_of_job.get()
        if lines is not None:
            lines.append(self.format(record))


async def work_async(child: Child) -> None:
    loop = asyncio.get_running_loop()
    done: list[Report] = []
    running: set[asyncio.Task[None]] = set()
    wake = asyncio.Event()
    arrived: deque[Given | None] = deque()

    def pump() -> None:  # a thread: the inbox is a thread's queue
        while True:
            jobs = [child.inbox.get(), *_drained(child.inbox)]
            arrived.extend(jobs)
            loop.call_soon_threadsafe(wake.set)
            if None in jobs:
                return

    threading.Thread(target=pump, daemon=True).start()

    def flush() -> None:
        if done:
            _report(child, done)

    async def one(given: Given) -> None:
        done.append(await _run_async(child, given, loop))
        if len(done) >= _FLUSH_AT or len(running) <= 1:
            flush()
        elif len(done) == 1:
            loop.call_later(_FLUSH_EVERY, flush)

    stopping = False
    while not stopping:
        await wake.wait()
        wake.clear()
        while arrived:
            given = arrived.popleft()
            if given is None:
                stopping = True
                continue
            task = loop.create_task(one(given))
            running.add(task)
            task.add_done_callback(running.discard)
    if running:
        await asyncio.wait(running)
    flush()


async def _run_async(child: Child, given: Given, loop: asyncio.AbstractEventLoop) -> Report:
    started = time.monotonic()
    lines: deque[str] = deque(maxlen=200)
    _log_of_job.set(lines)
    ctx = child.context(given, started)
    try:
        if ctx.cancelled:
            return Report(ctx.job, ctx.attempt, "cancelled", None, started)
        this = asyncio.current_task()
        assert this is not None
        ctx._cancel = lambda: loop.call_soon_threadsafe(this.cancel)
        task, arguments = child.call(given)
        emitter = child.emitter(ctx, given)
        if task.streams:
            value = await _drain_async(task.fn(ctx, **arguments), emitter)
        else:
            value = await task.fn(ctx, **arguments)
        return succeeded(ctx, value, started, _last_items(emitter, task, value))
    except asyncio.CancelledError:
        return Report(ctx.job, ctx.attempt, "cancelled", None, started, ctx._snapshot())
    except BaseException as error:
        return failed(ctx, error, started, lambda: clean("\n".join(lines), LOG_LIMIT) or None)
    finally:
        child.forget(ctx.job)


async def _drain_async(items: Any, emitter: Emitter | None) -> None:
    async for item in items:
        if emitter is not None:
            emitter.add(item, wait=False)
            if emitter.full:
                await asyncio.get_running_loop().run_in_executor(None, emitter.wait)


# ---- starting


def _die_with_parent() -> None:
    """Linux ends this process with its supervisor even while native code holds the interpreter."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _limit_memory(mib: int) -> None:
    """Private memory beyond the limit raises MemoryError; the supervisor watches too, for where this cannot."""
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (mib << 20 if mib else hard, hard))


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    status = Status(int(sys.argv[2]))
    os.close(int(sys.argv[2]))
    supervisor = int(sys.argv[3])
    sys.argv = sys.argv[:1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    if os.getppid() != supervisor:
        return  # it died before we could ask to die with it
    faulthandler.enable()
    unpacker = Unpacker()
    messages: list[list[Any]] = []
    while not messages:
        data = link.recv(1 << 20)
        if not data:
            return
        messages += unpacker.feed(data)
    setup = messages[0][1]
    sys.path[:] = setup["path"]
    if setup["memory_mib"]:
        _limit_memory(setup["memory_mib"])
    try:
        child = Child(link, status, setup)
    except BaseException:
        link.sendall(pack(["broken", clean(traceback.format_exc(), 8000)]))
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    child.send("hello", sorted(child.registry.tasks))
    threading.Thread(target=listen, args=(child, unpacker, messages[1:]), daemon=True, name="gristmill-listener").start()
    if setup["async"]:
        logging.getLogger().addHandler(_JobLog())
        asyncio.run(work_async(child))
    else:
        work(child)
    sys.stdout.flush()
    os._exit(0)  # threads that a job left behind must not keep this process


if __name__ == "__main__":
    main()
