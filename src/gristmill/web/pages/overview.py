"""The overview: is everything all right? Then queues, what runs now, why things failed, workers, what was done."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.responses import Response

from gristmill.model import Signature
from gristmill.watched import Ended
from gristmill.web import verdict
from gristmill.web.charts import PERIODS, Column, Period, period
from gristmill.web.routing import Pages
from gristmill.web.verdict import Seen
from gristmill.web.view import View

pages = Pages()
_WHILE = 5.0  # seconds: for what changes by the minute, and at most for what takes long to count
_DOCTOR = 30.0  # for what the doctor says of database and machine, which costs a dozen looks
_SHOWN = 8
_CAUSES = 20  # signatures that are counted: each more is work for the database


def look(view: View) -> Seen:
    mill, recent = view.mill, view.site.recent
    status = mill.status(ended=False)  # nothing here says how many runs have ended
    errors = recent.get("errors", 0, lambda: _errors(view), _WHILE)
    return Seen(
        status,
        errors,
        recent.get("circuits", 0, mill.open_circuits, _WHILE),
        recent.get("schedules", _WHILE, mill.schedules),
        recent.get("stuck", 0, mill.stuck, _WHILE) if status.active else (),
        recent.get("doctor", _DOCTOR, mill.doctor),
        more_errors=len(errors) == _CAUSES,
    )


def _errors(view: View) -> list[Signature]:
    return view.mill.errors(since=datetime.now(UTC) - timedelta(days=1), limit=_CAUSES)


@pages.live("/")
def overview(view: View) -> Response:
    seen, chosen = look(view), period(view.asked("span"))
    found = verdict.concerns(seen)
    queues = {queue.name: queue for queue in seen.status.queues}
    active = sorted(seen.status.active, key=lambda run: (run.state == "waiting", run.state == "queued", -run.id))
    return view.page(
        "overview.html",
        title="Overview",
        seen=seen,
        concerns=found,
        well=verdict.all_well(seen.status),
        nothing=not seen.status.queues,
        active=active[:_SHOWN],
        more=sum(seen.status.runs.values()) - len(active[:_SHOWN]),
        blocked={run.id: verdict.blocked(run, queues) for run in active[:_SHOWN]},
        busy=sorted(seen.status.queues, key=lambda q: (-q.paused, -q.ready - q.limited - q.in_progress, q.name))[:_SHOWN],
        running=view.mill.jobs(state="in_progress", limit=_SHOWN),
        done=ended(view, chosen),
        period=chosen,
        least=seen.more_errors,
    )


def ended(view: View, chosen: Period = PERIODS[0], queue: str | None = None) -> list[Column]:
    """What ended in each step of a time until now; the last is not over."""
    read = partial(view.mill.ended, since=chosen.seconds, step=chosen.step)
    found = view.site.recent.get(f"ended {chosen.name}", chosen.fresh, read)
    every = found[None][-chosen.columns :]
    shown = (
        found[queue][-chosen.columns :] if queue in found else [replace(one, ended=0, failed=0, other=0) for one in every]
    )
    return [_column(at, one, whole=one is not shown[-1]) for one in shown if (at := one.at)]


def _column(at: datetime, one: Ended, whole: bool) -> Column:
    return Column(at, one.ended - one.failed - one.other, one.failed, one.other, whole)
