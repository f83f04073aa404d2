"""Subjects: how fresh they are, what they do now, and why not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from gristmill.errors import Invalid, NotFound
from gristmill.model import Run, Subject, Why
from gristmill.watched import Role
from gristmill.web import search
from gristmill.web.asking import Effect, Question, chosen, confirmed
from gristmill.web.pages.runs import stay
from gristmill.web.phrases import part
from gristmill.web.routing import Pages
from gristmill.web.view import View
from gristmill.wording import plural

pages = Pages()
_RUNS = 10  # that the page of a subject shows
_FAILED = 5  # items of its last run that it names


@pages.live("/subjects")
def subjects(view: View) -> Response:
    found, about = view.found(search.subjects, view.mill.subjects)
    pipelines = sorted(view.mill.registry.pipelines)
    shown: dict[str, Any] = {"subjects": found, "qualifiers": search.SUBJECTS, "pipelines": pipelines}
    return view.page("subjects.html", title="Subjects", **shown, **about)


def by_number(view: View, number: int) -> Subject:
    found = view.mill.subjects(after=number - 1, limit=1)
    if not found or found[0].id != number:
        raise NotFound(f"there is no subject {number}")
    return found[0]


@pages.live("/subjects/{number:id}")
def subject(view: View, number: int) -> Response:
    found = by_number(view, number)
    which: dict[str, Any] = {"pipeline": found.pipeline, "subject": found.name}
    runs = view.mill.runs(**which, limit=_RUNS)
    return view.page(
        "subject.html",
        title=f"{found.pipeline} {found.name}",
        subject=found,
        runs=runs,
        shown=_RUNS,
        why=_why(view, found),
        good=_good(view, found, runs),
        failed=view.mill.jobs(run=runs[0].id, state="failed", parts=False, limit=_FAILED) if runs else [],
        failures=sum(stage.failed for stage in runs[0].stages) if runs else 0,
        recoveries=view.mill.recoveries(**which)[:5],
        startable=found.pipeline in view.mill.registry.pipelines,
        args=(runs[0].args if runs else None) or {},
    )


def _good(view: View, subject: Subject, runs: Sequence[Run]) -> Run | None:
    """Its last good run, which may have completed with errors. None: it had none, or that was removed."""
    if subject.last_good_run is None:
        return None
    known = (run for run in runs if run.id == subject.last_good_run)
    with contextlib.suppress(NotFound):
        return next(known, None) or view.mill.run(subject.last_good_run)
    return None


@pages.get("/subjects/{number:id}/peek")
def peek(view: View, number: int) -> Response:
    """Why it stands still, and what failed: from the list, without leaving it."""
    found = by_number(view, number)
    run = found.active_run or found.last_run
    failed = view.mill.jobs(run=run, state="failed", parts=False, limit=3) if run else []
    attempts = {job.id: view.mill.attempts(job.id)[:1] for job in failed[:1]}
    seen: dict[str, Any] = {"why": _why(view, found), "failed": failed, "attempts": attempts, "run": run}
    about: dict[str, Any] = {"kind": f"Subject of {found.pipeline}", "name": found.name, "state": found.state}
    return view.page("peek.html", path=f"/subjects/{number}", **about, **seen)


def _why(view: View, subject: Subject) -> Why | None:
    """None: it has no run."""
    try:
        return view.mill.why(pipeline=subject.pipeline, subject=subject.name)
    except NotFound:
        return None


@pages.post("/subjects/{number:id}/start", "args priority if_active")
def start(view: View, number: int) -> Response:
    found = by_number(view, number)
    return _started(view, found.pipeline, found.name)


@pages.post("/subjects/start", "pipeline subject args priority if_active")
def start_new(view: View) -> Response:
    """Of a subject that may be new."""
    return _started(view, view.one("pipeline"), view.one("subject").strip())


def _started(view: View, pipeline: str, subject: str) -> Response:
    priority, if_active = view.one("priority") or "normal", view.one("if_active") or "join"
    run = view.mill.start(pipeline, subject, args=view.arguments(), priority=priority, if_active=if_active, by=view.by)
    said = f"run {run.id} is {run.state.replace('_', ' ')}" if run.created else f"run {run.id} was there already"
    return view.done(f"/runs/{run.id}", said)


@pages.post("/subjects/many", "q all marked at confirm")
def start_many(view: View) -> Response:
    """Of all that match the search, or of those that were marked, like the last one of each."""
    which, hidden = chosen(view, "subjects", search.subjects)
    back = f"/subjects?q={part(view.one('q'))}" if view.one("q") else "/subjects"
    question = Question("Start a run of each of these subjects?", "Start them", "/subjects/many", back, hidden=hidden)

    def act(confirm: int | None) -> Effect:
        done = view.mill.start_subjects(**which, by=view.by, confirm=confirm, dry_run=confirm is None)
        verb = "would be started" if confirm is None else "is started" if done.total == 1 else "are started"
        said = ["Each with the arguments of its last run.", *stay(done)]
        return Effect(done.total, f"{plural(done.total, 'run')} {verb}", said)

    return confirmed(view, question, act)


@pages.post("/subjects/{number:id}/purge", "confirm reason", Role.ADMIN)
def purge(view: View, number: int) -> Response:
    found = by_number(view, number)
    act = partial(view.mill.purge_subject, found.pipeline, found.name, by=view.by, reason=view.one("reason") or None)

    def purged(confirm: int | None) -> Effect:
        done = act(confirm=confirm, dry_run=confirm is None)
        jobs, runs = done.counts.get("cancelled", 0), done.counts.get("stopped", 0)
        return Effect(done.total, f"{runs} of its runs stopped, {jobs} of its jobs cancelled")

    question = Question(
        f"Purge {found.pipeline} {found.name}", "Purge", f"/subjects/{number}/purge", f"/subjects/{number}", True, True
    )
    return confirmed(view, question, purged)


@pages.post("/subjects/{number:id}/set", "interval labels was_interval was_labels")
def set_subject(view: View, number: int) -> Response:
    """Only what was changed against what the form showed: others may have set the rest since."""
    found = by_number(view, number)
    gap = search.seconds(view.one("interval") or "0s") if view.changed("interval") else None
    labels = _changed(_labels(view.form.get("was_labels", [])), _labels(view.one("labels").splitlines()))
    if gap is None and not labels:
        return view.done(f"/subjects/{number}", "nothing was changed")
    view.mill.set_subject(found.pipeline, found.name, interval=gap, labels=labels, by=view.by)
    return view.done(f"/subjects/{number}", f"{found.name} is set")


def _changed(was: dict[str, str], now: dict[str, str]) -> dict[str, str | None]:
    """None: it is taken away."""
    return {key: now.get(key) for key in (*was, *now) if was.get(key) != now.get(key)}


def _labels(lines: list[str]) -> dict[str, str]:
    return dict(_label(line) for line in lines if line.strip())


def _label(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals:
        raise Invalid(f"labels are lines of key=value, not {line.strip()!r}")
    return key.strip(), value.strip()
