"""Asking back before something is done to many: first how many it would be, then whether it still is so many."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from gristmill.errors import Invalid, NotConfirmed, Refused
from gristmill.web.view import View, id_of
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


def chosen(
    view: View, what: str, parse: Callable[[str, datetime], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Which an action on many is about: those that were marked, or all that match the search; and the fields that say so
    when it is confirmed. `parse` is told what times ago are counted from."""
    asked, whole, at = view.one("q"), view.one("all") == "1", asked_at(view)
    marked = [] if whole else view.ids("marked")
    if not whole and not marked:
        raise Refused(f"say which: mark some {what}, or tick “all that match”; nothing was changed")
    which = parse(asked, at) if whole else {"ids": marked}
    if not which:
        raise Refused(f"say which: mark some {what}, or search for some; an action on all that there are needs a search")
    return which, {
        "q": [asked],
        "all": ["1" if whole else ""],
        "marked": [*map(str, marked)],
        "at": [str(int(at.timestamp()))],
    }


def asked_at(view: View) -> datetime:
    """When it was first asked, which its form sends along: so that `since:1h` is confirmed as what it was about then, though
    an hour ago is later by now."""
    now = int(time.time())
    given = id_of(view.one("at") or str(now))
    if given is None or given > now:
        raise Invalid("at is when this was asked, in seconds since 1970; nothing was changed")
    return datetime.fromtimestamp(given, UTC)


def confirmed(view: View, question: Question, act: Callable[[int | None], Effect]) -> Response:
    """Does it if what was confirmed is what it would do now, else asks. `act` is told how many it may be about; None: it
    is a rehearsal."""
    given, note = view.one("confirm"), ""
    if given.isdecimal() and (number := int(given[:18])):
        try:
            return view.done(question.back, act(number).said)
        except NotConfirmed as changed:
            note = f"This is about {count(changed.count)} now, not {count(number)}."
    return view.page("confirm.html", 409 if note else 200, question=question, effect=act(None), note=note)
