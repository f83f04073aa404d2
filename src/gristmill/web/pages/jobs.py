"""Jobs: search, act on all that match, and one of them with its attempts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import RedirectResponse, Response

from gristmill.errors import Invalid, NotConfirmed, Refused
from gristmill.mill import Mill
from gristmill.model import Bulk
from gristmill.watched import Role
from gristmill.web import search
from gristmill.web.asking import Effect, Question, chosen, confirmed
from gristmill.web.pages.runs import effect
from gristmill.web.phrases import job_name, part, words
from gristmill.web.routing import Pages
from gristmill.web.view import View
from gristmill.wording import plural

pages = Pages()
_PARTS = 20


class Action(NamedTuple):
    """Something that is done to many jobs."""

    verb: Callable[..., Callable[..., Bulk]]
    label: str
    question: str
    role: Role = Role.OPERATOR
    grave: bool = False


def _unarchive(mill: Mill) -> Callable[..., Bulk]:
    return partial(mill.archive_jobs, undo=True)


ACTIONS = {
    "retry": Action(lambda mill: mill.retry_jobs, "Retry", "Queue these failed jobs again?"),
    "run_now": Action(lambda mill: mill.run_jobs_now, "Run now", "Let these jobs run now, and not later?"),
    "cancel": Action(lambda mill: mill.cancel_jobs, "Cancel", "Cancel these jobs?", grave=True),
    "archive": Action(lambda mill: mill.archive_jobs, "Archive", "Leave these jobs out of lists?"),
    "unarchive": Action(_unarchive, "List again", "List these jobs again?"),
    "delete": Action(lambda mill: mill.delete_jobs, "Delete", "Delete these jobs for good?", Role.ADMIN, True),
}


@pages.live("/jobs")
def jobs(view: View) -> Response:
    asked = view.asked("q")
    if asked.isdecimal() and len(asked) < 19:
        return RedirectResponse(f"{view.base}/jobs/{int(asked)}", 303)
    found, about = view.found(search.jobs, view.mill.jobs)
    actions = [(name, action) for name, action in ACTIONS.items() if view.may(action.role.value)]
    return view.page("jobs.html", title="Jobs", jobs=found, actions=actions, qualifiers=search.JOBS, **about)


@pages.post("/jobs/many", "q action all marked at confirm reason")
def many(view: View) -> Response:
    """All that match the search, or those that were marked."""
    asked, name = view.one("q"), view.one("action")
    if name not in ACTIONS:
        raise Invalid(f"there is no action {name!r} on jobs")
    action = ACTIONS[name]
    view.admit(action.role)
    which, hidden = chosen(view, "jobs", search.jobs)
    if name == "unarchive":
        which.pop("archived", None)
    question = Question(
        action.question,
        action.label,
        "/jobs/many",
        f"/jobs?q={part(asked)}" if asked else "/jobs",
        grave=action.grave,
        reason=name == "cancel",
        hidden={**hidden, "action": [name]},
    )
    act = partial(action.verb(view.mill), **which, by=view.by)
    if name == "cancel":
        act = partial(act, reason=view.one("reason") or None)
    return confirmed(view, question, lambda number: effect(act(confirm=number, dry_run=number is None), number is None))


@pages.live("/jobs/{number:id}")
def job(view: View, number: int) -> Response:
    found = view.mill.job(number)
    return view.page(
        "job.html",
        title=f"Job {number}",
        job=found,
        why=None if found.finished_at else view.mill.why(job=number),
        attempts=view.mill.attempts(number),
        partjobs=view.mill.jobs(part_of=number, limit=_PARTS) if found.parts else [],
        item=None if found.part_of is None else view.mill.job(found.part_of),
        backend=view.mill.backend_job_id(number),
        phases=_failed_items(found.progress),
        waits=found.state == "queued",
    )


def _failed_items(progress: Any) -> list[tuple[str, dict[str, str]]]:
    phases = progress.get("phases", {}) if isinstance(progress, dict) else {}
    return [(name, phase["failed"]) for name, phase in phases.items() if phase.get("failed")]


@pages.get("/jobs/{number:id}/peek")
def peek(view: View, number: int) -> Response:
    """The last attempt, and why it waits: from a list, without leaving it."""
    found = view.mill.job(number)
    why = view.mill.why(job=number)
    attempts = {number: view.mill.attempts(number)[:1]}
    about: dict[str, Any] = {"kind": f"Job {number}, {found.task}", "name": job_name(found), "state": found.state}
    return view.page("peek.html", **about, why=why, failed=[found], attempts=attempts, path=f"/jobs/{number}", run=None)


@pages.post("/jobs/{number:id}/retry")
def retry(view: View, number: int) -> Response:
    found = view.mill.retry_job(number, by=view.by)
    return view.done(f"/jobs/{number}", f"job {number} is {words(found.state)}")


@pages.post("/jobs/{number:id}/cancel", "confirm reason")
def cancel(view: View, number: int) -> Response:
    def act(confirm: int | None) -> Effect:
        if confirm is not None and confirm != 1:
            raise NotConfirmed(1, confirm)
        found = view.mill.cancel_job(number, reason=view.one("reason") or None, by=view.by, dry_run=confirm is None)
        if confirm is not None:
            return Effect(1, f"job {number} is {words(found.state) if found.finished_at else 'told to stop'}")
        parts = f", with {plural(found.parts_left, 'part')}" if found.parts_left else ""
        return Effect(1, f"the job is {'told to stop' if found.state == 'in_progress' else 'cancelled'}{parts}")

    question = Question(f"Cancel job {number}?", "Cancel the job", f"/jobs/{number}/cancel", f"/jobs/{number}", True, True)
    return confirmed(view, question, act)


@pages.post("/jobs/{number:id}/archive", "undo")
def archive(view: View, number: int) -> Response:
    undo = view.one("undo") == "1"
    done = view.mill.archive_jobs(ids=[number], undo=undo, by=view.by)
    if done.refusal:
        raise Refused(done.refusal)
    return view.done(f"/jobs/{number}", f"job {number} is {'listed again' if undo else 'archived'}")


@pages.post("/jobs/{number:id}/edit", "args")
def edit(view: View, number: int) -> Response:
    view.mill.edit_job(number, view.arguments(), by=view.by)
    return view.done(f"/jobs/{number}", f"job {number} has other arguments")
