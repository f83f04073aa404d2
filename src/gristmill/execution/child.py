"""The child process: reads jobs from its supervisor, runs them, and says what became of each.

The main thread runs jobs (or, for async functions, an event loop). A second thread reads the supervisor's messages, so
that a recall or a cancellation is heard while a job runs, and ends the process when the supervisor or its lease is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic, sleep  # by name: a job that puts others in their place does not keep its process alive
from typing import TYPE_CHECKING, Any

from gristmill import traces
from gristmill.execution.call import call
from gristmill.execution.context import Common, Context
from gristmill.execution.emitter import Emitter
from gristmill.execution.frames import AT_ONCE, FLUSH_AT, FLUSH_EVERY, SPOKEN, Unpacker, heard, pack, updated
from gristmill.execution.home import Home
from gristmill.execution.joblog import JobLog, log_as_json
from gristmill.execution.load import load_for_child
from gristmill.execution.parts import stage_row
from gristmill.execution.run import Ended, Plain, cancelled, clean, failed, succeeded, untold
from gristmill.execution.status import Status
from gristmill.pipeline import Task
from gristmill.registry import Registry

if TYPE_CHECKING:
    from gristmill.errors import LockLost
    from gristmill.execution.locking import Locks
    from gristmill.execution.loop import Loop
    from gristmill.ledger.store import Ledger

_MANY_OBJECTS = 50_000  # a thousand jobs at once are that many, and none is garbage: Python would look through all of them
_PATIENCE = 5.0  # seconds for the supervisor to let this process go; without jobs, it may go anyway
LEASE_OVER = 75  # the exit code of a child whose supervisor let its lease run out
LOCK_LOST = 76  # and of one that ended a job which relied on a lock that it had lost


Given = tuple[Common, Sequence[Any]]  # what a job has in common with others, and its own row


class Child:
    """The state that both threads share."""

    def __init__(self, link: socket.socket, status: Status, setup: dict[str, Any]) -> None:
        self.link = link
        self.status = status
        self.registry: Registry = load_for_child(setup["sources"])
        self.database: str = setup["database"]
        self.delivery: tuple[str, str | None] = tuple(setup["delivery"])
        self.worker: int = setup["worker"]
        self.memory_mib: int = setup["memory_mib"]
        self.at_once: int = setup["at_once"]  # coroutines
        self.inbox: deque[Given] = deque()
        self.arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: no more will come
        self.loop: Loop | None = None  # where async functions run
        self.runs: dict[int, list[Any]] = {}
        self.stages: dict[int, list[Any]] = {}
        self.contexts: dict[int, Context] = {}
        self.emitters: dict[int, Emitter] = {}
        self.tellers: set[int] = set()  # jobs that have said how far they are
        self.cancelled: set[tuple[int, int]] = set()  # jobs and attempts: it may come too late, for one that has ended
        self.home = Home()
        self.done: list[Plain | Ended] = []
        self._reporting = threading.Lock()
        self._sending = threading.Lock()
        self._ledger: Ledger | None = None
        self._debug: bool = setup["debug"]
        self._locks: Locks | None = None

    def send(self, *message: Any) -> None:
        data = pack(list(message))
        with self._sending:
            self.link.sendall(data)

    def report(self) -> None:
        """Sends what is finished: of plain completions the columns of the ledger's rows, of others all there is to say."""
        with self._reporting:
            done = self.done[:]  # the other thread may append meanwhile
            if not done:
                return
            at = monotonic()
            plain = [d for d in done if len(d) == 4]
            others = [d for d in done if len(d) == 2] if len(plain) < len(done) else []
            reports = [tuple(report._replace(ran=_ran(started, at))) for report, started in others]
            completed: list[Any] = []
            if plain:
                jobs, attempts, results, begun = zip(*plain, strict=True)
                completed = [jobs, attempts, results, [_ran(started, at) for started in begun]]
            took = at - min(d[-1] for d in done)
            try:
                self.send("done", completed, reports, took)
            except TypeError:  # one says what is no JSON: the others must not wait for it for ever
                self.send("done", completed, [_sendable(report) for report in reports], took)
            del self.done[: len(done)]

    def tell_arrived(self, more: bool) -> None:
        if self.loop is None:
            self.arrived.put(more)
        else:
            self.loop.arrived(more)

    def ledger(self) -> Ledger:
        """Opened only when a job's code asks."""
        if self._ledger is None:
            from gristmill.delivery.choose import choose
            from gristmill.ledger.store import Ledger

            self._ledger = Ledger(self.database)
            self._ledger.announcer = choose(self._ledger, *self.delivery)
        return self._ledger

    def locks(self) -> Locks:
        if self._locks is None:
            from gristmill.execution.locking import Locks

            self._locks = Locks(self.ledger(), self._debug)
        return self._locks

    def report_wait(self, job: int, attempt: int, since: float | None, waited: float | None) -> None:
        self.send("lock", job, attempt, since, waited)

    def is_on(self, ctx: Context) -> bool:
        return self.contexts.get(ctx.job) is ctx

    def lost_lock(self, ctx: Context, error: LockLost) -> None:
        """Ends this process before the job does what only the holder of the lock may do. Others go back unspent."""
        report, started = failed(ctx, error, self.home.captured)
        with contextlib.suppress(OSError):
            self.report()
            at = monotonic()
            self.send("done", [], [tuple(report._replace(ran=_ran(started, at)))], at - started)
        os._exit(LOCK_LOST)

    def context(self, given: Given, started: float) -> Context:
        common, row = given
        ctx = Context(row, common, started, self)
        self.contexts[row[1]] = ctx
        if len(row) > 5 and row[5]:
            traces.enter(row[5])
        if self.cancelled and (ctx.job, ctx.attempt) in self.cancelled:
            ctx._asked = True
        return ctx

    def call(self, given: Given) -> tuple[Task[Any, Any], Mapping[str, Any]]:
        """The task that a job names, and the arguments of the call."""
        common, row = given
        task = self.registry.task(common.task)
        return task, task.parameters.select(row[4], common.run_row[4] if common.run_row else None)

    def task(self, name: str) -> Task[Any, Any]:
        return self.registry.task(name)

    def stage_row(self, task: str, stage: int | None) -> Sequence[Any] | None:
        """Of a part that of its job's stage."""
        return self.stages.get(stage) if stage is not None else stage_row(self.registry.tasks.get(task))

    def report_progress(self, job: int, attempt: int, state: dict[str, Any]) -> None:
        self.tellers.add(job)
        self.send("progress", job, attempt, state)

    def telling(self) -> list[Context]:
        """Running jobs that say how far they are. (Not all are asked: a thousand may run at once.)"""
        return [ctx for job in list(self.tellers) if (ctx := self.contexts.get(job)) is not None]

    def emitter(self, ctx: Context) -> Emitter | None:
        """Where this job's items go; None: no `each` stage comes after it."""
        common = ctx._common
        if common.stage_row is None or not common.stage_row[2]:
            return None
        emitter = Emitter(ctx, common.stage_row[2], self.registry, common.run_args, self.send)
        self.emitters[ctx.job] = emitter
        return emitter

    def rest(self, ctx: Context) -> Any:
        """Items that a job emitted and that were not sent when it failed."""
        emitter = self.emitters.get(ctx.job)
        return emitter.rest(failed=True) if emitter is not None else None

    def forget(self, job: int) -> None:
        ctx = self.contexts.pop(job)
        if self.emitters and (emitter := self.emitters.pop(job, None)):
            emitter.close()
        if self.tellers:
            self.tellers.discard(job)
        if self.cancelled:
            self.cancelled.discard((job, ctx.attempt))


def _ran(started: float, ended: float) -> int:
    """In microseconds; at least one, since 0 says that it never began."""
    return int((ended - started) * 1e6) + 1


def _sendable(report: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        pack([report])
    except TypeError as problem:
        return tuple(untold(report[0], report[1], "it has ended", problem)._replace(ran=report[4]))
    return report


# ---- the thread that listens


def watch_lease(status: Status) -> None:
    """Ends this process when its lease is over: whatever runs here is someone else's then. Waits for nothing else."""
    while (left := status.deadline() - monotonic()) > 0:
        sleep(min(left, 1.0))
    os._exit(LEASE_OVER)


def listen(child: Child, unpacker: Unpacker, early: list[list[Any]]) -> None:
    """Reads messages until the supervisor is gone; then so is this process. `early`: what came with the set-up."""
    try:
        for message in early:
            _hear(child, message)
        while True:
            patience = 0.05 if child.emitters else 0.25 if child.telling() else 1.0
            readable = heard(child.link, patience)
            for emitter in list(child.emitters.values()):
                emitter.flush_if_old()
            for ctx in child.telling():
                ctx._tell()
            if readable:
                data = child.link.recv(AT_ONCE)
                if not data:
                    break
                for message in unpacker.feed(data):
                    _hear(child, message)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _hear(child: Child, message: list[Any]) -> None:
    match message:
        case ["jobs", runs, stages, kinds, columns]:
            child.runs.update({number: info for number, *info in runs})
            child.stages.update({number: info for number, *info in stages})
            common = [
                Common(task, timeout, memory, run, child.runs.get(run), child.stage_row(task, stage), part_of)
                for task, timeout, memory, run, stage, part_of in kinds
            ]
            child.inbox.extend(zip(map(common.__getitem__, columns[0]), zip(*columns, strict=True), strict=True))
            child.tell_arrived(True)
        case ["ack", job, refusal]:
            if emitter := child.emitters.get(job):
                emitter.acknowledged(refusal)
        case ["recall"]:
            child.send("returned", [row[1] for _, row in _drained(child.inbox)])
            child.report()  # what is finished must not wait for the job that takes so long
        case ["cancel", job, attempt]:
            child.cancelled.add((job, attempt))
            ctx = child.contexts.get(job)
            if ctx is not None and ctx.attempt == attempt:
                ctx._asked = True
                if child.loop is not None:
                    child.loop.interrupt(ctx)
        case ["forget"]:
            child.runs, child.stages = {}, {}
        case ["stop"]:
            child.tell_arrived(False)


def _drained(inbox: deque[Given]) -> list[Given]:
    jobs: list[Given] = []
    with contextlib.suppress(IndexError):
        while True:
            jobs.append(inbox.popleft())
    return jobs


# ---- plain functions, one after another


def work(child: Child) -> None:
    """Runs jobs until told to stop. Finished ones are reported in batches while more of their task are waiting.

    Before a job of another task they are reported at once: should it end this process, they do not run again for it. Where
    a job has changed this process for those after it, they get another one.
    """
    since, task = monotonic(), ""
    while True:
        try:
            given = child.inbox.popleft()
        except IndexError:
            _tell(child)
            if what := child.home.changed():
                _leave(child, task, what)
                return
            child.status.end()  # not before: a process that dies while it reports must be noticed as one that crashed
            if not child.arrived.get() and not child.inbox:
                return
            since = monotonic()
            continue
        if given[0].task != task:
            _tell(child)
            if what := child.home.changed():
                child.inbox.appendleft(given)
                _leave(child, task, what)
                return
            task = given[0].task
            child.registry.prepare(task)
        child.done.append(_run(child, given))
        if len(child.done) >= FLUSH_AT or monotonic() - since > FLUSH_EVERY:
            _tell(child)
            if what := child.home.changed():
                _leave(child, task, what)
                return
            since = monotonic()


def _tell(child: Child) -> None:
    """The supervisor may be slow to listen: that is not the time of the job which ended last."""
    child.status.pause()
    child.report()


def _leave(child: Child, task: str, what: str) -> None:
    """Gives back what is not begun, and ends this process. What was changed may keep its last report from arriving: then
    that job is to blame, so it stays the current one."""
    child.send("changed", task, what)
    with contextlib.suppress(queue.Empty):
        while child.arrived.get(timeout=_PATIENCE):
            pass
    child.send("returned", [row[1] for _, row in _drained(child.inbox)])


def _run(child: Child, given: Given) -> Plain | Ended:
    common, row = given
    ctx = child.context(given, child.status.begin(row[1]))
    try:
        if ctx._asked:
            return cancelled(ctx)
        if common.memory_mib:
            _limit_memory(common.memory_mib)
        task, arguments = child.call(given)
        emitter = child.emitter(ctx)
        value, items = call(task, ctx, arguments, emitter)
        return succeeded(ctx, value, items)
    except BaseException as error:
        return failed(ctx, error, child.home.captured, child.rest(ctx))
    finally:
        if common.memory_mib:
            _limit_memory(child.memory_mib)
        child.forget(row[1])
        child.home.restore()


# ---- async functions, many at once


def work_async(child: Child, listener: threading.Thread) -> None:
    """The listener starts when there is a loop that it can wake."""
    import asyncio  # not above: children for plain functions do not need it

    from gristmill.execution.loop import Loop

    runner = asyncio.Runner()  # never closed: that would wait for threads which a job has left behind
    child.loop = Loop(child, runner.get_loop())
    listener.start()
    runner.run(child.loop.work())


# ---- starting


def die_with_parent() -> None:
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
    # A stop is the supervisor's matter. Handlers, not SIG_IGN: programs that a job starts would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    die_with_parent()
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
    if setup.get("spoken") != SPOKEN:
        link.sendall(pack(["broken", updated(setup.get("spoken"), SPOKEN)]))
        return
    sys.path[:] = setup["path"]
    if setup["memory_mib"]:
        _limit_memory(setup["memory_mib"])
    try:
        child = Child(link, status, setup)
    except BaseException:
        link.sendall(pack(["broken", clean(traceback.format_exc(), 8000)]))
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if setup["log"] is not None:
        log_as_json(setup["log"], child.worker, child.contexts)
    gc.freeze()  # what is loaded by now stays: no need to look through it again and again
    tasks = child.registry.tasks
    child.send("hello", sorted(tasks), any(task.is_async for task in tasks.values()), SPOKEN)
    listener = threading.Thread(target=listen, args=(child, unpacker, messages[1:]), daemon=True, name="gristmill-listener")
    threading.Thread(target=watch_lease, args=(status,), daemon=True, name="gristmill-lease").start()
    if setup["async"]:
        logging.getLogger().addHandler(JobLog())
        gc.set_threshold(_MANY_OBJECTS, *gc.get_threshold()[1:])
        work_async(child, listener)
    else:
        listener.start()
        work(child)
    traces.leave()
    sys.stdout.flush()
    os._exit(0)  # threads that a job left behind must not keep this process


if __name__ == "__main__":
    main()
