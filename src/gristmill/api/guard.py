"""What every request must pass before any route sees it: whose site it comes from, how large it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gristmill.api import problems
from gristmill.api.access import LOOPBACK, SAFE, Rules, is_json
from gristmill.api.problems import Trouble

LIMIT = 2 * 1024 * 1024  # bytes of a body: the largest payload that the ledger takes, and room for how it is written
_READ_ON = 16 * LIMIT  # bytes of a body that is too large: who is still sending does not listen to the answer
_SENT_WITHIN = 60  # seconds that a body may take
DEEPEST = 200  # levels of JSON: what is stored can have 254


class Guard:
    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        try:
            receive = await self._checked(scope, receive)
        except Trouble as trouble:
            if scope["type"] == "websocket":
                return await send({"type": "websocket.close", "code": 1008, "reason": trouble.detail[:100]})
            return await _said(trouble)(scope, receive, send)
        except Exception as error:
            if scope["type"] == "websocket":
                raise
            return await problems.of(error, scope)(scope, receive, send)
        return await self.app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        request = Request(scope) if scope["type"] == "http" else Request({**scope, "type": "http", "method": "GET"})
        if "\0" in scope["path"] or b"%00" in scope["query_string"] or b"\0" in scope["query_string"]:
            raise Trouble(400, "the address holds a NUL character")
        await self._refuse_strangers(request)
        scope["gristmill.rules"] = self.rules
        if scope["type"] == "http" and request.method not in SAFE:
            return await _body(request, receive)
        return receive

    async def _refuse_strangers(self, request: Request) -> None:
        """Where there are tokens any name will do, so who is a stranger to an open server may be none."""
        rules = self.rules
        try:
            refuse_strangers(request, rules.hosts, rules.open)
        except Trouble:
            if not rules.open or not await run_in_threadpool(rules.mill.tokens, every=True):
                raise
            rules.open = False
            refuse_strangers(request, rules.hosts, rules.open)


def _said(trouble: Trouble) -> Response:
    return problems.response(trouble.status, trouble.detail, trouble.headers, **trouble.more)


# ---- other sites


def refuse_strangers(request: Request, hosts: Sequence[str], open_to_all: bool) -> None:
    """A page of another site, in the browser of somebody who may be here, must not act here, nor (by a name of its own
    for this machine) look."""
    host = request.headers.get("host", "")
    name = _name(host)
    if open_to_all and name not in hosts:
        said = f"this server is not called {host!r}; it has no tokens, so it answers only to {', '.join(hosts)}"
        raise Trouble(403, said)
    origin = request.headers.get("origin")
    changes = request.method not in SAFE
    if origin is not None and (changes or open_to_all) and not _same(origin, host, hosts):
        raise Trouble(403, f"a page of {origin!r} may not do this: it is another site than {host!r}")
    if changes and request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Trouble(403, "a page of another site may not do this")


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _same(origin: str, host: str, hosts: Sequence[str]) -> bool:
    """Whether a page's origin is this server. Before a proxy that ends TLS the scheme may be another."""
    try:
        parts = urlsplit(origin)
        default = {"http": 80, "https": 443}.get(parts.scheme)
        if default is None:
            return False
        here = urlsplit(f"//{host}")
        named = (parts.hostname, parts.port or default) == (here.hostname, here.port or default)
        return named or (parts.hostname in hosts and parts.hostname not in LOOPBACK)
    except ValueError:
        return False


# ---- bodies


async def _body(request: Request, receive: Receive) -> Receive:
    """Reads the body, which is small and, if it says so, JSON; gives back what hands it on."""
    try:
        async with asyncio.timeout(_SENT_WITHIN):
            body = await _whole(receive)
    except TimeoutError:
        raise Trouble(408, f"the body did not come within {_SENT_WITHIN} seconds", {"Connection": "close"}) from None
    if is_json(request) and body:
        await run_in_threadpool(check_json, body)
    return _replay(body, receive)


async def _whole(receive: Receive) -> bytes:
    parts, size = list[bytes](), 0
    async for part in _parts(receive):
        size += len(part)
        if size <= LIMIT:
            parts.append(part)
        elif size > LIMIT + _READ_ON:
            break
    if size > LIMIT:
        raise Trouble(413, f"the body has more than {LIMIT:,} bytes, which is the limit", {"Connection": "close"})
    return b"".join(parts)


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    while (message := await receive())["type"] == "http.request":
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def check_json(body: bytes) -> None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Trouble(400, f"the body is not JSON: {error}") from None
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise Trouble(400, f"the body is nested more than {DEEPEST} levels deep")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
