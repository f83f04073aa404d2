"""Locks: who holds them, who waits."""

from __future__ import annotations

from starlette.responses import Response

from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()


@pages.live("/locks")
def locks(view: View) -> Response:
    return view.page("locks.html", title="Locks", locks=view.mill.locks())
