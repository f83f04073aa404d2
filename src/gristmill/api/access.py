"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from fastapi import Depends, Request

from gristmill.api.problems import Trouble
from gristmill.mill import Mill

SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing


class Role(IntEnum):
    """What somebody may do; each may what those before it may."""

    viewer = 1  #: look at everything
    operator = 2  #: ask for work and act on it
    admin = 3  #: change settings, and remove for good


@dataclass(frozen=True)
class Caller:
    """Who asks: the name for the record, and the role."""

    name: str
    role: Role


@dataclass(frozen=True)
class Call:
    """What a route needs: the mill, and in whose name it acts."""

    mill: Mill
    by: str
    role: Role


def is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def needs(role: Role, *, form: bool = False) -> Callable[[Request], Call]:
    """A dependency of a route: only callers with this role, or a higher one, get in.

    What changes something must be JSON, which no page of another site can send without asking first; `form`: or a form.
    """

    def admit(request: Request) -> Call:
        caller: Caller | None = request.scope.get("gristmill.caller")
        if caller is None:
            said = "this needs a token: send it as `Authorization: Bearer …`; `gristmill token add` makes one"
            raise Trouble(401, said, {"WWW-Authenticate": 'Bearer realm="gristmill"'})
        if caller.role < role and request.scope.get("gristmill.read_only"):
            raise Trouble(403, "this server is read-only: it was started with --read-only")
        if caller.role < role:
            raise Trouble(403, f"this needs the role {role.name}; {caller.name!r} has the role {caller.role.name}")
        if request.method not in SAFE and not form and not is_json(request):
            raise Trouble(415, "send this as JSON, with `Content-Type: application/json`")
        return Call(request.app.state.mill, caller.name, caller.role)

    admit.role = role  # type: ignore[attr-defined]  # for the OpenAPI document, and for tests
    return admit


Viewer = Annotated[Call, Depends(needs(Role.viewer))]
Operator = Annotated[Call, Depends(needs(Role.operator))]
Admin = Annotated[Call, Depends(needs(Role.admin))]
