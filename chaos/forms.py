"""Odd forms to a real server: every page, with fields, numbers, cookies and roles that nobody should send."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote_plus

import httpx

from chaos import oracle
from chaos.play import Play, Violation
from chaos.requests import ROLES, THERE, oddly_quoted, shown, tokens_of
from gristmill.api.access import COOKIE
from gristmill.web.pages import ALL
from gristmill.web.routing import Page
from gristmill.web.view import TOKEN
from tests.api.server import serving

_PAGES = [page for part in ALL for page in part.pages if page.path not in ("/login", "/logout")]
_GOOD = {  # what some fields may well be, so that what is odd is one of several
    "action": ("retry", "cancel", "archive", "delete", "start"),
    "all": ("1", ""),
    "at": ("0", "1700000000", "9999999999999999", ""),
    "args": ("{}", '{"seed": 1}', "[" * 3000, '{"a":' * 300 + "1" + "}" * 300),
    "confirm": ("1", "0", "987654321"),
    "marked": ("1", "2"),
    "q": ("state:failed", "is:stuck", "colour:red", "since:1d", "since:9999999d", "stale:9999999d", ""),
    "pipeline": ("flow",),
    "subject": ("subject 1",),
    "name": ("host", "default"),
    "priority": ("high", "low"),
    "interval": ("1d", "9999999d", ""),
    "weight": ("2", ""),
    "at_once": ("3", ""),
    "to": ("/", "//evil.example", "/runs"),
}
_PLACES = {
    "number:id": ("1", "2", "7"),
    "name:path": ("nightly", "a/b"),
    "name": ("default", "mail"),
    "fingerprint": ("0" * 12,),
}


def send(play: Play, count: int) -> Counter[int]:
    """Says which statuses there were. None is a 5xx, each refusal says so in a page, and changed nothing."""
    tokens, statuses, wrong = tokens_of(play, "forms"), Counter[int](), list[str]()
    with serving(play.url, app="chaos.odd") as server, server.client() as client:
        for _ in range(count):
            role, page = play.dice.choices(ROLES, (1, 1, 2, 6))[0], play.dice.choice(_PAGES)
            request = _request(play.dice, client, page, tokens.get(role, "gm_wrong"))
            before = oracle.rows(play.mill, THERE)
            answer = client.send(request)
            statuses[answer.status_code] += 1
            wrong += _unclear(answer)
            refused = answer.status_code >= 400 or page.method == "GET"
            if refused and oracle.rows(play.mill, THERE) != before:
                wrong.append(f"{shown(answer)}: refused, and there is more than before")
        wrong += [line for line in server.log if "Traceback" in line or "bug" in line]
    for role in tokens:
        play.mill.revoke_token(f"chaos-forms-{role}")
    if wrong:
        raise Violation(f"{len(wrong)} forms: " + "\n  ".join(wrong[:5]))
    return statuses


def _request(dice: random.Random, client: httpx.Client, page: Page, token: str) -> httpx.Request:
    address = page.path
    for name, good in _PLACES.items():
        address = address.replace("{" + name + "}", dice.choice(good) if dice.random() < 0.7 else oddly_quoted(dice))
    headers = {"Cookie": f"{COOKIE}={token}; {TOKEN}=known"}
    if dice.random() < 0.1:
        headers[dice.choice(("Origin", "Host", "Sec-Fetch-Site", "HX-Request", "Referer"))] = "evil.example"
    if page.method == "GET":
        asked = dice.sample(("q", "after", "span", "every", "to"), dice.choice((0, 1, 2)))
        return client.build_request("GET", f"{address}?{_fields(dice, asked)}", headers=headers)
    kind = "application/x-www-form-urlencoded" if dice.random() < 0.95 else "application/json"
    return client.build_request("POST", address, content=_form(dice, page), headers={**headers, "Content-Type": kind})


def _form(dice: random.Random, page: Page) -> bytes:
    if dice.random() < 0.08:
        return dice.choice(
            (b"", b"\xff\xfe", b"{", b"token=known" + b"&a=" * 3000, b"token=known&q=" + b"x" * (3 << 20), b"&" * 99)
        )
    said = "token=known" if dice.random() < 0.95 else "token=wrong"
    said += "&" + _fields(dice, [name for name in sorted(page.fields - {"token"}) if dice.random() < 0.8])
    return (said + (f"&surprise={oddly_quoted(dice)}" if dice.random() < 0.1 else "")).encode()


def _fields(dice: random.Random, names: list[str]) -> str:
    return "&".join(f"{name}={_value(dice, name)}" for name in names)


def _value(dice: random.Random, name: str) -> str:
    return quote_plus(dice.choice(_GOOD[name])) if name in _GOOD and dice.random() < 0.6 else oddly_quoted(dice)


def _unclear(answer: httpx.Response) -> Iterator[str]:
    if answer.status_code >= 500:
        yield f"{shown(answer)}: {answer.text[-300:]}"
    elif answer.status_code >= 400:
        kind = answer.headers.get("content-type", "")
        said = answer.json().get("detail", "") if kind == "application/problem+json" else answer.text
        if not said or "Traceback" in said or len(said) > 20_000:
            yield f"{shown(answer)}: not a clear page: {answer.text[:300]!r}"
    elif answer.headers.get("location", "/").startswith(("//", "http")):
        yield f"{shown(answer)}: leads away to {answer.headers['location']!r}"
