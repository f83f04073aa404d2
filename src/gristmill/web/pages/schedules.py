"""Schedules: next and last times in plain words; pause, resume, run now; what became of each time."""

from __future__ import annotations

from starlette.responses import Response

from gristmill.model import Firing
from gristmill.web.phrases import part
from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()
_HISTORY = 50


@pages.live("/schedules")
def schedules(view: View) -> Response:
    found = view.mill.schedules()
    runnable = {entry.name for entry in found if _runnable(view, entry.spec)}
    return view.page("schedules.html", title="Schedules", schedules=found, runnable=runnable)


@pages.get("/schedules/{name:path}/history")
def schedule(view: View, name: str) -> Response:
    found = view.mill.schedule(name)
    history = view.mill.schedule_history(name, limit=_HISTORY)
    runnable = _runnable(view, found.spec)
    return view.page("schedule.html", title=f"Schedule {name}", entry=found, history=history, runnable=runnable)


def _runnable(view: View, spec: dict[str, object]) -> bool:
    """This server's application knows what it starts."""
    registry = view.mill.registry
    return spec.get("task") in registry.tasks or spec.get("pipeline") in registry.pipelines


@pages.post("/schedules/{name:path}/pause")
def pause(view: View, name: str) -> Response:
    view.mill.pause_schedule(name, by=view.by)
    return view.done(_where(name), f"schedule {name} is paused")


@pages.post("/schedules/{name:path}/resume")
def resume(view: View, name: str) -> Response:
    view.mill.resume_schedule(name, by=view.by)
    return view.done(_where(name), f"schedule {name} goes on with its next time")


@pages.post("/schedules/{name:path}/run-now")
def run_now(view: View, name: str) -> Response:
    return view.done(_where(name), f"schedule {name}: {_said(view.mill.run_schedule(name, by=view.by))}")


def _said(fired: Firing) -> str:
    started = [*([f"job {fired.job}"] if fired.job else []), *(f"run {run}" for run in fired.runs)]
    more = f" ({fired.detail})" if fired.detail else ""
    return f"{fired.outcome} {', '.join(started)}".strip() + more


def _where(name: str) -> str:
    return f"/schedules/{part(name)}/history"
