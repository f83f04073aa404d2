"""One attempt in this process: what a child does with a job, without the child."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gristmill.errors import Stopped, Waiting
from gristmill.execution import call as calling
from gristmill.execution.context import Context
from gristmill.execution.emitter import Emitter
from gristmill.execution.run import Report, cancelled, failed, succeeded
from gristmill.pipeline import Task

Performed = tuple[Report, BaseException | None]  # how it ended, and what the function raised


def perform(task: Task[Any, Any], ctx: Context, emitter: Emitter | None) -> Performed:
    """Calls the function and reports as a child would. Ctrl-C, and what pytest raises to end a test, goes through."""
    try:
        arguments = task.parameters.select(ctx._row[4], ctx._common.run_row[4] if ctx._common.run_row else None)
        if ctx._asked:
            return cancelled(ctx)[0], None
        if task.is_async:
            ended = succeeded(ctx, *_run_async(task, ctx, arguments, emitter))
        else:
            ended = succeeded(ctx, *calling.call(task, ctx, arguments, emitter))
    except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError, Waiting, Stopped) as error:
        rest = emitter.rest(failed=True) if emitter is not None else None
        return failed(ctx, error, lambda: None, rest)[0], error
    report = ended[0] if len(ended) == 2 else Report(ended[0], ended[1], "completed", ended[2])
    return report, None


def _run_async(task: Task[Any, Any], ctx: Context, arguments: Mapping[str, Any], emitter: Emitter | None) -> Any:
    def run() -> Any:
        return asyncio.run(calling.call_async(task, ctx, arguments, emitter))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1) as thread:  # the test is async itself, and loops cannot be nested
        return thread.submit(run).result()
