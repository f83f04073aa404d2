"""Runs: the list, and one of them with its stages, its times, what failed, and why it waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import Response

from gristmill.errors import Invalid, NotConfirmed
from gristmill.mill import Mill
from gristmill.model import Bulk, Repair, RetriedRun, Run
from gristmill.progress import Pace
from gristmill.reconciler import tally
from gristmill.watched import Role
from gristmill.web import charts, search
from gristmill.web.asking import Effect, Question, chosen, confirmed
from gristmill.web.phrases import counts, part, words
from gristmill.web.routing import Pages
from gristmill.web.view import View
from gristmill.wording import count, plural, span

pages = Pages()
_FAILED = 20  # failed items that the page of a run names
_STUCK = 500  # more are not found at a time: as many active runs are looked at
_ACTIVE = ("waiting", "queued", "in_progress")
_COUNTED = 200  # runs whose jobs are counted before somebody stops them


@pages.live("/runs")
def runs(view: View) -> Response:
    found, about = view.found(search.runs, partial(_found, view.mill))
    return view.page("runs.html", title="Runs", runs=found, qualifiers=search.RUNS, **about)


def _found(mill: Mill, *, limit: int, after: int | None, **wanted: Any) -> list[Run]:
    if wanted == search.STUCK:
        return [run for run in mill.stuck(limit=_STUCK) if after is None or run.id < after]
    return mill.runs(**wanted, limit=limit, after=after)


@pages.live("/runs/{number:id}")
def run(view: View, number: int) -> Response:
    found = view.mill.run(number)
    pace = view.site.paces.of(found)
    lines, whole = charts.timeline(found)
    subject = view.mill.subject(found.pipeline, found.subject)
    failed = view.mill.jobs(run=number, state="failed", parts=False, limit=_FAILED)
    partly = view.mill.jobs(run=number, state="completed_with_errors", parts=False, limit=_FAILED)
    return view.page(
        "run.html",
        title=f"Run {number}",
        run=found,
        subject=subject,
        why=None if found.terminal else view.mill.why(run=number),
        order=view.mill.stage_order(number),
        left=_left(found, pace),
        eta=_eta(found, pace),
        lines=lines,
        whole=whole,
        failed=failed,
        failures=sum(stage.failed for stage in found.stages),
        partly=partly,
        recoveries=view.mill.recoveries(run=number),
    )


def _left(run: Run, pace: Pace) -> dict[str, str]:
    """What is said about the stages that are at work: how fast they go, and how long that takes."""
    said: dict[str, str] = {}
    for stage in run.stages:
        left = pace.left(run, stage)
        if left is not None and left >= 1:
            said[stage.name] = f"{span(left)} left"
    return said


def _eta(run: Run, pace: Pace) -> str | None:
    """The stage that takes longest tells how long it goes on at least."""
    left = [seconds for stage in run.stages if (seconds := pace.left(run, stage)) is not None]
    return span(max(left)) if left and max(left) >= 1 else None


@pages.get("/runs/{number:id}/peek")
def peek(view: View, number: int) -> Response:
    failed = view.mill.jobs(run=number, state="failed", parts=False, limit=3)
    attempts = {job.id: view.mill.attempts(job.id)[:1] for job in failed[:1]}
    why, found = view.mill.why(run=number), view.mill.run(number)
    about: dict[str, Any] = {"kind": f"Run {number}, {found.pipeline}", "name": found.subject, "state": found.state}
    return view.page("peek.html", **about, why=why, failed=failed, attempts=attempts, path=f"/runs/{number}", run=number)


@pages.post("/runs/{number:id}/cancel", "confirm reason")
def cancel(view: View, number: int) -> Response:
    def act(confirm: int | None) -> Effect:
        rehearsal = confirm is None
        if confirm is not None and confirm != 1:
            raise NotConfirmed(1, confirm)
        found = view.mill.cancel_run(number, reason=view.one("reason") or None, by=view.by, dry_run=rehearsal)
        left = unfinished(found)
        said = f"run {number} is {'stopping' if not found.terminal else found.state}"
        # It is one run, however many of its jobs end while somebody makes up their mind.
        return Effect(1, f"the run stops, and {plural(left, 'unfinished job')} with it" if rehearsal else said)

    question = Question(f"Stop run {number}?", "Stop the run", f"/runs/{number}/cancel", f"/runs/{number}", True, True)
    return confirmed(view, question, act)


@pages.post("/runs/{number:id}/retry", "stage to confirm")
def retry(view: View, number: int) -> Response:
    """What failed, or (with `stage`) all of one stage."""
    stage = view.one("stage") or None
    act = partial(view.mill.retry_run, number, stage=stage, by=view.by)
    what = f"all of stage {stage}" if stage else "what failed"
    hidden = {name: [value] for name in ("stage", "to") if (value := view.one(name))}
    back = view.back(f"/runs/{number}")
    question = Question(f"Run {what} of run {number} again?", "Run it again", f"/runs/{number}/retry", back, hidden=hidden)
    return confirmed(view, question, lambda number: _retried(act(confirm=number, dry_run=number is None), number is None))


@pages.post("/runs/{number:id}/reconcile", "to confirm", Role.ADMIN)
def reconcile(view: View, number: int) -> Response:
    """Mends what should not be, of the subject of one run; what is left to a person is told too."""
    found = view.mill.run(number)
    act = partial(view.mill.reconcile, pipeline=found.pipeline, subject=found.subject, by=view.by)
    hidden = {"to": [to]} if (to := view.one("to")) else {}
    back = view.back(f"/runs/{number}")
    question = Question(f"Reconcile {found.pipeline} {found.subject}?", "Reconcile", f"/runs/{number}/reconcile", back)
    question = replace(question, hidden=hidden)
    return confirmed(view, question, lambda confirm: _mended(act(confirm=confirm, dry_run=confirm is None), confirm is None))


def _mended(found: Sequence[Repair], rehearsal: bool) -> Effect:
    mended = tally(found)[0]
    said = f"{plural(mended, 'thing')} {_will(mended, rehearsal)} mended"
    return Effect(mended, said, [f"{repair.what} {repair.target}: {repair.detail}" for repair in found])


def _retried(done: RetriedRun, rehearsal: bool) -> Effect:
    items = [f"{stage}: {counts(states)}" for stage, states in done.items.items()]
    after = [f"after that: {', '.join(done.after)}"] if done.after else []
    return Effect(done.queued, f"{plural(done.queued, 'item')} {_will(done.queued, rehearsal)} queued again", items + after)


def _will(number: int, rehearsal: bool) -> str:
    return "would be" if rehearsal else "is" if number == 1 else "are"


_ACTIONS: dict[str, tuple[str, str, Callable[[Mill], Callable[..., Bulk]]]] = {
    "retry": ("Run what failed in these runs again?", "Retry them", lambda mill: mill.retry_runs),
    "cancel": ("Stop these runs?", "Stop them", lambda mill: mill.cancel_runs),
    "delete": ("Delete these runs for good, with their jobs?", "Delete them", lambda mill: mill.delete_runs),
}


@pages.post("/runs/many", "q action all marked at confirm reason")
def many(view: View) -> Response:
    """All that match the search, or those that were marked."""
    asked, action = view.one("q"), view.one("action")
    which, hidden = chosen(view, "runs", search.runs)
    if which == search.STUCK:
        which = {"ids": [run.id for run in view.mill.stuck(limit=_STUCK)]}
    if action not in _ACTIONS:
        raise Invalid(f"there is no action {action!r} on runs")
    title, button, verb = _ACTIONS[action]
    if action == "delete":
        view.admit(Role.ADMIN)
    question = Question(
        title,
        button,
        "/runs/many",
        f"/runs?q={part(asked)}" if asked else "/runs",
        grave=action != "retry",
        reason=action == "cancel",
        hidden={**hidden, "action": [action]},
    )
    act = partial(verb(view.mill), **which, by=view.by)
    if action == "cancel":
        act = partial(act, reason=view.one("reason") or None)

    def doing(confirm: int | None) -> Effect:
        found = effect(act(confirm=confirm, dry_run=confirm is None), confirm is None, "run")
        jobs = [_with_jobs(view.mill, which)] if action == "cancel" and confirm is None and found.total else []
        return replace(found, details=[*jobs, *found.details])

    return confirmed(view, question, doing)


def _with_jobs(mill: Mill, which: dict[str, Any]) -> str:
    """How many jobs stop with some runs; of many, with the newest."""
    ids = which.get("ids")
    runs = (
        mill.runs(**{"state": _ACTIVE, **which}, limit=_COUNTED)
        if ids is None
        else [mill.run(one) for one in ids[:_COUNTED]]
    )
    left = sum(unfinished(run) for run in runs if not run.terminal)
    least = "at least " if len(runs if ids is None else ids) >= _COUNTED else ""
    return f"With them {least}{plural(left, 'unfinished job')} {'stops' if left == 1 else 'stop'}."


def unfinished(run: Run) -> int:
    return sum(stage.total - stage.done + stage.parts_left for stage in run.stages)


def effect(done: Bulk, rehearsal: bool, what: str = "job") -> Effect:
    said = _counted(done.counts, what) or "nothing"
    return Effect(done.total, said if rehearsal else f"done: {said}", stay(done))


def _counted(found: Mapping[str, int], what: str) -> str:
    """`12 jobs cancelled, 3 told to stop`; `2 runs, 30 jobs`."""
    told = {word: number for word, number in found.items() if number}
    nouns = [plural(told.pop(f"{noun}s"), noun) for noun in ("run", "job") if f"{noun}s" in told]
    first = [f"{plural(number, what)} {words(word)}" for word, number in [*told.items()][:1]]
    return ", ".join([*nouns, *first, *(f"{count(number)} {words(word)}" for word, number in [*told.items()][1:])])


def stay(done: Bulk) -> list[str]:
    """What is said of those to which it is not done."""
    if not done.left:
        return []
    return [
        f"1 stays as it is: {done.refusal}" if done.left == 1 else f"{count(done.left)} stay as they are: {done.refusal}"
    ]
