"""Workers: where they are, what they do, when they were last heard of."""

from __future__ import annotations

from starlette.responses import Response

from gristmill.model import Job
from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()
_MOST = 200  # jobs in progress that are shown with their workers


@pages.live("/workers")
def workers(view: View) -> Response:
    every = view.asked("every") == "1"
    found = view.mill.workers(every=every)
    jobs = view.mill.jobs(state="in_progress", limit=_MOST)
    by_worker: dict[int, list[Job]] = {}
    for job in jobs:
        if job.worker is not None:
            by_worker.setdefault(job.worker, []).append(job)
    return view.page("workers.html", title="Workers", workers=found, every=every, jobs=by_worker)
