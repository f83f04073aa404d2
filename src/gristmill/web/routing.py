"""Addresses: which page answers, who may see it, and what every answer carries."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URLPath
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

from gristmill.api.access import SAFE, is_json
from gristmill.api.guard import refuse_strangers
from gristmill.api.problems import Trouble, status_of
from gristmill.errors import GristmillError, Invalid, NotFound, did_you_mean, quoted
from gristmill.mill import Mill
from gristmill.watched import Role
from gristmill.web.site import STATIC, Extra, Site
from gristmill.web.view import ANYBODY, BASE, HEADERS, TOKEN, View, new_token

_MOST_FIELDS = 2000
# Seconds that a page is kept which many watch. They see a change within two: they are told of it within 0.3 s and look at
# once, and once more after 0.9 s; of what nobody is told, they look every 1.2 s (app.js).
_MOMENT = 1.1
_TITLES = {422: "That cannot be taken", 409: "That cannot be done", 404: "There is nothing here"}
_FOR_EVER = "public, max-age=31536000, immutable"
_FILES = {"htmx.min.js", "app.js", "style.css", "icon.svg"}
Answer = Callable[..., Response]


@dataclass(frozen=True)
class Page:
    path: str
    method: str
    role: Role | None  #: None: also who has not signed in
    answer: Answer
    fields: frozenset[str] = frozenset({"token"})  #: that its form may have
    live: bool = False  #: what it shows depends on the address and the role only: all who watch it see the same
    longest: float = 0.0  #: seconds for which they may see what took long to read


class Pages:
    """The pages of one part of the dashboard."""

    def __init__(self) -> None:
        self.pages: list[Page] = []

    def get(self, path: str) -> Callable[[Answer], Answer]:
        return self._add(path, "GET", Role.VIEWER)

    def live(self, path: str, longest: float = 0.0) -> Callable[[Answer], Answer]:
        """A page that many may watch: see `shared`."""
        return self._add(path, "GET", Role.VIEWER, live=True, longest=longest)

    def post(self, path: str, fields: str = "", role: Role = Role.OPERATOR) -> Callable[[Answer], Answer]:
        """`fields`: what its form may say, beside the token."""
        return self._add(path, "POST", role, fields)

    def open_get(self, path: str) -> Callable[[Answer], Answer]:
        return self._add(path, "GET", None)

    def open_post(self, path: str, fields: str = "") -> Callable[[Answer], Answer]:
        return self._add(path, "POST", None, fields)

    def _add(self, path: str, method: str, role: Role | None, fields: str = "", **more: Any) -> Callable[[Answer], Answer]:
        def add(answer: Answer) -> Answer:
            self.pages.append(Page(path, method, role, answer, frozenset({"token", *fields.split()}), **more))
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
    app.state.in_page = partial(_told_in_page, site)
    for extra in extras:
        app.router.routes += [Framed(site, _routed(extra, route)) for route in extra.routes]


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
            _check_fields(view.form, page.fields)
        _check_numbers(view.request.path_params)
        response = shared(view, page) if page.live and view.partial else page.answer(view, **view.request.path_params)
    except (Trouble, GristmillError) as error:
        response = trouble(view, error)
    return finished(view, response)


def _check_fields(form: Mapping[str, Any], known: Collection[str]) -> None:
    """As the API does: what is not known is refused, since somebody meant something by it."""
    for name in form:
        if name not in known:
            raise Invalid(f"this form has no field {quoted(name)}{did_you_mean(name, known)}; nothing was changed")


def shared(view: View, page: Page) -> Response:
    """What is new on a page that is there already, made once for all of this role who watch it."""

    def make() -> bytes | None:
        response = page.answer(view.for_all(), **view.request.path_params)
        return bytes(response.body) if isinstance(response, HTMLResponse) and response.status_code == 200 else None

    assert view.caller is not None
    name = f"page {view.caller.role.value} {view.base} {view.request.url.path}?{view.request.url.query}"
    made = view.site.recent.get(name, _MOMENT, make, page.longest)
    if made is None:  # it leads elsewhere
        return page.answer(view, **view.request.path_params)
    return HTMLResponse(made.replace(ANYBODY.encode(), view.token.encode()))


def _check_numbers(given: Mapping[str, Any]) -> None:
    for number in given.values():
        if isinstance(number, int) and number >= 1 << 63:
            raise NotFound(f"there is nothing with the number {number}")


def finished(view: View, response: Response) -> Response:
    response.headers.update(HEADERS)
    if TOKEN not in view.request.cookies:
        view.set_cookie(response, TOKEN, view.token)
    return response


def trouble(view: View, error: Trouble | GristmillError) -> Response:
    vars(view).setdefault("caller", None)  # who asks may be what could not be found out; it is not asked again
    if isinstance(error, Trouble) and error.status == 401 and view.request.method == "GET" and not view.partial:
        return RedirectResponse(f"{view.base}/login?to={quote(view.here()[len(view.base) :])}", 303)
    status = error.status if isinstance(error, Trouble) else status_of(error)
    said = error.detail if isinstance(error, Trouble) else str(error)
    return view.page(
        "trouble.html", status, title=_TITLES.get(status) or HTTPStatus(status).phrase, detail=said, back=_back(view)
    )


def _told_in_page(site: Site, request: Request, status: int, detail: str) -> Response:
    """What no page was made for: an address that is mistyped, a database that is away, a bug."""
    view = _view(site, request, {})
    return finished(view, trouble(view, Trouble(status, detail)))


def _back(view: View) -> str | None:
    """Where a form was that could not be taken, on this very server; the browser still has what was written into it."""
    came = urlsplit(view.request.headers.get("referer", ""))
    if view.request.method != "POST" or came.netloc != view.request.url.netloc:
        return None
    return f"{came.path}?{came.query}" if came.query else came.path


# ---- routes of applications


def _routed(extra: Extra, route: object) -> BaseRoute:
    if not isinstance(route, BaseRoute):
        raise Invalid(f"the routes of {extra.title!r} hold {route!r}; only routes of Starlette can be guarded")
    return route


class Framed(BaseRoute):
    """A route of an application, of whatever kind, behind the rules of all pages; it can answer with `page`.

    What does more than look (another method, a socket) needs an operator, and to come from these pages.
    """

    def __init__(self, site: Site, route: BaseRoute) -> None:
        self.site, self.route = site, route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        try:
            match, found = self.route.matches(scope)
        except ValueError:  # a number of thousands of digits
            return Match.NONE, {}
        return match, {**found, BASE: scope.get("root_path", "")}

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        return self.route.url_path_for(name, **path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await self._connect(scope, receive, send)
        request, form = Request(scope, receive), dict[str, list[str]]()
        if request.method not in SAFE:
            body = await request.body()
            form, receive = parse_form(body), _again(body, receive)
        view = scope["gristmill.view"] = _view(self.site, request, form)
        refusal = await run_in_threadpool(_refusal, view)
        if refusal is not None:
            return await refusal(scope, receive, send)
        _tell_in_pages(scope, view)
        return await self.route.handle(scope, receive, _with_headers(view, send))

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A socket can act as long as it is open, so it is asked for as if it did."""
        request = Request({**scope, "type": "http", "method": "POST"})
        view = scope["gristmill.view"] = _view(self.site, request, {})
        try:
            refuse_strangers(request, view.rules.hosts, view.rules.open)
            await run_in_threadpool(view.admit, Role.OPERATOR)
        except (Trouble, GristmillError) as refused:
            code = 1008 if isinstance(refused, Trouble) else 1011
            return await send({"type": "websocket.close", "code": code, "reason": str(refused)[:100]})
        return await self.route.handle(scope, receive, send)


def _refusal(view: View) -> Response | None:
    """Asks the database. What is sent as JSON no page of another site can send without asking first."""
    looks = view.request.method in SAFE
    try:
        view.admit(Role.VIEWER if looks else Role.OPERATOR)
        if not looks and not is_json(view.request):
            view.check_form()
    except (Trouble, GristmillError) as error:
        return finished(view, trouble(view, error))
    return None


def _tell_in_pages(scope: Scope, view: View) -> None:
    """What the application's function raises is told in a page, as with the other pages."""

    def told(request: Request, error: Any) -> Response:
        return trouble(view, error)

    handlers, statuses = scope.get("starlette.exception_handlers", ({}, {}))
    scope["starlette.exception_handlers"] = {**handlers, GristmillError: told, Trouble: told}, statuses


def _again(body: bytes, receive: Receive) -> Receive:
    """Hands on a body that was read."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return left.pop() if left else await receive()

    return receiving


def _with_headers(view: View, send: Send) -> Send:
    ours = [(name, value) for name, value in finished(view, Response()).raw_headers if name != b"content-length"]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *ours]
        await send(message)

    return sending


# ---- files


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
