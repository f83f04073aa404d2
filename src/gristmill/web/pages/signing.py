"""Signing in with a token, and out again."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from gristmill.api.access import COOKIE
from gristmill.web.routing import Pages
from gristmill.web.view import View, local

pages = Pages()


@pages.open_get("/login")
def login(view: View) -> Response:
    if view.caller is not None:
        return RedirectResponse(f"{view.base}{local(view.asked('to'))}", 303)
    return view.page("login.html", title="Sign in", to=local(view.asked("to")), wrong="")


@pages.open_post("/login", "to text")
def sign_in(view: View) -> Response:
    to, text = local(view.one("to")), view.one("text")
    if view.rules.of_token(text) is None:
        wrong = "This token is not known, or not good any more."
        return view.page("login.html", 403, title="Sign in", to=to, wrong=wrong)
    response = RedirectResponse(f"{view.base}{to}", 303)
    view.set_cookie(response, COOKIE, text)
    return response


@pages.open_post("/logout")
def sign_out(view: View) -> Response:
    response = RedirectResponse(f"{view.base}/login", 303)
    response.delete_cookie(COOKIE, path=view.base or "/")
    return response
