"""One request for a page: who asks, what was sent, and how it is answered."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gristmill.api.access import COOKIE, Caller, Rules
from gristmill.api.problems import Trouble
from gristmill.errors import Invalid, quoted
from gristmill.mill import Mill
from gristmill.watched import Role
from gristmill.web.site import Site

TOKEN, SAID = "gristmill_form", "gristmill_said"  # names of cookies
ANYBODY = f"anybody-{secrets.token_urlsafe(24)}"  # in forms of a page that is made for all: each gets their own token
BASE = "gristmill.base"  # in the scope of a route of an application: below which address all pages are
_SAID_FOR = 20  # seconds that a message waits to be shown
T = TypeVar("T")
_PAGE = 50  # things of a list
_DIGITS = 18  # of an id: with one more it may be larger than a database can hold
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass
class View:
    site: Site
    request: Request
    form: Mapping[str, list[str]]
    token: str

    @property
    def mill(self) -> Mill:
        return self.site.mill

    @property
    def rules(self) -> Rules:
        rules: Rules = self.request.scope["gristmill.rules"]
        return rules

    @cached_property
    def caller(self) -> Caller | None:
        """Asks the database."""
        return self.rules.caller(self.request)

    def for_all(self) -> View:
        """Somebody of the same role, in whose forms nobody's token is."""
        anybody = replace(self, token=ANYBODY)
        vars(anybody)["caller"] = self.caller  # it was asked
        return anybody

    @property
    def by(self) -> str:
        """Who does it, for the record: from these pages, not by the API."""
        assert self.caller is not None
        return f"{self.caller.name.removesuffix(' (api)')} (web)"

    @property
    def signed_in(self) -> bool:
        return COOKIE in self.request.cookies

    @property
    def read_only(self) -> bool:
        return self.rules.read_only

    def may(self, role: str) -> bool:
        return self.caller is not None and self.caller.role.may(Role(role))

    def admit(self, role: Role) -> None:
        if self.caller is None:
            raise Trouble(401, "this needs a token; to make one: gristmill token create NAME")
        if not self.caller.role.may(role):
            said = "this server is read-only" if self.read_only else f"this needs the role {role.value}"
            raise Trouble(403, f"{said}; nothing was changed")

    def check_form(self) -> None:
        """The form is one of ours: no page of another site knows the cookie's text."""
        ours = self.request.cookies.get(TOKEN, "")
        if not ours or not hmac.compare_digest(self.one("token").encode(), ours.encode()):
            raise Trouble(403, "this form is not from here, or is too old; nothing was changed. Load the page again")
        if any("\0" in value for values in self.form.values() for value in values):
            raise Invalid("the form holds a NUL character; nothing was changed")

    # ---- what was sent

    def one(self, name: str) -> str:
        return self.form.get(name, [""])[-1].strip()

    def ids(self, name: str) -> list[int]:
        """The numbers of what was marked."""
        given = self.form.get(name, [])
        found = [number for text in given if (number := id_of(text)) is not None]
        if len(found) < len(given):
            wrong = next(text for text in given if id_of(text) is None)
            raise Invalid(f"{quoted(wrong)} is no number of something that can be marked; nothing was changed")
        return found

    def arguments(self) -> Any:
        """What a form says that a job or run is given; nothing, if it has no field for that."""
        try:
            return orjson.loads(self.one("args") if "args" in self.form else "{}")
        except orjson.JSONDecodeError as error:
            raise Invalid(f"the arguments are not JSON: {error}") from None

    def changed(self, name: str) -> bool:
        """Whether somebody wrote another text than the form showed, which sends that along."""
        return self.one(name) != self.one(f"was_{name}")

    def asked(self, name: str, default: str = "") -> str:
        return str(self.request.query_params.get(name, default)).strip()

    def after(self) -> int | None:
        """Where a page of a list begins."""
        return id_of(self.asked("after")) or None

    def found(self, parse: Callable[[str], dict[str, Any]], read: Callable[..., list[T]]) -> tuple[list[T], dict[str, Any]]:
        """A page of what somebody searches for, and what its template wants to know of that."""
        asked, found, wrong = self.asked("q"), list[T](), ""
        try:
            found = read(**parse(asked), limit=_PAGE + 1, after=self.after())
        except Invalid as error:
            wrong = str(error)
        return found[:_PAGE], {"q": asked, "wrong": wrong, "more": len(found) > _PAGE}

    # ---- answers

    @property
    def base(self) -> str:
        scope = self.request.scope
        return str(scope.get(BASE, scope.get("root_path", ""))).rstrip("/")

    @property
    def partial(self) -> bool:
        """A page that is there already asks for what is new."""
        return self.request.headers.get("hx-request") == "true"

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        made = self.site.templates.get_template(template)
        values = {"view": self, "base": self.base, "menu": self.site.menu, "said": None, **values}
        if self.partial and "live" in made.blocks:
            context = made.new_context(values)
            return HTMLResponse("".join(made.blocks["live"](context)), status)
        values["said"] = _read(self.request.cookies.get(SAID, ""))
        response = HTMLResponse(made.render(values), status)
        if values["said"] is not None:
            response.delete_cookie(SAID, path=self.base or "/")
        return response

    def back(self, otherwise: str) -> str:
        """The page from which it was asked for, if that said so."""
        return local(self.one("to")) if self.one("to") else otherwise

    def done(self, path: str, said: str) -> Response:
        """It was done: the page that shows it, with a word about it."""
        self.site.recent.forget()
        response = RedirectResponse(f"{self.base}{path}", 303)
        text = base64.urlsafe_b64encode(said[:1500].encode()).decode()
        self.set_cookie(response, SAID, text, max_age=_SAID_FOR)
        return response

    def set_cookie(self, response: Response, name: str, text: str, max_age: int | None = None) -> None:
        secure = self.request.url.scheme == "https"
        path = self.base or "/"
        response.set_cookie(name, text, max_age, path=path, secure=secure, httponly=True, samesite="strict")

    def here(self, **changed: Any) -> str:
        """The address of this page with other parameters; None takes one away."""
        given = {**self.request.query_params, **changed}
        query = urlencode({name: value for name, value in given.items() if value not in (None, "")})
        path = quote(str(self.request.scope["path"]))
        return f"{path}?{query}" if query else path


def id_of(text: str) -> int | None:
    """None: it is no number, or larger than any."""
    digits = text.strip().lstrip("0") or text[-1:]
    return int(digits) if digits.isdecimal() and len(digits) <= _DIGITS else None


def local(path: str) -> str:
    """A page of ours: never an address of another site."""
    good = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if good else "/"


def new_token() -> str:
    return secrets.token_urlsafe(24)


def _read(cookie: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(cookie.encode()).decode() or None
    except ValueError:
        return None


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page of an application, in the frame of the others; only for routes of an `Extra`."""
    view: View = request.scope["gristmill.view"]
    return view.page(template, status, **values)
