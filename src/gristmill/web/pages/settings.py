"""Settings: what serves this page, what is well with it, and what workers can be told."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from starlette.responses import Response

from gristmill.settings import HELP, WorkerSettings
from gristmill.web.routing import Pages
from gristmill.web.view import View

pages = Pages()
_WHILE = 10.0  # seconds: doctor looks at the machine


@pages.get("/settings")
def settings(view: View) -> Response:
    registry = view.mill.registry
    return view.page(
        "settings.html",
        title="Settings",
        doctor=view.site.recent.get("doctor", _WHILE, view.mill.doctor),
        database=view.mill.ledger.url.render_as_string(hide_password=True),
        delivery=view.mill.delivery.name,
        pipelines=sorted(registry.pipelines.values(), key=lambda flow: flow.name),
        tasks=sorted(name for name in registry.tasks if "." not in name),
        settings=_settings(),
    )


def _settings() -> list[tuple[str, Any, str]]:
    return [(field.name, field.default, HELP[field.name]) for field in fields(WorkerSettings)]
