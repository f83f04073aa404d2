"""Routes of an application, of whatever kind: behind the same rules as the pages, and with the same error page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Host, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from gristmill import Mill
from gristmill.api import Caller, Role, app
from gristmill.errors import Invalid, Unavailable
from gristmill.web import Extra, page
from tests.web.filling import mill_of
from tests.web.test_guarding import here

PAGE = '{% extends "base.html" %}{% block live %}<h1>{{ title }}</h1>{% endblock %}'


def extra(*routes: BaseRoute, folder: Path | None = None) -> Extra:
    return Extra("Shelf", "/shelf", routes, folder)


async def bought(request: Request) -> Response:
    return PlainTextResponse(f"bought {(await request.body()).decode()}")


def signed(client: httpx.Client, text: str) -> dict[str, str]:
    client.headers["Authorization"] = f"Bearer {text}"
    client.get("/settings")
    return {"token": client.cookies["gristmill_form"]}


def tokens_of(mill: Mill) -> dict[str, str]:
    return {role: mill.create_token(role, role).text for role in ("viewer", "operator")}


def heard(application: Any, headers: dict[str, str]) -> list[Any]:
    """What a socket at /talk gets to hear; in a thread of its own, since here a browser may have the event loop."""
    said: list[Any] = []
    given = [(name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **headers}.items()]
    scope = {"type": "websocket", "path": "/talk", "query_string": b"", "headers": given, "scheme": "ws"}

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(application(scope, receive, send))).result()
    return said


def test_what_is_mounted_is_guarded_too(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "inner.html").write_text(PAGE)

    def inner(request: Request) -> Response:
        return page(request, "inner.html", title="Inside")

    files = StaticFiles(directory=tmp_path)
    routes = [
        Mount("/reports", files),
        Mount("/deep", routes=[Route("/inner", inner), Route("/buy", bought, methods=["POST"])]),
        Host("files.example", files),
    ]
    with mill_of(sqlite_url) as mill, here(app(mill, extras=[extra(*routes, folder=tmp_path)])) as client:
        texts = tokens_of(mill)
        for path, host in (("/reports/secret.txt", None), ("/deep/inner", None), ("/secret.txt", "files.example")):
            refused = client.get(path, headers={"Host": host} if host else {})
            assert (path, refused.status_code) == (path, 303)
            assert refused.headers["location"] == f"/login?to={path}"
        assert client.post("/deep/buy").status_code == 401
        token = signed(client, texts["viewer"])
        assert client.get("/reports/secret.txt").text == "secret"
        assert 'href="/static/' in client.get("/deep/inner").text
        assert client.post("/deep/buy", data=token).status_code == 403


def test_what_cannot_be_guarded_is_refused_at_the_start(sqlite_url: str) -> None:
    broken: Sequence[Any] = [lambda scope: None]
    with mill_of(sqlite_url) as mill, pytest.raises(Invalid, match="only routes of Starlette can be guarded"):
        app(mill, extras=[extra(*broken)])


def test_a_socket_needs_an_operator_and_a_page_of_ours(sqlite_url: str) -> None:
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    with mill_of(sqlite_url) as mill:
        served = app(mill, extras=[extra(WebSocketRoute("/talk", talk))])
        locked = app(mill, extras=[extra(WebSocketRoute("/talk", talk))], read_only=True)
        headers = {role: {"Authorization": f"Bearer {text}"} for role, text in tokens_of(mill).items()}
        evil = {**headers["operator"], "Origin": "https://evil.example"}
        for one, given in ((served, {}), (served, headers["viewer"]), (served, evil), (locked, headers["operator"])):
            [refused] = heard(one, given)
            assert (refused["type"], refused["code"]) == ("websocket.close", 1008)
        assert [message.get("text") for message in heard(served, headers["operator"])] == [None, "hello", None]


def test_what_does_more_than_look_needs_an_operator_and_a_form_of_ours(sqlite_url: str) -> None:
    route = Route("/buy", bought, methods=["GET", "POST", "DELETE"])
    with mill_of(sqlite_url) as mill:
        texts = tokens_of(mill)
        with here(app(mill, extras=[extra(route)])) as client:
            form = signed(client, texts["viewer"])
            assert client.get("/buy").status_code == 200
            assert client.post("/buy", data=form).status_code == 403
            assert client.post("/buy", json={}).status_code == 403
        with here(app(mill, extras=[extra(route)])) as client:
            client.get("/buy", headers={"Authorization": f"Bearer {texts['operator']}"})
            form = {"token": client.cookies["gristmill_form"]}  # the application's own page gave it
            client.headers["Authorization"] = f"Bearer {texts['operator']}"
            for wrong in ({}, {"token": "x"}):
                answer = client.post("/buy", data=wrong)
                assert (answer.status_code, "not from here" in answer.text) == (403, True)
            assert client.delete("/buy").status_code == 403
            assert client.post("/buy", data={**form, "what": "tea"}).text == f"bought token={form['token']}&what=tea"
            assert client.post("/buy", json={"what": "tea"}).text == 'bought {"what":"tea"}'
        with here(app(mill, extras=[extra(route)], read_only=True)) as client:
            form = signed(client, texts["operator"])
            answer = client.post("/buy", data=form)
            assert (answer.status_code, "read-only" in answer.text) == (403, True)
            assert client.get("/buy").status_code == 200


def test_who_asks_is_found_out_beside_the_event_loop(sqlite_url: str) -> None:
    threads = []

    def authenticate(request: Request) -> Caller:
        threads.append(threading.current_thread())
        return Caller("anna", Role.VIEWER)

    async def loop(request: Request) -> Response:
        threads.append(threading.current_thread())
        return PlainTextResponse("")

    with (
        mill_of(sqlite_url) as mill,
        here(app(mill, extras=[extra(Route("/l", loop))], authenticate=authenticate)) as client,
    ):
        assert client.get("/l").status_code == 200
    asked, answered = threads
    assert asked is not answered


def test_a_database_that_is_away_is_told_in_a_page(sqlite_url: str) -> None:
    away = threading.Event()

    def authenticate(request: Request) -> Caller:
        if away.is_set():
            raise Unavailable("the database is away")
        return Caller("anna", Role.VIEWER)

    def asks(request: Request) -> Response:
        raise Unavailable("the database went away")

    routes = [Route("/asks", asks), Mount("/m", routes=[Route("/asks", asks)])]
    with mill_of(sqlite_url) as mill, here(app(mill, extras=[extra(*routes)], authenticate=authenticate)) as client:
        for word in ("went away", "is away"):
            for path in ("/asks", "/m/asks"):
                answer = client.get(path)
                assert (answer.status_code, answer.headers["content-type"]) == (503, "text/html; charset=utf-8")
                assert f"the database {word}" in answer.text
                assert len(answer.headers.get_list("content-security-policy")) == 1
            away.set()
        assert "text/html" in client.get("/queues").headers["content-type"]


def test_a_number_that_python_cannot_read_is_not_found(sqlite_url: str) -> None:
    route = Route("/shelf/{number:int}", bought)
    with mill_of(sqlite_url) as mill, here(app(mill, open=True, extras=[extra(route)])) as client:
        assert client.get(f"/shelf/{'9' * 4301}").status_code == 404
        assert client.get("/shelf/7").status_code == 200
