"""Who gets in, and what does not: forms of others, wrong roles, malformed addresses. Nothing is changed by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Page, expect
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gristmill.api import app
from gristmill.model import Lock
from gristmill.web import Extra, page
from gristmill.web.pages import ALL
from tests.api.server import in_thread
from tests.web.conftest import Dashboard, dashboard_of
from tests.web.filling import mill_of

ACTIONS = [one.path for part in ALL for one in part.pages if one.method == "POST"]


def filled(path: str) -> str:
    for name, value in {"number:id": "1", "name:path": "nightly", "name": "mail", "fingerprint": "abc"}.items():
        path = path.replace("{" + name + "}", value)
    return path


@contextmanager
def here(application: Any) -> Iterator[httpx.Client]:
    """An application as others mount it."""
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    with in_thread(server) as port, httpx.Client(base_url=f"http://localhost:{port}") as client:
        yield client


@pytest.fixture
def client(dashboard: Dashboard) -> Iterator[httpx.Client]:
    with dashboard.served.client() as client:
        yield client


def token_of(client: httpx.Client) -> str:
    client.get("/settings")
    return client.cookies["gristmill_form"]


@pytest.mark.parametrize("path", ACTIONS)
def test_a_form_without_its_token_is_refused(dashboard: Dashboard, client: httpx.Client, path: str) -> None:
    token = token_of(client)
    before = dashboard.mill.audit(limit=1)
    for form in ({}, {"token": "wrong"}, {"token": token[:-1]}):
        answer = client.post(filled(path), data=form)
        assert answer.status_code == 403
        assert "nothing was changed" in answer.text
    client.cookies.clear()
    assert client.post(filled(path), data={"token": ""}).status_code == 403
    assert dashboard.mill.audit(limit=1) == before


@pytest.mark.parametrize("path", ACTIONS)
def test_a_form_of_another_site_is_refused(dashboard: Dashboard, client: httpx.Client, path: str) -> None:
    form = {"token": token_of(client)}
    before = dashboard.mill.audit(limit=1)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        assert client.post(filled(path), data=form, headers=headers).status_code == 403
    assert client.post(filled(path), data=form, headers={"Host": "evil.example"}).status_code == 403
    assert dashboard.mill.audit(limit=1) == before


@pytest.mark.parametrize("path", ACTIONS)
def test_nothing_is_done_by_looking(client: httpx.Client, path: str) -> None:
    if path not in ("/login",):
        assert client.get(filled(path)).status_code in (404, 405)


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/jbos", 404, "there is nothing at"),
        ("/jobs/many", 405, "does not take GET, only POST"),
        ("/jobs/1/x", 404, "nothing at"),
    ],
)
def test_an_address_that_no_page_has_is_told_in_a_page(client: httpx.Client, path: str, status: int, said: str) -> None:
    shown, plain = client.get(path, headers=BROWSER), client.get(path)
    assert (shown.status_code, plain.status_code) == (status, status)
    assert '<section class="verdict bad">' in shown.text
    assert said in shown.text
    assert said in plain.json()["detail"]
    assert shown.headers.get("Allow") == plain.headers.get("Allow") == ("POST" if status == 405 else None)
    assert shown.headers["Content-Security-Policy"]


def test_what_is_for_programs_stays_so(client: httpx.Client) -> None:
    for path in ("/api/jbos", "/api", "/api/jobs/x"):
        assert client.get(path, headers=BROWSER).headers["content-type"] == "application/problem+json"
    assert client.put("/api/queues", headers=BROWSER).headers["Allow"] == "GET"
    assert client.delete("/api/jobs/1").headers["Allow"] == "GET, PATCH"
    assert client.post("/health").headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(("error", "status"), [(ZeroDivisionError, 500), (NoConnection, 503)])
def test_a_bug_and_a_crowd_are_told_in_a_page(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception], status: int
) -> None:
    def locks() -> list[Lock]:
        raise error

    with mill_of(sqlite_url) as mill, here(app(mill, open=True, pages=True)) as client:
        monkeypatch.setattr(mill, "locks", locks)
        answer = client.get("/locks", headers=BROWSER)
    assert (answer.status_code, answer.headers.get("Retry-After")) == (status, "1" if status == 503 else None)
    assert '<section class="verdict bad">' in answer.text


def test_what_is_not_there_or_malformed_is_said_in_a_page(client: httpx.Client) -> None:
    for path in (
        "/runs/999",
        "/jobs/999999",
        "/subjects/999",
        "/errors/nothing",
        "/queues/nobody",
        "/schedules/none/history",
    ):
        answer = client.get(path)
        assert (path, answer.status_code) == (path, 404)
        assert "text/html" in answer.headers["content-type"]
    assert client.get("/runs/99999999999999999999").status_code == 404
    assert client.get("/static/../view.py").status_code == 404
    assert client.get("/static/VENDORED.json").status_code == 404
    assert client.get("/jobs?q=%00").status_code == 400
    assert client.get("/jobs?after=x&q=run:abc").status_code == 200
    assert client.get("/jobs", params={"q": "key:" + "x" * 5000}).status_code == 200
    assert client.post("/queues/mail/pause", content=b"\xff\xfe" * 100).status_code == 403


@pytest.mark.parametrize("number", ["99999999999999999999", "9" * 4301, "0" * 4301 + "9" * 20])
def test_numbers_that_nothing_has_are_not_found(client: httpx.Client, number: str) -> None:
    token = {"token": token_of(client)}
    for one in (one for part in ALL for one in part.pages if "{number:id}" in one.path):
        path = one.path.replace("{number:id}", number)
        answer = client.get(path) if one.method == "GET" else client.post(path, data=token)
        assert (one.path, answer.status_code) == (one.path, 404)
        assert "text/html" in answer.headers["content-type"]
    for path in ("/jobs", "/runs", "/subjects", "/audit"):
        assert client.get(path, params={"after": f"00000000000000000001{number}"}).status_code == 200
    for path in ("/jobs/many", "/runs/many"):
        answer = client.post(path, data={**token, "action": "cancel", "marked": ["1", number]})
        assert (answer.status_code, "is no number" in answer.text) == (422, True)


def test_a_number_may_begin_with_zeros(client: httpx.Client) -> None:
    assert client.get(f"/jobs/{'0' * 4301}1").status_code == 200
    assert client.get("/jobs", params={"after": f"{'0' * 30}2"}).text.count("<tr id=") == 1


def test_a_form_with_a_nul_is_refused(client: httpx.Client) -> None:
    form = {"token": token_of(client), "name": "host", "key": "\0"}
    for path in ("/limits/close", "/limits/set"):
        answer = client.post(path, data=form)
        assert (answer.status_code, "NUL character" in answer.text) == (422, True)


def test_every_answer_has_a_policy_without_inline_scripts(client: httpx.Client) -> None:
    for path in ("/", "/runs/999", "/jobs/1/peek", "/static/app.js", "/login"):
        policy = client.get(path).headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
    text = client.get("/").text
    for inline in (" style=", " onclick=", "<script>", "javascript:"):
        assert inline not in text


def test_the_token_of_forms_cannot_be_read_by_scripts(client: httpx.Client) -> None:
    cookie = client.get("/").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_a_server_that_is_read_only_does_nothing(dashboard: Dashboard) -> None:
    with dashboard_of(dashboard.served.database, "--read-only") as locked, locked.served.client() as client:
        form = {"token": token_of(client)}
        before = dashboard.mill.audit(limit=1)
        for path in ACTIONS:
            if path not in ("/login", "/logout"):
                answer = client.post(filled(path), data=form)
                assert (path, answer.status_code) == (path, 403)
                assert "read-only" in answer.text
        assert dashboard.mill.audit(limit=1) == before


@pytest.fixture
def tokened(tmp_path: Path, sqlite_url: str) -> Iterator[tuple[Dashboard, dict[str, str]]]:
    with mill_of(sqlite_url) as mill:
        texts = {role: mill.create_token(role, role).text for role in ("viewer", "operator", "admin")}
    with dashboard_of(sqlite_url) as served:
        yield served, texts


def test_tokens_let_people_in_as_what_they_are(
    tokened: tuple[Dashboard, dict[str, str]], opened: Callable[..., Page]
) -> None:
    dashboard, texts = tokened
    dashboard.mill.set_queue("mail", create=True)
    page = opened(dashboard.address)
    page.goto("/queues")
    expect(page).to_have_url(f"{dashboard.address}/login?to=/queues")
    expect(page.locator("nav a")).to_have_count(0)  # each would only lead back here
    expect(page.locator("#live-mark")).to_have_count(0)
    page.get_by_label("Token").fill("gm_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("[role=alert]")).to_contain_text("not known")
    getattr(page, "complaints").clear()  # noqa: B009  # the 403 itself
    page.get_by_label("Token").fill(texts["viewer"])
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{dashboard.address}/queues")
    expect(page.locator(".who")).to_contain_text("viewer")
    assert page.locator("main form").count() == 0
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{dashboard.address}/login")


def test_a_role_may_do_what_it_may(tokened: tuple[Dashboard, dict[str, str]]) -> None:
    dashboard, texts = tokened
    dashboard.mill.set_queue("mail", create=True)
    wanted = {
        "viewer": {"/queues/mail/pause": 403, "/queues/mail/set": 403},
        "operator": {"/queues/mail/pause": 303, "/queues/mail/set": 403},
        "admin": {"/queues/mail/pause": 303, "/queues/mail/set": 303},
    }
    for role, paths in wanted.items():
        with dashboard.served.client() as client:
            client.get("/login")
            token = client.cookies["gristmill_form"]
            signed = client.post("/login", data={"token": token, "text": texts[role], "to": "//evil.example/"})
            assert (signed.status_code, signed.headers["location"]) == (303, "/")
            assert "HttpOnly" in signed.headers["set-cookie"]
            for path, status in paths.items():
                assert (role, path, client.post(path, data={"token": token}).status_code) == (role, path, status)
    assert dashboard.mill.audit(verb="queue.pause", limit=1)[0].who == "admin (web)"


def test_an_application_adds_pages_of_its_own(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "sites.html").write_text(
        '{% extends "base.html" %}{% block live %}<h1>{{ title }}</h1>{{ parts.chip("failed") }}'
        "<p>{{ text }}</p>{% endblock %}"
    )

    def sites(request: Request) -> Response:
        return page(request, "sites.html", title="Sites", text="<b>not bold</b>")

    extra = Extra("Sites", "/sites", [Route("/sites", sites)], tmp_path)
    with mill_of(sqlite_url) as mill, here(app(mill, open=True, extras=[extra])) as client:
        text = client.get("/sites").text
        assert "&lt;b&gt;not bold" in text
        assert 'href="/sites" ' in text
        assert 'aria-current="page"' in text
        assert "unsafe" not in client.get("/sites").headers["content-security-policy"]
        assert ">Sites<" in client.get("/").text
        assert client.get("/sites", headers={"Host": "evil.example"}).status_code == 403
    with mill_of(sqlite_url) as mill, here(app(mill, extras=[extra])) as client:
        assert client.get("/sites", follow_redirects=False).headers["location"].startswith("/login")


def test_mounted_below_another_application_it_links_to_itself(sqlite_url: str) -> None:
    from fastapi import FastAPI

    with mill_of(sqlite_url) as mill:
        outer = FastAPI()
        outer.mount("/mill", app(mill, open=True, pages=True))
        with here(outer) as client:
            text = client.get("/mill/").text
            assert 'href="/mill/runs"' in text
            assert 'hx-get="/mill/"' in text
            assert client.get(text.split('rel="stylesheet" href="')[1].split('"')[0]).status_code == 200
            assert client.get("/mill/queues").status_code == 200
