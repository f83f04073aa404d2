"""Named locks for user code: `with ctx.lock("edition", 42):`, or `async with`.

Who wants a lock waits in its own thread or task. One more thread per process, made for the first lock, watches what is held:
it renews leases, and when a lock is lost it sees to it that whoever relies on it is stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from gristmill.errors import DatabaseError, Invalid, LockLost, LockTimeout, Refused, Stopped, Unavailable
from gristmill.execution.context import storable
from gristmill.ledger import forks
from gristmill.ledger.lock_sessions import Rows, Session, Sessions
from gristmill.ledger.locks import LockKey, Who, key_of

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from sqlalchemy import Connection

    from gristmill.execution.context import Context
    from gristmill.ledger.store import Ledger
    from gristmill.ledger.tx import Tx

log = logging.getLogger("gristmill.locks")

_PATIENCE = 0.03  # seconds that a wait may take without being one
_LOOK = 0.25  # seconds between two looks whether the job was cancelled, or the time is up
_WATCH = 0.5  # and between two looks at what is held
_GRACE = 2.0  # seconds that a task which was cancelled has to leave its block
_AGAIN = 0.5  # seconds until a database that could not be reached is asked again


class Party(Protocol):
    """On whose behalf a lock is asked for."""

    @property
    def who(self) -> Who: ...
    @property
    def told_to_stop(self) -> bool: ...
    @property
    def over(self) -> bool:
        """Has it ended, and left the lock behind?"""

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """A block in which its time limit does not count."""

    def lost(self, error: LockLost) -> None:
        """Ends it at once, where that can be done; it relies on a lock that it does not have."""


class Program:
    """A program outside jobs: nobody times it or stops it. It learns of a lost lock when it asks, or leaves the block."""

    told_to_stop = over = False

    def __init__(self) -> None:
        self.who = Who(0, os.getpid(), 0)

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def lost(self, error: LockLost) -> None:
        log.error("%s", error)


class JobParty:
    """A job that asks for a lock."""

    def __init__(self, ctx: Context) -> None:
        assert ctx._host is not None
        self._ctx, self._host = ctx, ctx._host
        self.who = Who(ctx.job, ctx.attempt if ctx.job else os.getpid(), ctx._host.worker)

    @property
    def told_to_stop(self) -> bool:
        return self._ctx._asked

    @property
    def over(self) -> bool:
        return not self._host.is_on(self._ctx)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Several tasks of one job may wait at once: its clock stands still while any of them does."""
        ctx = self._ctx
        with _clock:
            ctx._waiters += 1
            if ctx._waiters == 1:
                ctx._waits_since = time.monotonic()
                self._host.report_wait(ctx.job, ctx.attempt, ctx._waits_since, None)
        try:
            yield
        finally:
            with _clock:
                ctx._waiters -= 1
                if not ctx._waiters:
                    waited = time.monotonic() - ctx._waits_since
                    ctx._started += waited
                    self._host.report_wait(ctx.job, ctx.attempt, None, waited)

    def lost(self, error: LockLost) -> None:
        self._host.lost_lock(self._ctx, error)


_clock = threading.Lock()


class Locks:
    """All locks of one process on one database; without one, as in a test of a single function, every lock is free."""

    def __init__(self, ledger: Ledger | None, debug: bool = False, *, may_block: bool = False) -> None:
        self._ledger = ledger
        self._debug = debug
        self._may_block = may_block or ledger is None  # an event loop: a test may have one, and runs plain functions in it
        self._parents: Rows | Sessions | None = None
        self._begin()
        forks.start_anew(self)

    def _begin(self) -> None:
        self._source: Rows | Sessions | None = None
        self._mine: dict[object, list[Lock]] = {}  # what each thread or task holds
        self._held: set[Lock] = set()
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._watcher: threading.Thread | None = None
        self._threads: ThreadPoolExecutor | None = None

    def lock(self, kind: str | int, item: str | int, timeout: float | None, party: Party) -> Lock:
        if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
            raise Invalid(f"the timeout of a lock is in seconds, not {timeout!r:.40}")
        key = key_of(kind, item)
        return Lock(self, key._replace(name=storable(key.name)), timeout, party)

    def held_here(self) -> list[Lock]:
        """What this thread or task holds."""
        return list(self._mine.get(_here(), ()))

    def close(self) -> None:
        with self._mutex:
            if self._source is not None:
                self._source.close_idle(all_of_them=True)

    def close_idle(self) -> None:
        """Nothing has to be closed before this process is forked."""

    def leave_behind(self) -> None:
        """This process was forked: threads, sessions and what is held are its parent's. (Sessions mind being forgotten.)"""
        self._parents = self._source
        self._begin()

    # ---- for locks

    def session(self, key: LockKey, who: Who) -> Session:
        if self._ledger is None:
            return _Free()
        with self._mutex:
            if self._source is None:
                self._source = Rows(self._ledger) if self._ledger.is_sqlite else Sessions(self._ledger)
        return self._source.session(key, who)

    def check_order(self, lock: Lock) -> None:
        """Who waits for a second lock while it holds one may wait for somebody who waits for the first, for ever."""
        for other in self.held_here():
            if other._party.over:
                other._look()  # a job before this one left it behind
                continue
            if other.key[:2] == lock.key[:2]:
                raise Refused(f"the lock {lock.key.name} is held here already: it would wait for itself")
            said = f"the lock {lock.key.name} is asked for while {other.key.name} is held"
            if self._debug:
                raise Refused(f"{said}: two who do that in different order wait for ever; give the first one back before")
            log.warning("%s: two who do that in different order wait for ever", said)

    def check_loop(self, lock: Lock) -> None:
        """A plain `with` in a task would stop all others while it waits, perhaps the one that it waits for."""
        if not self._may_block and _task() is not None:
            raise Invalid(
                f"the lock {lock.key.name} is asked for in an async function: write `async with`, or nothing else moves"
            )

    def acquired(self, lock: Lock, owner: object) -> None:
        with self._mutex:
            self._held.add(lock)
            self._mine.setdefault(owner, []).append(lock)
            if self._ledger is not None and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True, name="gristmill-locks")
                self._watcher.start()
        self._wake.set()

    def freed(self) -> None:
        """A session may be idle now: somebody is to close it after a while."""
        self._wake.set()

    def left(self, lock: Lock, owner: object) -> None:
        with self._mutex:
            self._held.discard(lock)
            mine = self._mine.get(owner, [])
            if lock in mine:
                mine.remove(lock)
            if not mine:
                self._mine.pop(owner, None)

    def still_held(self, lock: Lock) -> bool:
        return lock in self._held

    def holds(self, session: Session, connection: Connection | None) -> bool:
        if self._ledger is None:
            return True
        if connection is None:
            return self._ledger.glance(session.holds)
        return self._ledger.join(connection, session.holds)

    async def run(self, call: Callable[[], bool]) -> bool:
        """In a thread of our own: the database may keep us waiting, and others use the loop's. Whatever happens to the task
        that waits here, it is done."""
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        if self._ledger is None:
            return call()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(4, "gristmill-locks")
        return await asyncio.shield(asyncio.wrap_future(self._threads.submit(call)))

    # ---- the thread that watches

    def _watch(self) -> None:
        while True:
            with self._mutex:
                held = list(self._held)
            idle = self._source is not None and self._source.close_idle()
            if not held and not idle:
                self._wake.wait()
            self._wake.clear()
            self._listen(held)
            for lock in held:
                try:
                    lock._look()
                except Exception:  # one lock must not keep the others from being watched
                    log.exception("the lock %s cannot be watched", lock.key.name)

    def _listen(self, held: list[Lock]) -> None:
        """Sleeps until one of the sessions says something (that it is over), a new one is there, or it is time."""
        numbers = [number for lock in held if (number := lock._session.fileno()) is not None]
        if not numbers:
            self._wake.wait(_WATCH)
            return
        watching = select.poll()
        for number in numbers:
            watching.register(number, select.POLLIN)
        watching.poll(_WATCH * 1000)


def _here() -> object:
    """The task that runs, or the thread."""
    return _task() or threading.get_ident()


def _task() -> object | None:
    asyncio = sys.modules.get("asyncio")  # who has not imported it, has no tasks
    with contextlib.suppress(RuntimeError):
        return None if asyncio is None else asyncio.current_task()
    return None


class Lock:
    """A lock that is asked for; held inside `with lock:` or `async with lock:`."""

    def __init__(self, locks: Locks, key: LockKey, timeout: float | None, party: Party) -> None:
        self.key = key
        self._locks, self._timeout, self._party = locks, timeout, party
        self._session: Session = locks.session(key, party.who)
        self._process = os.getpid()
        self._entered = False
        self._asked = False
        self._given_up = False
        self._stepping = threading.Lock()
        self._leaving = threading.Lock()
        self._again_at = 0.0
        self._warned = False
        self._owner: object = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lost: LockLost | None = None
        self._cancelled = False  # we have cancelled the task that holds it
        self._lost_at = 0.0
        self._told = False

    @property
    def token(self) -> int | None:
        """Only grows from one holder of this lock to the next: for what must refuse a holder that comes too late."""
        return self._session.token

    def check(self, connection: Connection | None = None) -> None:
        """Raises `LockLost` unless the lock is still held; with a connection, as its transaction sees it."""
        if self._lost is None and not self._locks.holds(self._session, connection):
            self._lost = self._loss()
        if self._lost is not None:
            raise self._lost

    # ---- waiting

    def __enter__(self) -> Self:
        self._locks.check_loop(self)
        self._begin()
        try:
            if not self._soon():
                with self._party.waiting():
                    while not self._step():
                        self._session.wait(self._pause())
        except BaseException:
            self._give_up()
            raise
        self._got()
        return self

    async def __aenter__(self) -> Self:
        import asyncio

        self._begin()
        self._loop = asyncio.get_running_loop()
        try:
            if not await self._locks.run(self._soon):
                with self._party.waiting():
                    while not await self._locks.run(self._step):
                        await self._something()
        except BaseException:
            threading.Thread(target=self._give_up, daemon=True).start()  # a step may be under way, and takes its time
            raise
        self._got()
        return self

    def _begin(self) -> None:
        if self._entered:
            raise Invalid(f"this lock {self.key.name} was used before; ask for a new one each time")
        self._locks.check_order(self)
        self._entered = True
        self._until = None if self._timeout is None else time.monotonic() + self._timeout

    def _soon(self) -> bool:
        """Nearly always the lock is free."""
        if self._step():
            return True
        self._session.wait(_PATIENCE)
        return self._step()

    def _step(self) -> bool:
        """Asks, or looks whether it is our turn. A database that cannot be reached is asked again: a lock blocks."""
        with self._stepping:
            if self._given_up:
                return False
            try:
                if self._asked:
                    if self._session.poll():
                        return True
                elif time.monotonic() >= self._again_at:
                    self._session.ask()
                    self._asked = True
                    return self._session.poll()
            except Unavailable as error:
                self._asked = False
                self._again_at = time.monotonic() + _AGAIN
                if not self._warned:
                    log.warning("%s; still waiting for the lock %s", error, self.key.name)
                self._warned = True
            return False

    def _pause(self) -> float:
        """How long to sleep until the next look; raises if there should be none."""
        if self._party.told_to_stop:
            raise Stopped
        left = _LOOK if self._until is None else self._until - time.monotonic()
        if left <= 0:
            raise LockTimeout(f"the lock {self.key.name} was not free within {self._timeout:g} s")
        return min(left, _LOOK)

    async def _something(self) -> None:
        """Sleeps in a task as `Session.wait` does in a thread."""
        import asyncio

        assert self._loop is not None
        pause = self._pause()
        number = self._session.fileno()
        if number is None:
            await asyncio.sleep(min(pause, 0.1))
            return
        said = asyncio.Event()
        self._loop.add_reader(number, said.set)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(said.wait(), pause)
        finally:
            self._loop.remove_reader(number)

    # ---- holding

    def _got(self) -> None:
        self._owner = _here()
        self._locks.acquired(self, self._owner)

    def _look(self) -> None:
        """Called by the thread that watches."""
        if self._party.over:
            log.warning("the lock %s was not given back by its job: it is now", self.key.name)
            self._leave()
            return
        if self._is_well():
            return
        if not self._lost_at:
            self._lost_at = time.monotonic()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._cancel)
                return
        assert self._lost is not None
        if not self._told and (self._loop is None or time.monotonic() - self._lost_at > _GRACE):
            self._told = True
            self._party.lost(self._lost)

    def _is_well(self) -> bool:
        """Is it held, or given back? (Not just now: what is being given back must not look lost.)"""
        with self._leaving:
            if not self._locks.still_held(self):
                return True
            try:
                if self._lost is None and not self._session.still_held():
                    self._lost = self._loss()
            except DatabaseError as error:  # asked again; who takes it away meanwhile makes it lost
                log.warning("the lock %s: %s", self.key.name, error)
            return self._lost is None

    def _cancel(self) -> None:
        if self._locks.still_held(self):
            self._cancelled = True
            self._owner.cancel()  # type: ignore[attr-defined]

    def _loss(self) -> LockLost:
        return LockLost(f"the lock {self.key.name} was lost while it was held: its connection was cut, or its lease ended")

    # ---- leaving

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._raise_unless(self._leave(), error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        self._locks.left(self, self._owner)
        if self._cancelled:
            task = asyncio.current_task()
            assert task is not None
            if not isinstance(error, asyncio.CancelledError):  # our cancellation is still to come
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            if not task.uncancel():  # or somebody else wants it to end, too
                error = None
        self._raise_unless(await self._locks.run(self._leave), error)

    def _leave(self) -> bool:
        if os.getpid() != self._process:  # a process that the holder forked has left its copy of the block
            return True
        with self._leaving:
            self._locks.left(self, self._owner)
            try:
                return self._session.release()
            except DatabaseError as error:
                log.warning("the lock %s could not be given back: %s", self.key.name, error)
                return False
            finally:
                self._locks.freed()

    def _raise_unless(self, was_held: bool, error: BaseException | None) -> None:
        """What was done without the lock is no success. An error of the block's own stays what it is."""
        if not was_held or self._lost is not None:
            self._lost = self._lost or self._loss()
            if error is None:
                raise self._lost
            log.warning("%s", self._lost)

    def _give_up(self) -> None:
        with self._stepping:
            self._given_up = True
            with contextlib.suppress(DatabaseError):
                self._session.release()


class _Free:
    """A lock without a database: nobody else is there."""

    token: int | None = 0

    def ask(self) -> None: ...

    def poll(self) -> bool:
        return True

    def wait(self, seconds: float) -> None: ...

    def fileno(self) -> int | None:
        return None

    def still_held(self) -> bool:
        return True

    def holds(self, tx: Tx) -> bool:
        return True

    def release(self) -> bool:
        return True
