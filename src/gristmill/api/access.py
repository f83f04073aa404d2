"""Who asks, and what they may do."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from gristmill.api import numbers as _numbers  # noqa: F401  # the routes' `{number:id}`
from gristmill.api.problems import Trouble
from gristmill.mill import Mill
from gristmill.mill.values import who
from gristmill.watched import Role

COOKIE = "gristmill_token"  # in which the pages keep the token of who signed in; no script and no other site gets at it
SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SCHEME = HTTPBearer(scheme_name="token", auto_error=False, description="`gristmill token create NAME` makes one")
_LOOK_AGAIN = 1.0  # seconds after which somebody may have made the first token


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


Authenticate = Callable[[Request], Caller | None]


@dataclass
class Rules:
    """Who gets in. `open`: while there is no token, everybody who reaches this server by one of the names in `hosts`."""

    mill: Mill
    open: bool = False
    hosts: Sequence[str] = LOOPBACK
    read_only: bool = False
    authenticate: Authenticate | None = None
    token: str | None = None  # an admin's, which is not in the ledger
    _looked: float = field(default=float("-inf"), init=False)

    def caller(self, request: Request) -> Caller | None:
        """Asks the database, so not in the event loop."""
        found = self.authenticate(request) if self.authenticate else None
        if found is None:
            token = _bearer(request)
            found = self._of_cookie(request) or self._anybody() if token is None else self.of_token(token)
        return replace(found, role=Role.VIEWER) if found and self.read_only else found

    def _of_cookie(self, request: Request) -> Caller | None:
        """One of another ledger that was served here before does not matter: whoever has it could leave it out."""
        text = request.cookies.get(COOKIE)
        return None if text is None else self.of_token(text)

    def of_token(self, text: str) -> Caller | None:
        if self.token and hmac.compare_digest(text.encode(), self.token.encode()):
            return Caller(f"{who()} (api)", Role.ADMIN)
        token = self.mill.check_token(text)
        return None if token is None else Caller(f"{token.name} (api)", token.role)

    def _anybody(self) -> Caller | None:
        """Never again, once there was a token: to revoke the last one must not let all others in."""
        if self.open and time.monotonic() > self._looked + _LOOK_AGAIN:
            self.open = not self.mill.tokens(every=True)
            self._looked = time.monotonic()
        return Caller(f"{who()} (api)", Role.ADMIN) if self.open else None


def _bearer(request: Request) -> str | None:
    """What is sent as a token, whatever it is; None: nothing."""
    given = request.headers.get("authorization")
    if given is None:
        return None
    scheme, _, token = given.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def caller_of(request: Request) -> Caller | None:
    rules: Rules = request.scope["gristmill.rules"]
    return rules.caller(request)


def is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def needs(role: Role, *, form: bool = False) -> Any:
    """A dependency of a route: only callers with this role, or a higher one, get in.

    What changes something must be JSON, which no page of another site can send without asking first; `form`: or a form.
    """

    def admit(request: Request, token: Annotated[object, Depends(_SCHEME)]) -> Call:
        caller = caller_of(request)
        if caller is None:
            raise Trouble(401, _NO_TOKEN, {"WWW-Authenticate": 'Bearer realm="gristmill"'})
        rules: Rules = request.scope["gristmill.rules"]
        if not caller.role.may(role):
            if rules.read_only:
                raise Trouble(403, "this server is read-only: it was started with --read-only")
            raise Trouble(403, f"this needs the role {role.value}; {caller.name!r} has the role {caller.role.value}")
        if request.method not in SAFE and not form and not is_json(request):
            raise Trouble(415, "send this as JSON, with `Content-Type: application/json`")
        return Call(rules.mill, caller.name, caller.role)

    return Security(admit, scopes=[role.value])  # which the OpenAPI document names


_NO_TOKEN = "this needs a token that is good: send it as `Authorization: Bearer …`; to make one: gristmill token create NAME"
Viewer = Annotated[Call, needs(Role.VIEWER)]
Operator = Annotated[Call, needs(Role.OPERATOR)]
Admin = Annotated[Call, needs(Role.ADMIN)]
