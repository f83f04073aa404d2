"""What the functions of a child log: kept with a failed attempt, and as JSON with the ids of the job that said it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from gristmill.execution.context import Context

job_now: ContextVar[Context | None] = ContextVar("job_now", default=None)  # the job that a task of the event loop is
_MOST = 200  # lines that are kept


class JobLog(logging.Handler):
    """Keeps the last lines that each async job logged; printed output cannot be told apart."""

    def emit(self, record: logging.LogRecord) -> None:
        now = job_now.get()
        if now is not None:
            now._lines = (*now._lines[1 - _MOST :], self.format(record))


def log_as_json(descriptor: int, worker: int, contexts: Mapping[int, Context]) -> None:
    """What this process logs goes to its worker's stderr too. `contexts`: the jobs that it is on."""
    from gristmill.logs import json_lines_to  # only where it is asked for

    def about() -> dict[str, Any]:
        now = job_now.get()
        if now is not None:
            return {"worker": worker, **about_job(now)}
        on = list(contexts.values())  # a plain child is on one job, whichever thread speaks
        return {"worker": worker, **(about_job(on[0]) if len(on) == 1 else {})}

    logging.getLogger().addHandler(json_lines_to(descriptor, about))


def about_job(ctx: Context) -> dict[str, Any]:
    said = {
        "pipeline": ctx.pipeline,
        "subject": ctx.subject,
        "run": ctx.run,
        "stage": ctx.stage,
        "task": ctx.task,
        "key": ctx.key,
        "job": ctx.job,
        "attempt": ctx.attempt,
        "trace": ctx._row[5].split("-")[1] if len(ctx._row) > 5 and ctx._row[5] else None,
    }
    return {name: value for name, value in said.items() if value is not None}
