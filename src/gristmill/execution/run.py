"""Running one job: from a function and its arguments to an outcome. Nothing here talks to the database."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.binding import encode
from gristmill.errors import EndRun, Invalid, Later, Outcome, Permanent, Skip, Stopped, Unspent, Waiting
from gristmill.execution.context import Context, Unchanged, storable
from gristmill.retry import error_name

TEXT_LIMIT = 64 * 1024  # characters of a traceback that are kept
REASON_LIMIT = 2000
_HERE = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "binding.py"))  # and where items are checked


class Report(NamedTuple):
    """How an attempt ended, as the child tells it."""

    job: int
    attempt: int
    verdict: str
    result: str | None = None
    ran: int = 0  # microseconds since it started
    progress: Any = None
    reason: str | None = None
    error_class: str | None = None
    error_types: tuple[str, ...] = ()
    traceback: str | None = None
    log: str | None = None
    delay: float = 0.0
    items: Any = None  # the last items that it emitted
    digest: str | None = None  # the fingerprint of what it did
    guards: Any = ()  # the versions that it applied


Plain = tuple[int, int, str | None, float]  # nothing but that a job completed: job, attempt, result, when it started
Ended = tuple[Report, float]  # what a report says, and when the job started


def succeeded(ctx: Context, value: Any, items: Any = None) -> Plain | Ended:
    """The report of a function that returned; most say only that, and there may be 100,000 a second."""
    if ctx._finished:
        return finished(ctx)
    if ctx._noticed:
        return cancelled(ctx)
    result = None if value is None else encode(value, "the result")
    if ctx._told is None and items is None and ctx._kept is None:
        return (ctx._row[1], ctx._row[2], result, ctx._started)
    failed = ctx._failed_items()
    verdict = "completed_with_errors" if failed else "completed"
    reason = f"{len(failed)} failed: {', '.join(list(failed)[:5])}" if failed else None
    said = Report(ctx.job, ctx.attempt, verdict, result, 0, ctx._snapshot(), reason, items=items)
    if ctx._kept is not None:
        said = said._replace(digest=ctx._kept.digest, guards=[tuple(guard) for guard in ctx._kept.guards])
    return said, ctx._started


WRITTEN = "written"  # instead of a verdict: the job's end is in the ledger already


def finished(ctx: Context) -> Ended:
    """The report of a function that ended its job itself, once that is committed; or caught what tells it to wait."""
    if ctx._waits:
        return waiting(ctx)
    if not ctx._has_ended():
        raise Invalid("ctx.finish() was called, but its transaction was not committed")
    return Report(ctx.job, ctx.attempt, WRITTEN), ctx._started


def waiting(ctx: Context) -> Ended:
    """The report of a function that has handed over parts."""
    return Report(ctx.job, ctx.attempt, "waiting", progress=ctx._snapshot()), ctx._started


def cancelled(ctx: Context) -> Ended:
    return Report(ctx.job, ctx.attempt, "cancelled", progress=ctx._snapshot()), ctx._started


def failed(ctx: Context, error: BaseException, log: Callable[[], str | None], items: Any = None) -> Ended:
    """The report of a function that raised: an outcome that it chose, or an error. What it emitted before stays."""
    if isinstance(error, Waiting):
        return waiting(ctx)[0]._replace(items=items), ctx._started
    if isinstance(error, Stopped):
        return cancelled(ctx)[0]._replace(items=items), ctx._started
    try:
        report = _failed(ctx, error, log)
    except Exception as problem:  # else nobody would ever hear of its end
        report = untold(ctx.job, ctx.attempt, f"it ended with {type(error).__name__}", problem)
    return report._replace(items=items), ctx._started


def untold(job: int, attempt: int, what: str, problem: Exception) -> Report:
    """Instead of a report that cannot be made, or not be sent."""
    said = clean(f"{what}, and the rest cannot be told: {_said(problem)}", REASON_LIMIT)
    return Report(job, attempt, "error", reason=said, error_class=error_name(type(problem)))


def _failed(ctx: Context, error: BaseException, log: Callable[[], str | None]) -> Report:
    base = Report(ctx.job, ctx.attempt, "error", progress=ctx._snapshot())
    if isinstance(error, Outcome):
        return _chosen(base, error, log)
    types = tuple(error_name(kind) for kind in type(error).__mro__ if kind not in (object, BaseException))
    return base._replace(
        verdict="permanent" if isinstance(error, Invalid) else "error",
        reason=_said(error),
        error_class=types[0] if types else error_name(type(error)),
        error_types=types,
        traceback=_traceback(error),
        log=log(),
    )


def _chosen(base: Report, error: Outcome, log: Callable[[], str | None]) -> Report:
    reason = clean("" if error.reason is None else _text(error.reason), REASON_LIMIT)
    if isinstance(error, Unchanged):
        return base._replace(verdict="unchanged", result=error.result)
    if isinstance(error, Skip):
        return base._replace(verdict="skipped", reason=reason)
    if isinstance(error, EndRun):
        return base._replace(verdict="end_run", reason=reason)
    if isinstance(error, Later):
        return base._replace(verdict="later", delay=max(0.0, error.seconds), reason=reason)
    if isinstance(error, Unspent):
        return base._replace(verdict="unspent", delay=max(0.0, error.pause), reason=reason, log=log())
    kind = "Permanent" if isinstance(error, Permanent) else error_name(type(error))
    return base._replace(
        verdict="permanent", reason=reason or kind, error_class=kind, traceback=_traceback(error), log=log()
    )


def _text(value: Any) -> str:
    """Any value as text: a user's `__str__` may raise anything."""
    try:
        return str(value)
    except BaseException as problem:
        return f"(its text cannot be had: {type(problem).__name__})"


def _said(error: BaseException) -> str:
    text = _text(error)
    return clean(f"{type(error).__name__}: {text}" if text else type(error).__name__, REASON_LIMIT)


def _traceback(error: BaseException) -> str:
    """The traceback without our own frames at its top, its end kept if it is too long."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-100))
    except BaseException as problem:
        text = f"{type(error).__name__} (and its text cannot be had: {type(problem).__name__})"
    return clean(text, TEXT_LIMIT)


def clean(text: str, limit: int) -> str:
    """Text that every database takes, and not too long (the end is kept)."""
    if len(text) > limit:
        text = "…" + text[-limit:]
    return storable(text)


def item_args(value: Any, first: str | None, where: str) -> Mapping[str, Any]:
    """The arguments that a result becomes when a plain stage passes it on to an `each` stage."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    if first is None:
        raise Invalid(f"{where} takes no argument, so the result {value!r:.60} cannot be passed on to it")
    return {first: value}
