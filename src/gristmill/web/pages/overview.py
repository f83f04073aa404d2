"""The overview: is everything all right? Then queues, what runs now, why things failed, workers, what was done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from gristmill.model import Job, Signature
from gristmill.web import verdict
from gristmill.web.charts import Column
from gristmill.web.routing import Pages
from gristmill.web.verdict import Seen
from gristmill.web.view import View

pages = Pages()
_MOMENT = 0.8  # seconds: those who watch see a change within two
_WHILE = 5.0  # for what changes by the minute, and at most for what takes long to count
_SHOWN = 8
_MINUTES = 60


def look(view: View) -> Seen:
    mill, recent = view.mill, view.site.recent
    status = recent.get("status", _MOMENT, mill.status)
    return Seen(
        status,
        recent.get("errors", _MOMENT, lambda: _errors(view), _WHILE),
        recent.get("limits", _MOMENT, mill.limits, _WHILE),
        recent.get("schedules", _WHILE, mill.schedules),
        recent.get("stuck", _MOMENT, mill.stuck, _WHILE) if status.active else (),
    )


def _errors(view: View) -> list[Signature]:
    return view.mill.errors(since=datetime.now(UTC) - timedelta(days=1), limit=50)


@pages.get("/")
def overview(view: View) -> Response:
    seen = look(view)
    found = verdict.concerns(seen)
    queues = {queue.name: queue for queue in seen.status.queues}
    active = sorted(seen.status.active, key=lambda run: (run.state == "waiting", run.state == "queued", -run.id))
    return view.page(
        "overview.html",
        title="Overview",
        seen=seen,
        concerns=found,
        well=verdict.all_well(seen.status),
        nothing=not seen.status.queues and not seen.status.runs,
        active=active[:_SHOWN],
        more=sum(seen.status.runs.get(state, 0) for state in ("queued", "in_progress", "waiting")) - len(active[:_SHOWN]),
        blocked={run.id: verdict.blocked(run, queues) for run in active[:_SHOWN]},
        busy=sorted(seen.status.queues, key=lambda q: (-q.paused, -q.ready - q.limited - q.in_progress, q.name))[:_SHOWN],
        running=view.site.recent.get("running", _MOMENT, lambda: _running(view)),
        done=ended(view),
    )


def _running(view: View) -> list[Job]:
    return view.mill.jobs(state="in_progress", limit=_SHOWN)


def ended(view: View, queue: str | None = None) -> list[Column]:
    """What ended in each minute of the last hour."""
    look = view.site.recent.get
    found = look(f"minutes {queue}", _WHILE, lambda: view.mill.history(queue=queue, since=_MINUTES * 60))
    return [Column(at, one.ended - one.failed, one.failed) for one in found[-_MINUTES:] if (at := one.at)]
