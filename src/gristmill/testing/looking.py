"""Was this work asked for? Says what is there when the answer is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gristmill.binding import encode
from gristmill.mill import Mill
from gristmill.model import Job
from gristmill.pipeline import Task

_MOST = 100_000  # queued jobs of one task that are looked through
_SHOWN = 10


def assert_enqueued(
    mill: Mill,
    task: Task[Any, Any] | str,
    *,
    args: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: str | None = None,
    count: int | None = None,
) -> Job:
    """There is a queued job of this task with at least these arguments (`count`: exactly so many). Says the newest."""
    there = _queued(mill, task)
    found = [job for job in there if _fits(mill, job, task, args, queue, priority)]
    if not found or (count is not None and len(found) != count):
        wanted = "a queued job" if count is None else f"{count} queued job{'' if count == 1 else 's'}"
        raise AssertionError(f"wanted: {wanted} of {_name(task)!r}{_words(args, queue, priority)}; {_there(there, found)}")
    return found[0]


def refute_enqueued(
    mill: Mill,
    task: Task[Any, Any] | str,
    *,
    args: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: str | None = None,
) -> None:
    """There is no such queued job."""
    there = _queued(mill, task)
    found = [job for job in there if _fits(mill, job, task, args, queue, priority)]
    if found:
        wanted = f"no queued job of {_name(task)!r}{_words(args, queue, priority)}"
        raise AssertionError(f"wanted: {wanted}; {_there(there, found)}")


def _queued(mill: Mill, task: Task[Any, Any] | str) -> list[Job]:
    known = mill.registry.task(_name(task))
    return mill.jobs(task=known.name, state="queued", limit=_MOST)


def _name(task: Task[Any, Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _fits(
    mill: Mill,
    job: Job,
    task: Task[Any, Any] | str,
    args: Mapping[str, Any] | None,
    queue: str | None,
    priority: str | None,
) -> bool:
    parameters = mill.registry.task(_name(task)).parameters
    parameters.refuse_unknown(args or {})
    wanted = orjson.loads(encode(parameters.check_named(args or {}), "the arguments"))
    given = job.args or {}
    return (
        all(name in given and given[name] == value for name, value in wanted.items())
        and queue in (None, job.queue)
        and priority in (None, job.priority)
    )


def _words(args: Mapping[str, Any] | None, queue: str | None, priority: str | None) -> str:
    said = [("arguments", args), ("queue", queue), ("priority", priority)]
    return "".join(f", {name} {value!r}" for name, value in said if value is not None)


def _there(there: list[Job], found: list[Job]) -> str:
    if not there:
        return "there is none of this task at all"
    shown = [f"{job.id}: {job.args} in {job.queue!r}, {job.priority}" for job in there[:_SHOWN]]
    more = [f"and {len(there) - _SHOWN} more"] if len(there) > _SHOWN else []
    return "\n  ".join([f"{len(found)} fit of the {len(there)} that are queued:", *shown, *more])
