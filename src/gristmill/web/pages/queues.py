"""Queues: what is in them; pause, resume, set, purge."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from gristmill.errors import Invalid, NotFound, did_you_mean
from gristmill.model import Queue
from gristmill.watched import Role
from gristmill.web.asking import Question, confirmed
from gristmill.web.charts import period
from gristmill.web.pages.overview import ended
from gristmill.web.pages.runs import effect
from gristmill.web.phrases import part
from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()
_DRAWN = 30  # queues whose last hour is drawn


@pages.live("/queues")
def queues(view: View) -> Response:
    found = view.mill.queues()
    done = {queue.name: ended(view, queue=queue.name) for queue in found[:_DRAWN]}
    return view.page("queues.html", title="Queues", queues=found, done=done)


@pages.live("/queues/{name}")
def queue(view: View, name: str) -> Response:
    found = _found(view, name)
    running = view.mill.jobs(queue=name, state="in_progress", limit=10)
    waiting = view.mill.jobs(queue=name, state="queued", limit=10)
    chosen = period(view.asked("span"))
    done = ended(view, chosen, name)
    return view.page(
        "queue.html", title=f"Queue {name}", queue=found, running=running, waiting=waiting, done=done, period=chosen
    )


def _found(view: View, name: str) -> Queue:
    known = {queue.name: queue for queue in view.mill.queues()}
    if name not in known:
        raise NotFound(f"there is no queue {name!r}{did_you_mean(name, known)}")
    return known[name]


@pages.post("/queues/{name}/pause", "from to")
def pause(view: View, name: str) -> Response:
    view.mill.pause(name, by=view.by)
    return view.done(_back(view, name), f"queue {name} is paused: nothing of it starts until it is resumed")


@pages.post("/queues/{name}/resume", "from to")
def resume(view: View, name: str) -> Response:
    view.mill.resume(name, by=view.by)
    return view.done(_back(view, name), f"queue {name} goes on")


@pages.post("/queues/{name}/set", "weight at_once per_second was_weight was_at_once was_per_second", Role.ADMIN)
def set_queue(view: View, name: str) -> Response:
    """Only what was changed against what the form showed: others may have set the rest since."""
    _found(view, name)
    weight = number(view.one("weight"), float, "weight") if view.changed("weight") else None
    limits = changed_limits(view)
    if weight is None and not limits:
        return view.done(f"/queues/{part(name)}", "nothing was changed")
    view.mill.set_queue(name, weight=weight, limits=limits, by=view.by)
    return view.done(f"/queues/{part(name)}", f"queue {name} is set")


@pages.post("/queues/{name}/purge", "confirm reason", Role.ADMIN)
def purge(view: View, name: str) -> Response:
    where = f"/queues/{part(name)}"
    act = partial(view.mill.purge_queue, name, by=view.by, reason=view.one("reason") or None)
    question = Question(f"Cancel all that waits in queue {name}?", "Purge", f"{where}/purge", where, True, True)
    return confirmed(view, question, lambda number: effect(act(confirm=number, dry_run=number is None), number is None))


def _back(view: View, name: str) -> str:
    return view.back(f"/queues/{part(name)}" if view.one("from") == "queue" else "/queues")


def changed_limits(view: View) -> dict[str, Any]:
    kinds = {"at_once": int, "per_second": float}
    asked = {name: kind for name, kind in kinds.items() if view.changed(name)}
    return {name: number(view.one(name), kind, name.replace("_", " ")) for name, kind in asked.items()}


def number(text: str, kind: Any, what: str) -> Any:
    """A number, or None where nothing was written."""
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise Invalid(f"{what} is a number, not {text[:60]!r}") from None
