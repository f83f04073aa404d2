"""Calling a job's function: what it returns is the result, what it yields goes to the emitter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.errors import Skip
from gristmill.execution.context import Context
from gristmill.execution.emitter import Emitter
from gristmill.pipeline import Task

Called = tuple[Any, Any]  # the result, and the last items that were not sent yet


def _skip_unless(task: Task[Any, Any], ctx: Context) -> None:
    """Skips a job that came too late, or whose condition says no."""
    if task.within is not None and (late := ctx._waited()) is not None and late > task.within:
        raise Skip(f"not started within {task.within:g} s")
    if task.when is not None:
        arguments = task.when.parameters.select(ctx._row[4], ctx._common.run_args)
        if not task.when.fn(ctx, **arguments):
            raise Skip("its condition was not met")


def call(task: Task[Any, Any], ctx: Context, arguments: Mapping[str, Any], emitter: Emitter | None) -> Called:
    if task.when or task.within:
        _skip_unless(task, ctx)
    value = task.fn(ctx, **arguments)
    if task.streams:
        value = _drain_generator(value, emitter)
    return value, None if emitter is None else _last_items(emitter, task, value)


async def call_async(task: Task[Any, Any], ctx: Context, arguments: Mapping[str, Any], emitter: Emitter | None) -> Called:
    if task.when or task.within:
        _skip_unless(task, ctx)
    called = task.fn(ctx, **arguments)
    value = await (_drain_async(called, emitter) if task.streams else called)
    return value, None if emitter is None else _last_items(emitter, task, value)


def _last_items(emitter: Emitter, task: Task[Any, Any], value: Any) -> Any:
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


async def _drain_async(items: Any, emitter: Emitter | None) -> Any:
    """Emits what an async generator yields; it cannot return a result."""
    import asyncio  # not above: children for plain functions do not need it

    async for item in items:
        if emitter is not None:
            emitter.add(item, wait=False)
            if emitter.full:
                await asyncio.get_running_loop().run_in_executor(None, emitter.wait)
