"""Values as the pages write them. Words come from `gristmill.wording`, so that they are those of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from gristmill import progress, wording
from gristmill.model import Job, LimitState, Queue, Run, ScheduleEntry, Signature, Stage, Why
from gristmill.web.search import written

_SHAPES = {  # what a state looks like without colour; the same names are in the templates' icons
    "completed": "done",
    "completed_with_errors": "partly",
    "failed": "failed",
    "cancelled": "stopped",
    "skipped": "skipped",
    "in_progress": "running",
    "open": "running",
    "sealed": "running",
    "queued": "queued",
    "waiting": "waiting",
    "paused": "paused",
    "off": "paused",
    "broken": "failed",
    "lost": "failed",
    "silent": "failed",
    "late": "failed",
    "stopped": "stopped",
    "active": "done",
    "on": "done",
    "closed": "done",
    "half-open": "partly",
    "started": "done",
    "retrying": "waiting",
    "delayed": "waiting",
    "limited": "waiting",
    "for parts": "waiting",
    "new": "queued",
}
_TONES = {
    "done": "good",
    "partly": "warn",
    "failed": "bad",
    "stopped": "off",
    "skipped": "off",
    "running": "busy",
    "queued": "plain",
    "waiting": "plain",
    "paused": "warn",
}


def shape(state: str) -> str:
    return _SHAPES.get(state, "queued")


def tone(state: str) -> str:
    return _TONES[shape(state)]


def words(state: str) -> str:
    return state.replace("_", " ")


_STAGES = {"open": "more may come", "sealed": "in progress"}  # words of the ledger, which say nothing to most people


def said(state: str) -> str:
    """What is written beside its icon."""
    return _STAGES.get(state) or words(state)


def cause(error: Signature) -> str:
    """What an error says, without its class before it, which stands beside it."""
    message, kind = wording.clean(wording.first_line(error.error)), error.error_class or ""
    return message.removeprefix(f"{kind}: ") or kind or "unknown"


def reason(why: Why) -> Markup:
    """The sentence of the command line, with how long ago where that has its time, and states as they are written here."""
    text = why.sentence.replace("ended completed_with_errors", "completed with errors", 1)
    if why.at is None:
        return escape(text)
    moment = f"{why.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    for word, ago in (("at", when), ("since", _for)):
        before, found, after = text.partition(f" {word} {moment}")
        if found:
            return Markup("{} {}{}").format(before, ago(why.at), after)
    return Markup("{} <span class=dim>({})</span>").format(text, when(why.at))


def when(at: datetime | None, otherwise: str = "–") -> Markup:
    """How long ago, with the moment itself for those who point at it."""
    if at is None:
        return Markup('<span class="none">{}</span>').format(otherwise)
    return _time(at, wording.age(at))


def _for(since: datetime) -> Markup:
    """`for 3 min`."""
    return Markup("for {}").format(_time(since, wording.span((datetime.now(UTC) - since).total_seconds())))


def _time(at: datetime, text: str) -> Markup:
    stamp = at.astimezone(UTC).isoformat(timespec="seconds")[:19]
    shown = stamp.replace("T", " ")
    return Markup(f'<time datetime="{stamp}Z" title="{shown} UTC">{escape(text)}</time>')  # lists hold hundreds of them


def took(start: datetime | None, end: datetime | None) -> str:
    """Until its end, or until now."""
    return wording.between(start, end or datetime.now(UTC)) if start else "–"


def pretty(value: Any) -> str:
    """A value as JSON, to be read."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def printable(text: str | None) -> str:
    """Text of several lines, in which what would steer a terminal is shown."""
    return "\n".join(wording.clean(line) for line in (text or "").rstrip("\n").split("\n"))


def part(text: str) -> str:
    """A name as a part of an address."""
    return quote(text, safe="")


def job_name(job: Job) -> str:
    return job.key or job.unique or job.task


def job_progress(job: Job) -> str:
    """`12 of 40, reading page 12`."""
    if not isinstance(job.progress, dict):
        return ""
    done, total, message = (job.progress.get(name) for name in ("done", "total", "message"))
    amount = f"{done} of {total}" if done is not None and total is not None else "" if done is None else str(done)
    return ", ".join(str(part) for part in (amount, message) if part)


def under_way(run: Run) -> list[Stage]:
    """The stages that a line of a list is about: those with something in them, or the first that waits for some."""
    open_ = [stage for stage in run.stages if stage.state in ("open", "sealed")]
    return [stage for stage in open_ if stage.total] or open_[:1]


def starts(entry: ScheduleEntry) -> str:
    spec = entry.spec
    if spec.get("task"):
        return f"task {spec['task']}"
    return f"{spec.get('pipeline')} {spec['subject']}" if spec.get("subject") else f"stalest of {spec.get('pipeline')}"


CIRCUITS = {  # what its states mean, and how they look
    "open": ("left alone", "failed", "bad"),
    "half-open": ("one is tried", "partly", "warn"),
    "closed": ("let through", "done", "good"),
}


def circuit(limit: LimitState) -> str:
    """What is said below the state of a circuit."""
    if limit.circuit == "open" and limit.open_until is not None:
        return f"one is tried {wording.age(limit.open_until)}"
    if not limit.key or not limit.circuit:
        return ""
    return f"{wording.plural(limit.failures, 'failure')} in a row; after {limit.breaker} it is left alone"


def setting(value: Any) -> str:
    """The default of a setting."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value) if value not in ((), None, "") else "–"


def set_to(queue: Queue) -> str:
    """What is not as it is by itself: `weight 3, 5 at once`."""
    weight = f"weight {number(queue.weight)}" if queue.weight != 1 else ""
    at_once = f"{wording.count(queue.at_once)} at once" if queue.at_once else ""
    return ", ".join(filter(None, [weight, at_once, f"{number(queue.per_second)} per second" if queue.per_second else ""]))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def query(**given: str) -> str:
    """What finds these in a list: `pipeline:site subject:"https://a.org/x y"`."""
    return written(given)


def counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{wording.count(number)} {words(word)}" for word, number in found.items() if number)


FILTERS: dict[str, Any] = {
    "shape": shape,
    "tone": tone,
    "words": words,
    "said": said,
    "cause": cause,
    "reason": reason,
    "when": when,
    "took": took,
    "pretty": pretty,
    "printable": printable,
    "part": part,
    "count": wording.count,
    "plural": wording.plural,
    "span": wording.span,
    "first_line": wording.first_line,
    "short": wording.short,
    "assignments": wording.assignments,
    "progress": progress.progress,
    "job_progress": job_progress,
    "under_way": under_way,
    "setting": setting,
    "set_to": set_to,
    "starts": starts,
    "audit_detail": wording.audited,
    "circuit": circuit,
    "number": number,
    "between": wording.between,
}
