"""Limits: how many at once, how many per second, and circuits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from gristmill.mill import Mill
from gristmill.model import LimitState
from gristmill.watched import Role
from gristmill.web.pages.queues import changed_limits
from gristmill.web.phrases import CIRCUITS
from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()
_MOST = 200  # keys that are shown


@pages.live("/limits")
def limits(view: View) -> Response:
    found = view.mill.limits(most=_MOST)
    about: dict[str, Any] = {"keyed": _keyed(view.mill, found), "circuits": CIRCUITS}
    return view.page("limits.html", title="Limits", limits=found, most=_MOST, **about)


def _keyed(mill: Mill, found: Sequence[LimitState]) -> set[str]:
    """Limits of which each key has its own count: the row without a key is only the rule for them."""
    declared = {limit.name for task in mill.registry.tasks.values() if (limit := task.limit) and limit.per is not None}
    return declared | {limit.name for limit in found if limit.key}


@pages.post("/limits/close", "name key")
def close(view: View) -> Response:
    name, key = view.one("name"), view.one("key")
    view.mill.close_circuit(name, key, by=view.by)
    return view.done("/limits", f"{name} {key} is let through again: its jobs go on")


@pages.post("/limits/set", "name key default at_once per_second was_at_once was_per_second", Role.ADMIN)
def set_limit(view: View) -> Response:
    name, key = view.one("name"), view.one("key")
    if view.one("default") == "1":
        view.mill.set_limit(name, key, numbers=None, by=view.by)
        return view.done("/limits", f"limit {name} {key} is as the application says".replace("  ", " "))
    numbers = changed_limits(view)
    if not numbers:
        return view.done("/limits", "nothing was changed")
    view.mill.set_limit(name, key, numbers=numbers, by=view.by)
    return view.done("/limits", f"limit {name} {key} is set".replace("  ", " "))
