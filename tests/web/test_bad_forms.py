"""Every form of every page, with everything that can be wrong: a clear 4xx in a page, never a 5xx, and nothing changed.

The forms are read from the pages themselves, so that a new one is covered by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gristmill.api.guard import LIMIT
from gristmill.web.pages import ALL
from gristmill.web.routing import Page
from tests.api.wrong import World
from tests.web.conftest import Dashboard
from tests.web.test_guarding import filled, token_of

FORMS = [page for part in ALL for page in part.pages if page.method == "POST"]
DEEP = '{"a":' * 300 + "1" + "}" * 300
ARGUMENTS = [DEEP, "[" * 100_000, "[1]", "{", "NaN", '"x"', "", '{"a": "\\ud800"}']
ODD_NUMBERS = ["0", "-1", "9" * 30, "8" * 5000, "1.5", "x", "%ff", "..%2f..", "%D9%A3", "%20", "1;drop"]


@pytest.fixture(scope="module")
def world(dashboard: Dashboard) -> Iterator[World]:
    with World(dashboard.address, {}, dashboard.mill) as world:
        yield world
    assert [line for line in dashboard.served.log if "bug" in line or "Traceback" in line] == []


@pytest.fixture(autouse=True)
def nothing_changes(world: World) -> Iterator[None]:
    yield
    assert world.state() == world.before


@pytest.fixture(scope="module")
def client(dashboard: Dashboard) -> Iterator[httpx.Client]:
    with dashboard.served.client() as client:
        token_of(client)
        yield client


def refused(answer: httpx.Response, *statuses: int) -> None:
    said = f"{answer.request.url}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code in statuses, said
    assert "Traceback" not in answer.text, said
    if answer.headers["content-type"] == "application/problem+json":  # the guard before all pages
        assert answer.json()["detail"], said
    else:
        assert 'role="alert"' in answer.text or "<h1>" in answer.text, said


def post(client: httpx.Client, page: Page, **fields: Any) -> httpx.Response:
    return client.post(filled(page.path), data={"token": client.cookies["gristmill_form"], **fields})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.path)
def test_a_field_that_is_not_known_is_refused(client: httpx.Client, form: Page) -> None:
    answer = post(client, form, surprise="1")
    refused(answer, 422)
    assert "this form has no field &#39;surprise&#39;" in answer.text


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.path)
def test_nul_is_refused_in_every_field(client: httpx.Client, form: Page) -> None:
    for name in form.fields - {"token"}:
        refused(post(client, form, **{name: "a\0b"}), 422)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.path)
def test_a_body_that_is_no_small_form_is_refused(client: httpx.Client, form: Page) -> None:
    token = client.cookies["gristmill_form"].encode()
    for content, status in {
        b"token=" + token + b"&q=" + b"x" * LIMIT: 413,
        b"token=" + token + b"&marked=1" * 3000: 403,
        b'{"token": "' + token + b'"}': 403,
        b"token=" + token + b"&q=%ff": 403,
        b"\xff\xfe": 403,
        b"": 403,
    }.items():
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        refused(client.post(filled(form.path), content=content, headers=headers), status)


@pytest.mark.parametrize("odd", ODD_NUMBERS, ids=lambda odd: odd[:10])
def test_a_form_about_what_cannot_be_is_refused(client: httpx.Client, odd: str) -> None:
    token = {"token": client.cookies["gristmill_form"]}
    for form in FORMS:
        begin, brace, rest = form.path.partition("{")
        if brace:
            refused(client.post(f"{begin}{odd}{rest.partition('}')[2]}", data=token), 400, 404, 405, 409, 422)


@pytest.mark.parametrize("form", [form for form in FORMS if "args" in form.fields], ids=lambda form: form.path)
@pytest.mark.parametrize(
    "args", [DEEP, "[" * 100_000, "[1]", "{", "NaN", '"x"', "", '{"a": "\\ud800"}'], ids=lambda a: a[:9]
)
def test_arguments_that_are_no_small_object_are_refused(client: httpx.Client, form: Page, args: str) -> None:
    named = {"pipeline": "minutes", "subject": "new"} if "pipeline" in form.fields else {}
    refused(post(client, form, args=args, **named), 409, 422)


def test_fields_of_another_kind_are_refused(client: httpx.Client) -> None:
    forms = {form.path: form for form in FORMS}
    for path, fields in [
        ("/queues/{name}/set", {"weight": "heavy"}),
        ("/queues/{name}/set", {"weight": "-1"}),
        ("/queues/{name}/set", {"weight": "nan"}),
        ("/queues/{name}/set", {"at_once": "9" * 5000}),
        ("/queues/{name}/set", {"per_second": "1e999"}),
        ("/limits/set", {"name": "host", "key": "x", "at_once": "1.5"}),
        ("/limits/set", {"name": "", "key": "", "at_once": "1"}),
        ("/limits/close", {"name": "host", "key": "nobody"}),
        ("/subjects/{number:id}/set", {"interval": "often"}),
        ("/subjects/{number:id}/set", {"interval": "9" * 400 + "d"}),
        ("/subjects/{number:id}/set", {"labels": "no equals sign"}),
        ("/subjects/{number:id}/set", {"labels": f"{'k' * 2000}=v"}),
        ("/subjects/{number:id}/start", {"args": "{}", "priority": "highest"}),
        ("/subjects/start", {"pipeline": "nothing", "subject": "x", "args": "{}"}),
        ("/subjects/start", {"pipeline": "minutes", "subject": "x" * 5000, "args": '{"pages": 1}'}),
        ("/subjects/start", {"pipeline": "minutes", "subject": "", "args": '{"pages": 1}'}),
        ("/jobs/many", {"action": "explode", "marked": "1"}),
        ("/jobs/many", {"action": "cancel", "marked": "one"}),
        ("/jobs/many", {"action": "cancel", "all": "1", "q": "colour:red"}),
        ("/jobs/many", {"action": "cancel", "all": "1", "q": "since:1000000d"}),
        ("/jobs/many", {"action": "cancel", "all": "1", "q": "since:1d", "at": "9" * 17}),
        ("/jobs/many", {"action": "cancel", "all": "1", "q": "since:1d", "at": "noon"}),
        ("/runs/many", {"action": "cancel", "all": "1", "q": "since:1000000d"}),
        ("/subjects/many", {"all": "1", "q": "stale:1000000d"}),
        ("/jobs/many", {"action": "cancel", "all": "1"}),
        ("/runs/many", {"action": "cancel", "all": "1"}),
        ("/runs/{number:id}/retry", {"stage": "nothing"}),
    ]:
        refused(post(client, forms[path], **fields), 404, 409, 422)
