"""What an application adds is there where `gristmill serve` serves it: routes, pages, metrics, events, all guarded."""

from __future__ import annotations

import json
from pathlib import Path

from gristmill import Mill
from tests.api.server import serving

APP = """
from pathlib import Path
from gristmill import routes, task

@task
def sell(ctx, what: str): ...

@routes
def shop(app):
    from gristmill.api import Operator
    from gristmill.metrics import Family
    from gristmill.web import Extra, page
    from starlette.routing import Route

    def sold():
        family = Family("shop_sold_total", "counter", "What was sold.")
        family.add(7, what="tea")
        return [family]

    def shelf(request):
        return page(request, "shelf.html", title="The shelf", text="<b>tea</b>")

    @app.post("/shop/sell/{what}")
    def selling(call: Operator, what: str) -> dict[str, str]:
        call.mill.event("shop.sold", {"what": what})
        return {"by": call.by}

    app.state.metrics.append(sold)
    app.state.extras.append(Extra("Shelf", "/shelf", [Route("/shelf", shelf)], Path(__file__).parent))
"""
PAGE = '{% extends "base.html" %}{% block live %}<h1>{{ title }}</h1><p>{{ text }}</p>{% endblock %}'


def test_an_application_that_is_served_has_its_own(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "shelf.html").write_text(PAGE)
    with Mill.open(sqlite_url) as mill, serving(sqlite_url, app=tmp_path / "shop.py") as server, server.client() as client:
        assert 'shop_sold_total{what="tea"} 7' in client.get("/metrics").text
        assert ">Shelf<" in client.get("/").text
        assert "&lt;b&gt;tea" in client.get("/shelf").text
        last = mill.last_event()
        assert client.post("/shop/sell/milk", json={}).json()["by"].endswith("(api)")
        with client.stream("GET", "/api/events", params={"name": "shop.sold"}, headers={"Last-Event-ID": last}) as stream:
            data = next(line for line in stream.iter_lines() if line.startswith("data: "))
        assert json.loads(data.removeprefix("data: "))["data"] == {"what": "milk"}
        mill.create_token("anna", "viewer")
        while client.get("/api/me").status_code == 200:  # it looks once a second
            pass
        assert client.get("/shelf").headers["location"].startswith("/login")
        assert [client.get("/metrics").status_code, client.post("/shop/sell/milk", json={}).status_code] == [401, 401]
