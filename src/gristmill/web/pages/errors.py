"""Errors by signature: many failures, few causes."""

from __future__ import annotations

from starlette.responses import Response

from gristmill.web.asking import Effect, Question, confirmed
from gristmill.web.routing import Pages
from gristmill.web.view import View
from gristmill.wording import plural

pages = Pages()
_MOST = 100
_WHILE = 5.0  # seconds, at most, that they are not counted again: it may take long


@pages.live("/errors", longest=_WHILE)
def errors(view: View) -> Response:
    every, after = view.asked("every") == "1", view.asked("after") or None
    found = view.mill.errors(every=every, after=after, limit=_MOST + 1)
    return view.page("errors.html", title="Errors", errors=found[:_MOST], every=every, more=len(found) > _MOST)


@pages.live("/errors/{fingerprint}")
def error(view: View, fingerprint: str) -> Response:
    found = view.mill.error(fingerprint)
    return view.page("error.html", title=found.signature.error_class or "Error", detail=found, error=found.signature)


@pages.post("/errors/{fingerprint}/retry", "confirm")
def retry(view: View, fingerprint: str) -> Response:
    def act(confirm: int | None) -> Effect:
        rehearsal = confirm is None
        done = view.mill.retry_error(fingerprint, by=view.by, dry_run=rehearsal, confirm=confirm)
        verb = "would be" if rehearsal else "is" if done.queued == 1 else "are"
        refused = [f"{plural(done.refused, 'job')} cannot be: {done.refusal}"] if done.refused else []
        return Effect(done.queued, f"{plural(done.queued, 'job')} {verb} queued again", refused)

    where = f"/errors/{fingerprint}"
    return confirmed(
        view, Question("Queue all jobs again that failed by this error?", "Retry", f"{where}/retry", where), act
    )


@pages.post("/errors/{fingerprint}/ignore", "undo")
def ignore(view: View, fingerprint: str) -> Response:
    undo = view.one("undo") == "1"
    view.mill.ignore_error(fingerprint, undo=undo, by=view.by)
    return view.done(f"/errors/{fingerprint}", "this error is listed again" if undo else "this error is ignored")
