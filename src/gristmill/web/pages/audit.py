"""The audit: what people did, the newest first."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()
_PAGE = 50


@pages.get("/audit")
def audit(view: View) -> Response:
    asked = {name: view.asked(name) for name in ("who", "verb", "target")}
    patterns: dict[str, Any] = {name: _pattern(text) for name, text in asked.items() if text}
    found = view.mill.audit(**patterns, limit=_PAGE + 1, after=view.after())
    more = len(found) > _PAGE
    return view.page("audit.html", title="Audit", entries=found[:_PAGE], more=more, asked=asked)


def _pattern(text: str) -> str:
    """A part of it will do, unless somebody writes a pattern."""
    text = text.replace("\0", "")
    return text if "*" in text or "?" in text else f"*{text}*"
