"""The audit: what people did, the newest first."""

from __future__ import annotations

from starlette.responses import Response

from gristmill.web import search
from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()


@pages.get("/audit")
def audit(view: View) -> Response:
    entries, about = view.found(search.audit, view.mill.audit)
    return view.page("audit.html", title="Audit", entries=entries, qualifiers=search.AUDIT, **about)
