"""Those who may not: every route of the API and every page, asked by nobody, by a lower role, and by pages of others."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from chaos.play import Violation
from gristmill import Mill
from gristmill.api.access import COOKIE
from gristmill.watched import Role
from gristmill.web.pages import ALL
from gristmill.web.routing import Page
from gristmill.web.view import TOKEN
from tests.api.test_access import FOREIGN
from tests.api.wrong import World

ROLES = ("viewer", "operator", "admin")
_NOBODIES: tuple[dict[str, str], ...] = ({}, {"Authorization": "Bearer gm_wrong"}, {"Authorization": "Basic eDp5"})
_OTHERS = ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"})
_NAMED = {"number:id": "1", "name:path": "nightly", "name": "mail", "fingerprint": "0" * 12}
_BEFORE = ("/", "/static/", "/queues/", "/errors/", "/schedules/", "/api/queues/", "/api/errors/", "/api/schedules/")
_UP = ("../", "%2e%2e%2f", "..%2f", "%2e%2e/", "..%5c", "..\\", "%252e%252e%252f", "....//", "..;/", "%c0%ae%c0%ae/")
PAGES = [page for part in ALL for page in part.pages]


def ask_open(address: str, mill: Mill) -> Counter[int]:
    """A server without tokens: whoever is on this machine may do all, a page of another site in their browser nothing."""
    with World(address, {}, mill) as world:
        client = world.clients["nobody"]
        answers = [world.send("nobody", route, headers=foreign) for route in world.routes for foreign in FOREIGN]
        answers += [client.request(page.method, filled(page), headers=foreign) for page in PAGES for foreign in FOREIGN]
        return _denied(world, answers, {403})


def ask_guarded(address: str, mill: Mill, tokens: dict[str, str]) -> Counter[int]:
    """A server with tokens."""
    with World(address, tokens, mill) as world:
        nobody = world.clients["nobody"]
        answers = [world.send("nobody", route, headers=given) for route in world.routes for given in _NOBODIES]
        for page in _closed():
            answers += [nobody.request(page.method, filled(page), headers=given) for given in _NOBODIES]
        told = _denied(world, answers, {401, 303})
        return told + _denied(world, [*_by_lower_roles(world, tokens), *_by_other_sites(world, tokens)], {403})


def _by_lower_roles(world: World, tokens: dict[str, str]) -> Iterator[httpx.Response]:
    for route in world.routes:
        for role in ROLES[: ROLES.index(str(route.role))]:
            yield world.send(role, route)
    for page in _closed():
        for role in ROLES[: ROLES.index(page.role.value if page.role else "viewer")]:
            yield _signed_in(world, page, tokens[role], {})


def _by_other_sites(world: World, tokens: dict[str, str]) -> Iterator[httpx.Response]:
    """With all that an administrator's browser would send along; and without what only our forms know."""
    for route in (route for route in world.routes if route.acts):
        yield from (world.send("admin", route, headers=other) for other in _OTHERS)
    for page in (page for page in PAGES if page.method == "POST"):
        yield from (_signed_in(world, page, tokens["admin"], other) for other in _OTHERS)
        yield _signed_in(world, page, tokens["admin"], {}, form="wrong")


def _signed_in(world: World, page: Page, token: str, headers: dict[str, str], form: str = "known") -> httpx.Response:
    cookies = {"Cookie": f"{COOKIE}={token}; {TOKEN}=known"}
    data = {"token": form} if page.method == "POST" else None
    return world.clients["nobody"].request(page.method, filled(page), headers={**cookies, **headers}, data=data)


def _closed() -> list[Page]:
    return [page for page in PAGES if isinstance(page.role, Role)]


def filled(page: Page) -> str:
    path = page.path
    for name, value in _NAMED.items():
        path = path.replace("{" + name + "}", value)
    return path


def _denied(world: World, answers: list[httpx.Response], statuses: set[int]) -> Counter[int]:
    def let_in(answer: httpx.Response) -> bool:
        """A redirection is no refusal but to where one signs in."""
        to_sign_in = answer.headers.get("location", "/login").startswith("/login")
        return answer.status_code not in statuses or not to_sign_in

    if wrong := [f"{one.request.method} {one.request.url}: {one.status_code}" for one in answers if let_in(one)]:
        raise Violation(f"{len(wrong)} of {len(answers)} requests were not denied: {'; '.join(wrong[:5])}")
    if _kept(world.state()) != _kept(world.before):
        raise Violation("requests that were denied changed something")
    return Counter(answer.status_code for answer in answers)


def _kept(state: list[Any]) -> list[Any]:
    """Without limits: circuits open and close by themselves."""
    (jobs, runs, schedules, _), *rest = state
    return [jobs, runs, schedules, *rest]


# ---- addresses that climb


def climb(address: str, token: str, secret: Path) -> int:
    """Asks, as one who may see all, for files beside those that are served; says how many ways were tried."""
    targets = (str(secret)[1:], "etc/passwd", "view.py", "templates/base.html")
    paths = [f"{before}{up * 10}{target}" for before in _BEFORE for up in _UP for target in targets]
    paths += [f"{before}{secret}" for before in _BEFORE]
    url, wanted = httpx.URL(address), secret.read_bytes()
    for path in paths:
        connection = http.client.HTTPConnection(url.host, url.port, timeout=60)  # which sends a path as it is
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if any(sign in body for sign in (wanted, b"root:x:", b"from __future__", b"{% block")):
            raise Violation(f"GET {path} gave a file that is not served: {body[:200]!r}")
        if answer.status not in (303, 400, 404, 405, 422):
            raise Violation(f"GET {path} was answered with {answer.status}: {body[:200]!r}")
    return len(paths)
