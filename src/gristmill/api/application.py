"""The application as a whole: the routes, who gets in, and how errors and the OpenAPI document look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gristmill.api import problems
from gristmill.api.access import LOOPBACK, Authenticate, Rules
from gristmill.api.asking import KNOWN
from gristmill.api.events import Hub
from gristmill.api.guard import Guard
from gristmill.api.problems import Problem
from gristmill.api.routes import ROUTERS, health
from gristmill.metrics import Family
from gristmill.mill import Mill
from gristmill.settings import VERSION

if TYPE_CHECKING:
    from gristmill.web import Extra

_PROBLEM = {"content": {problems.MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be answered", **_PROBLEM},
    "5XX": {"description": "The database is away, or there is a bug", **_PROBLEM},
}
_ABOUT = "What goes on in a mill, and everything that can be done about it. Errors are problem details (RFC 9457)."


def app(
    mill: Mill,
    *,
    open: bool = False,
    read_only: bool = False,
    hosts: Sequence[str] = (),
    authenticate: Authenticate | None = None,
    token: str | None = None,
    metrics: Sequence[Callable[[], Iterable[Family]]] = (),
    pages: bool = False,
    extras: Sequence[Extra] = (),
) -> FastAPI:
    """The HTTP API of a mill, as an ASGI application of its own or to be mounted into another.

    Who gets in: with `authenticate`, whom that knows (it gets the request, and says a `Caller` or None); who has a token
    of the ledger, or `token`, an admin's; with `open`, while there is no token, everybody who reaches it, under one of the
    names of this machine or of `hosts` only. `read_only`: nobody can change anything. `metrics`: an application's own.
    `pages`: with the dashboard, and with pages of an application (`extras`). What the application's functions with
    `@routes` add is there too: routes to the application itself, and more to its `state.metrics` and `state.extras`.
    """
    made = FastAPI(
        title="Gristmill", version=VERSION, description=_ABOUT, docs_url=None, redoc_url=None, responses=_PROBLEMS
    )
    made.state.mill = mill
    made.state.open = open
    made.state.metrics, made.state.extras = list(metrics), list(extras)
    made.state.unmeasured = set()
    made.state.hub = Hub(mill)
    for router in ROUTERS:
        made.include_router(router, prefix="/api", dependencies=[KNOWN])
    made.include_router(health.router)
    for add in mill.registry.routes.values():
        add(made)
    if pages or made.state.extras:
        from gristmill.web import add_pages

        add_pages(made, mill, made.state.extras)
    names = list(dict.fromkeys([*LOOPBACK, *(host.lower() for host in hosts)]))
    made.add_middleware(Guard, rules=Rules(mill, open, names, read_only, authenticate, token))
    problems.answer_errors(made)
    made.openapi = lambda: openapi(made)  # type: ignore[method-assign]
    return made


# ---- the OpenAPI document


def openapi(made: FastAPI) -> dict[str, Any]:
    """As FastAPI writes it, with problems as they are, and with who may."""
    if made.openapi_schema is None:
        document = get_openapi(title=made.title, version=made.version, description=made.description, routes=made.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= problem.pop("$defs") | {"Problem": problem}
        _say_who_may(document, made.state.open)
        made.openapi_schema = document
    return made.openapi_schema


def _say_who_may(document: dict[str, Any], open: bool) -> None:
    for operations in document["paths"].values():
        for operation in operations.values():
            if security := operation.get("security"):
                role = security[0]["token"][0]
                operation["description"] = f"{operation.get('description', '')} Needs the role `{role}`.".strip()
                operation["security"] = [*security, {}] if open else security
