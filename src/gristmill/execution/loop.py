"""The event loop of a child: async functions, many at once, each in a task and a context of its own."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any

from gristmill.execution.call import call_async
from gristmill.execution.context import Context
from gristmill.execution.frames import FLUSH_AT, FLUSH_EVERY
from gristmill.execution.home import LOG_LIMIT
from gristmill.execution.joblog import job_now
from gristmill.execution.run import Ended, Plain, cancelled, clean, failed, succeeded

if TYPE_CHECKING:
    from gristmill.execution.child import Child, Given


class Loop:
    """Runs a child's jobs until told to stop. What waits behind as many as may run at once begins when one has ended."""

    def __init__(self, child: Child, loop: asyncio.AbstractEventLoop) -> None:
        self._child = child
        self._loop = loop
        self._blank = contextvars.copy_context()  # what no job has set anything in
        self._running = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by job; the loop itself would forget them
        self._task = ""  # of the job that was begun last
        self._starting = False
        self._stopping = False
        self._due = False  # what is finished will be reported in a moment
        self._over = loop.create_future()

    # ---- what another thread says

    def arrived(self, more: bool) -> None:
        """There are new jobs; or no more will come."""
        self._loop.call_soon_threadsafe(self._heard, more)

    def interrupt(self, ctx: Context) -> None:
        """This job is to stop. (It may have begun just now: its task is known when the loop comes to this.)"""
        self._loop.call_soon_threadsafe(self._interrupt, ctx)

    # ---- the loop's own

    async def work(self) -> None:
        await self._over
        self._child.report()

    def _heard(self, more: bool) -> None:
        self._stopping = self._stopping or not more
        self._go_on()

    def _interrupt(self, ctx: Context) -> None:
        if self._child.is_on(ctx):
            self._tasks[ctx.job].cancel()

    def _go_on(self) -> None:
        """Something has arrived, or ended: others begin, and the supervisor is told."""
        if not self._starting:  # else whoever began a job that has ended at once goes on
            self._starting = True
            try:
                self._start()
            finally:
                self._starting = False
        self._tell()
        if self._stopping and not self._running and not self._child.inbox and not self._over.done():
            self._over.set_result(None)

    def _start(self) -> None:
        """Begins as many as there is room for now. What some of them leave by ending at once is for the loop's next turn:
        the others have waited longer."""
        inbox = self._child.inbox
        for _ in range(self._child.at_once - self._running):
            try:
                given = inbox.popleft()
            except IndexError:  # all were begun, or recalled
                return
            self._begin(given)
        if inbox and self._running < self._child.at_once:
            self._loop.call_soon(self._go_on)

    def _tell(self) -> None:
        """Reports what is finished; not at once while more is about to be."""
        done = len(self._child.done)
        if done >= FLUSH_AT or (done and not (self._running or self._starting or self._child.inbox)):
            self._child.report()
        elif done and not self._due:
            self._due = True
            self._loop.call_later(FLUSH_EVERY, self._tell_late)

    def _tell_late(self) -> None:
        self._due = False
        self._child.report()

    def _begin(self, given: Given) -> None:
        if given[0].task != self._task:  # as plain functions do: should it end this process, they do not run again for it
            self._child.report()
            self._task = given[0].task
        self._child.status.count()
        self._running += 1
        context = self._blank.copy()
        ctx = context.run(self._enter, given)
        task = begin_at_once(self._loop, self._one(given, ctx), context)
        if not task.done():
            self._tasks[ctx.job] = task

    def _enter(self, given: Given) -> Context:
        ctx = self._child.context(given, monotonic())
        job_now.set(ctx)
        return ctx

    async def _one(self, given: Given, ctx: Context) -> None:
        """A job, and then the one that takes its place: in the same step, as if it were one coroutine."""
        child = self._child
        ended: Plain | Ended
        try:
            if ctx._asked:
                ended = cancelled(ctx)
            else:
                task, arguments = child.call(given)
                emitter = child.emitter(ctx)
                if emitter or task.streams or task.when or task.within:
                    ended = succeeded(ctx, *await call_async(task, ctx, arguments, emitter))
                else:  # each await passes through all that wait for it
                    ended = succeeded(ctx, await task.fn(ctx, **arguments))
        except asyncio.CancelledError as error:
            ended = cancelled(ctx) if ctx._asked else failed(ctx, error, lambda: None)
        except BaseException as error:
            ended = failed(ctx, error, lambda: clean("\n".join(ctx._lines), LOG_LIMIT) or None, child.rest(ctx))
        self._tasks.pop(ctx.job, None)
        child.forget(ctx.job)
        child.done.append(ended)
        self._running -= 1
        self._go_on()


if sys.version_info >= (3, 12):

    def begin_at_once(
        loop: asyncio.AbstractEventLoop, job: Coroutine[Any, Any, None], context: contextvars.Context
    ) -> asyncio.Task[None]:
        """A task whose first step is done here and now, not when the loop has gone through all that is ready."""
        return asyncio.Task(job, loop=loop, context=context, eager_start=True)

else:

    def begin_at_once(
        loop: asyncio.AbstractEventLoop, job: Coroutine[Any, Any, None], context: contextvars.Context
    ) -> asyncio.Task[None]:
        """A task whose first step is done here and now, not when the loop has gone through all that is ready.

        A new task asks its loop to call that step; here it is caught. While it is done, it is the current task.
        """
        steps: list[Callable[[], object]] = []
        vars(loop)["call_soon"] = lambda step, context: steps.append(step)
        try:
            task = asyncio.Task(job, loop=loop, context=context)
        finally:
            del vars(loop)["call_soon"]
        outer = asyncio.current_task(loop)
        if outer is None:
            context.run(steps[0])
            return task
        asyncio.tasks._leave_task(loop, outer)
        try:
            context.run(steps[0])
        finally:
            asyncio.tasks._enter_task(loop, outer)
        return task
