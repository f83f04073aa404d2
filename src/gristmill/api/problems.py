"""Errors as HTTP tells them: problem details (RFC 9457), one shape for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from gristmill.errors import (
    DatabaseError,
    GristmillError,
    Invalid,
    LockTimeout,
    NotConfirmed,
    NotFound,
    Refused,
    Unavailable,
    did_you_mean,
)

log = logging.getLogger("gristmill.api")
MEDIA = "application/problem+json"
_LONGEST = 1000  # characters of a detail: what was sent may be long
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_FOR_PROGRAMS = ("/api", "/metrics", "/health", "/ready", "/openapi.json")
InPage = Callable[[Request, int, str], Response]  # what the pages tell a status and its detail with


class Wrong(BaseModel):
    """One thing that is wrong in a request."""

    where: str = Field(description="which part of the request: `body.confirm`, `query.limit`")
    detail: str


class Problem(BaseModel):
    """What went wrong, where, and what to do (RFC 9457)."""

    type: str = Field("about:blank", description="`about:blank`: the status says what kind it is")
    title: str
    status: int
    detail: str
    errors: list[Wrong] = Field([], description="each thing that is wrong with the request")
    count: int | None = Field(None, description="where a confirm was not the count: what that is now")


class Trouble(Exception):
    """A request that is answered with a problem."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, headers, more


def response(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    said = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": _cut(detail), **more}
    body = orjson.dumps({"errors": [], "count": None, **said})
    return Response(body, status, headers, MEDIA)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 4 :]}"


def _answer(request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """A problem; where a browser asks for a page, it is told in one."""
    in_page: InPage | None = getattr(request.app.state, "in_page", None)
    if in_page is None or not _wants_page(request):
        return response(status, detail, headers, **more)
    answer = in_page(request, status, _cut(detail))
    answer.headers.update(headers or {})
    return answer


def _wants_page(request: Request) -> bool:
    path = _path(request)
    return not path.startswith("/api/") and path not in _FOR_PROGRAMS and "text/html" in request.headers.get("accept", "")


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def status_of(error: GristmillError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, Invalid):
        return 422
    if isinstance(error, Refused | LockTimeout):
        return 409
    return 503 if isinstance(error, Unavailable) else 500


def answer_errors(app: FastAPI) -> None:
    """Every error of this application becomes a problem."""
    app.add_exception_handler(GristmillError, _ours)
    app.add_exception_handler(Trouble, _trouble)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(NoConnection, _busy)
    app.add_exception_handler(Exception, _bug)


def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, GristmillError)
    if isinstance(error, DatabaseError):
        log.error("%s %s: %s", request.method, request.url.path, error)
    headers = {"Retry-After": "5"} if isinstance(error, Unavailable) else None
    more = {"count": error.count} if isinstance(error, NotConfirmed) else {}
    return _answer(request, status_of(error), str(error), headers, **more)


def _trouble(request: Request, error: Exception) -> Response:
    assert isinstance(error, Trouble)
    return _answer(request, error.status, error.detail, error.headers, **error.more)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = [{"where": ".".join(map(str, one["loc"]))[:200], "detail": _detail(request, one)} for one in error.errors()[:20]]
    first = wrong[0]
    return response(422, f"{first['where']}: {first['detail']}", errors=wrong)


def _detail(request: Request, wrong: dict[str, Any]) -> str:
    """pydantic's words, but for what is not known here: that is told what there is."""
    if wrong["type"] != "extra_forbidden" or len(wrong["loc"]) != 2:
        return str(wrong["msg"]).removeprefix("Value error, ")
    place, name = wrong["loc"]
    return f"there is none of this name{did_you_mean(name, names(request, place))}"


def names(request: Request, place: str) -> list[str]:
    """What a route takes in its query, or in its body."""
    route = request.scope["route"].dependant
    fields = route.query_params if place == "query" else route.body_params
    return [name for field in fields for name in _names(field.field_info.annotation, field.alias)]


def _names(kind: Any, alone: str) -> list[str]:
    """Of the fields of a model, which may have none; `alone` is what is no model."""
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return [info.alias or name for name, info in kind.model_fields.items()] if is_model else [alone]


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = str(error.detail)
    if error.status_code == 404:
        said = f"there is nothing at {request.url.path!r}"
        said += "" if _wants_page(request) else "; /openapi.json lists what there is"
    elif error.status_code == 405:
        allowed = _methods(request)
        said = f"{request.url.path!r} does not take {request.method}, only {allowed}"
        return _answer(request, 405, said, {"Allow": allowed})
    return _answer(request, error.status_code, said, error.headers)


def _methods(request: Request) -> str:
    """What can be done at an address, by all its routes, those of pages too."""
    routes = request.app.router.routes
    asked = {method: {**request.scope, "method": method} for method in _METHODS}
    return ", ".join(
        method for method, scope in asked.items() if any(route.matches(scope)[0] is Match.FULL for route in routes)
    )


def of(error: Exception, scope: Scope) -> Response:
    """The problem for an error outside of any route."""
    request = Request(scope)
    for kind, handler in ((GristmillError, _ours), (Trouble, _trouble), (NoConnection, _busy)):
        if isinstance(error, kind):
            return handler(request, error)
    return _bug(request, error)


def _busy(request: Request, error: Exception) -> Response:
    return _answer(request, 503, "all connections to the database are in use; try again", {"Retry-After": "1"})


def _bug(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return _answer(request, 500, "this is a bug in Gristmill, or in what an application added; its log says where")
