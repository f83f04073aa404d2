"""Addresses: which page answers, who may see it, and what every answer carries."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gristmill.api.problems import Trouble, status_of
from gristmill.errors import GristmillError
from gristmill.mill import Mill
from gristmill.watched import Role
from gristmill.web.site import STATIC, Extra, Site
from gristmill.web.view import HEADERS, TOKEN, View, new_token

_MOST_FIELDS = 2000
_FOR_EVER = "public, max-age=31536000, immutable"
_FILES = {"htmx.min.js", "app.js", "style.css", "icon.svg"}
Answer = Callable[..., Response]


@dataclass(frozen=True)
class Page:
    path: str
    method: str
    role: Role | None  #: None: also who has not signed in
    answer: Answer


class Pages:
    """The pages of one part of the dashboard."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    def get(self, path: str) -> Callable[[Answer], Answer]:
        return self._add(path, "GET", Role.VIEWER)

    def post(self, path: str, role: Role = Role.OPERATOR) -> Callable[[Answer], Answer]:
        return self._add(path, "POST", role)

    def open_get(self, path: str) -> Callable[[Answer], Answer]:
        return self._add(path, "GET", None)

    def open_post(self, path: str) -> Callable[[Answer], Answer]:
        return self._add(path, "POST", None)

    def _add(self, path: str, method: str, role: Role | None) -> Callable[[Answer], Answer]:
        def add(answer: Answer) -> Answer:
            self.pages.append(Page(path, method, role, answer))
            return answer

        return add


def add_pages(app: Starlette, mill: Mill, extras: Sequence[Extra] = ()) -> None:
    """Puts the pages into an application that has passed its requests through the API's `Guard`."""
    from gristmill.web.pages import ALL

    site = Site(mill, extras, hasattr(app.state, "hub"))  # the API has one, for those who follow what changes
    app.router.routes.append(Route("/static/{name}", _static, include_in_schema=False))
    app.router.routes.append(Route("/favicon.ico", _icon, include_in_schema=False))
    for part in ALL:
        for page in part.pages:
            endpoint = _endpoint(site, page)
            app.router.routes.append(Route(page.path, endpoint, methods=[page.method], include_in_schema=False))
    for extra in extras:
        app.router.routes += [_framed(site, route) for route in extra.routes]


def _endpoint(site: Site, page: Page) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        form = parse_form(await request.body()) if page.method == "POST" else {}
        return await run_in_threadpool(respond, _view(site, request, form), page)

    return answer


def _view(site: Site, request: Request, form: dict[str, list[str]]) -> View:
    return View(site, request, form, request.cookies.get(TOKEN) or new_token())


def parse_form(body: bytes) -> dict[str, list[str]]:
    try:
        text = body.decode()
        return parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        return {}  # without a token in it, it is refused


def respond(view: View, page: Page) -> Response:
    try:
        if page.role is not None:
            view.admit(page.role)
        if page.method == "POST":
            view.check_form()
        response = page.answer(view, **view.request.path_params)
    except (Trouble, GristmillError) as error:
        response = trouble(view, error)
    return finished(view, response)


def finished(view: View, response: Response) -> Response:
    response.headers.update(HEADERS)
    if TOKEN not in view.request.cookies:
        view.set_cookie(response, TOKEN, view.token)
    return response


def trouble(view: View, error: Trouble | GristmillError) -> Response:
    if isinstance(error, Trouble) and error.status == 401 and view.request.method == "GET" and not view.partial:
        return RedirectResponse(f"{view.base}/login?to={quote(view.here()[len(view.base) :])}", 303)
    status = error.status if isinstance(error, Trouble) else status_of(error)
    said = error.detail if isinstance(error, Trouble) else str(error)
    return view.page("trouble.html", status, title=HTTPStatus(status).phrase, status_code=status, detail=said)


def _framed(site: Site, route: Any) -> Any:
    """A route of an application, which can answer with `page`."""
    if not isinstance(route, Route):
        return route
    inner = route.app

    async def app(scope: Any, receive: Any, send: Any) -> None:
        view = scope["gristmill.view"] = _view(site, Request(scope), {})
        try:
            view.admit(Role.VIEWER)
        except Trouble as refused:
            await finished(view, trouble(view, refused))(scope, receive, send)
        else:
            await inner(scope, receive, _with_headers(send))

    route.app = app
    return route


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *((k.lower().encode(), v.encode()) for k, v in HEADERS.items())]
        await send(message)

    return sending


def _icon(request: Request) -> Response:
    """Browsers ask for it where no page says which: on a JSON document, on a part of a page."""
    return _file("icon.svg")


def _static(request: Request) -> Response:
    return _file(request.path_params["name"])


def _file(name: str) -> Response:
    if name not in _FILES:
        return Response("there is no such file", 404, media_type="text/plain", headers=HEADERS)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response((STATIC / name).read_bytes(), media_type=kind, headers={**HEADERS, "Cache-Control": _FOR_EVER})
