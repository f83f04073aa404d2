"""Every route of the application, with everything that can be wrong: a clear 4xx, never a 5xx, and nothing changed.

The routes are read from the application's OpenAPI document, so that a new one is covered by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.api.guard import LIMIT
from tests.api.conftest import filled, mill_of
from tests.api.routes import body_of
from tests.api.server import serving
from tests.api.wrong import World

pytestmark = pytest.mark.alike


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.pg)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    url = filled(request, tmp_path_factory.mktemp("world"))
    with mill_of(url) as mill:
        tokens = {role: mill.create_token(role, role).text for role in ("viewer", "operator", "admin")}
        with serving(url) as server, World(server.address, tokens, mill) as world:
            yield world
        assert [line for line in server.log if "bug" in line or "Traceback" in line] == []


@pytest.fixture(autouse=True)
def nothing_changes(world: World) -> Iterator[None]:
    yield
    assert world.state() == world.before


def test_no_route_answers_without_a_good_token(world: World) -> None:
    for route in world.routes:
        for given in ({}, {"Authorization": "Bearer gm_wrong"}, {"Authorization": "Basic eDp5"}):
            world.refused(world.send("nobody", route, headers=given), 401)


def test_no_route_answers_a_lower_role(world: World) -> None:
    order = ["viewer", "operator", "admin"]
    for route in world.routes:
        for role in order[: order.index(str(route.role))]:
            world.refused(world.send(role, route), 403)


def test_no_page_of_another_site_can_act(world: World) -> None:
    foreign = ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})
    for route in (route for route in world.routes if route.acts):
        for headers in foreign:
            world.refused(world.send("admin", route, headers=headers), 403)
        world.refused(world.send("admin", route, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
        world.refused(world.send("admin", route, content=b""), 415)


def test_what_is_not_known_is_refused(world: World) -> None:
    for route in world.routes:
        if route.acts:
            answer = world.send("admin", route, json={**body_of(route, world.document), "asked": 1})
            world.refused(answer, 422)
            assert "'asked'" not in answer.json()["detail"], "nothing is called so here"
        answer = world.send("admin", route, params={"surprise": "1"})
        world.refused(answer, 422)
        assert "query.surprise: there is none of this name" in answer.json()["detail"]


NO_THINGS = [
    "0",
    "-1",
    "9" * 30,
    "8" * 5000,
    "1.5",
    "x",
    "%00",
    "%ff",
    "..%2f..",
    "%D9%A3",
    "1;drop",
    "%20",
    "x" * 3000,
    "x%0Ay",
]


@pytest.mark.parametrize("odd", NO_THINGS, ids=lambda odd: odd[:10])
def test_what_is_malformed_or_not_there_is_no_thing(world: World, odd: str) -> None:
    for route in (route for route in world.routes if "{" in route.path):
        begin, _, rest = route.path.partition("{")
        address = f"{begin}{odd}{rest.partition('}')[2]}".replace("{stage}", "count")
        world.refused(world.send("admin", route, address=address), 400, 404, 422)


BODIES: dict[str, tuple[bytes, int]] = {
    "too large": (b'{"reason": "' + b"x" * LIMIT + b'"}', 413),
    "deep": (b'{"a":' * 300 + b"1" + b"}" * 300, 400),
    "very deep": (b"[" * 100_000, 400),
    "cut off": (b'{"reason": "x', 400),
    "no JSON": (b"reason=x", 400),
    "not UTF-8": (b'{"reason": "\xff\xfe"}', 400),
    "half a surrogate": (b'{"reason": "\\ud800"}', 400),
    "NaN": (b'{"confirm": NaN}', 400),
    "a list": (b"[1, 2]", 422),
    "a text": (b'"x"', 422),
    "nothing": (b"", 422),
    "null": (b"null", 422),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_is_no_small_object_is_refused(world: World, body: str) -> None:
    content, status = BODIES[body]
    for route in (route for route in world.routes if route.acts):
        answer = world.send("admin", route, content=content, headers={"Content-Type": "application/json"})
        world.refused(answer, status)


def test_a_body_that_goes_on_and_on_is_cut(world: World) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(LIMIT // 65_536 + 2):
            yield b" " * 65_536

    route = next(route for route in world.routes if (route.method, route.path) == ("POST", "/api/jobs"))
    world.refused(world.send("admin", route, content=endless(), headers={"Content-Type": "application/json"}), 413)


def test_nul_is_refused_wherever_it_is(world: World) -> None:
    for route in world.routes:
        for name in () if route.acts else route.queries:
            world.refused(world.send("admin", route, address=f"{route.address}?{name}=a%00b"), 400)
        for body in with_nul(body_of(route, world.document, full=True)) if route.acts else ():
            world.refused(world.send("admin", route, json=body), 422)


def with_nul(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The body with a NUL in one of its texts."""
    for name, value in body.items():
        if isinstance(value, str):
            yield {**body, name: "a\0b"}
        elif isinstance(value, dict):
            yield from ({**body, name: inner} for inner in with_nul(value))
            yield {**body, name: {**value, "a\0b": "x"}}
        elif isinstance(value, list) and value and isinstance(value[0], str):
            yield {**body, name: ["a\0b"]}


WRONG = [True, [], {}, "x" * 20_000, -1, 10**40, 1e308, "\U0001f9e8", None]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:10])
def test_a_field_of_another_kind_is_refused(world: World, wrong: Any) -> None:
    """With a `confirm` that cannot be right, so that what happens to be right changes nothing either."""
    for route in (route for route in world.routes if route.confirms):
        full = body_of(route, world.document, full=True)
        for name in full.keys() - {"confirm"}:
            answer = world.send("admin", route, json={**full, name: wrong, "confirm": 987_654_321})
            world.refused(answer, 404, 409, 422)
