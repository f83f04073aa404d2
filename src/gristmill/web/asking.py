"""Asking back before something is done to many: first how many it would be, then whether it still is so many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.responses import Response

from gristmill.web.view import View
from gristmill.wording import count


@dataclass(frozen=True)
class Effect:
    """What an action did, or would do."""

    total: int
    said: str  #: `12 jobs are queued again`
    details: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """What is to be confirmed."""

    title: str
    button: str
    path: str  #: where the form goes: the page that asks
    back: str  #: where to go if not, and afterwards
    grave: bool = False
    reason: bool = False  #: whether one may say why
    hidden: dict[str, list[str]] = field(default_factory=dict)


def confirmed(view: View, question: Question, act: Callable[[bool], Effect]) -> Response:
    """Does it if what was confirmed is what it would do now, else asks. `act` is told whether it is a rehearsal."""
    would = act(True)
    given = view.one("confirm")
    if given == str(would.total) and would.total:
        return view.done(question.back, act(False).said)
    changed = bool(given) and given.isdecimal()
    note = f"This is about {count(would.total)} now, not {count(int(given[:18]))}." if changed else ""
    return view.page("confirm.html", 409 if changed else 200, question=question, effect=would, note=note)
