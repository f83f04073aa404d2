"""Odd requests to a real server: every route, with bodies, queries, headers and tokens that nobody should send."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import orjson

from chaos import odd, oracle
from chaos.play import Play, Violation
from tests.api.routes import Route, body_of, routes
from tests.api.server import serving

THERE = (  # that a request could have made; workers add items meanwhile
    "SELECT (SELECT count(*) FROM gm_job WHERE run_id IS NULL), (SELECT count(*) FROM gm_run),"
    " (SELECT count(*) FROM gm_audit WHERE who LIKE 'chaos-%%')"
)
_WORDS = ("0", "1", "2", "-1", "%00", "%ff", "take", "queued", "default", "2027-01-01T00:00:00Z", "x" * 600)
ROLES = ("nobody", "viewer", "operator", "admin")


def send(play: Play, count: int) -> Counter[int]:
    """Says which statuses there were. None is a 5xx, each refusal is a problem in one line, and changed nothing."""
    tokens = tokens_of(play, "requests")
    statuses, wrong = Counter[int](), list[str]()
    with serving(play.url, app="chaos.odd", fresh=True) as server, server.client() as client:
        document = client.get("/openapi.json").json()
        known = [route for route in routes(document) if not route.streams]
        for _ in range(count):
            role, route = play.dice.choices(ROLES, (1, 1, 2, 6))[0], play.dice.choice(known)
            headers = {"Authorization": f"Bearer {tokens[role]}"} if role in tokens else {}
            request = _request(play.dice, client, route, document, headers)
            before = oracle.rows(play.mill, THERE)
            answer = client.send(request)
            statuses[answer.status_code] += 1
            wrong += _unclear(answer)
            if answer.status_code >= 400 and oracle.rows(play.mill, THERE) != before:
                wrong.append(f"{shown(answer)}: refused, and there is more than before")
        wrong += [line for line in server.log if "Traceback" in line or "bug" in line]
    for role in tokens:
        play.mill.revoke_token(f"chaos-requests-{role}")
    if wrong:
        raise Violation(f"{len(wrong)} requests: " + "\n  ".join(wrong[:5]))
    return statuses


def tokens_of(play: Play, whose: str) -> dict[str, str]:
    return {role: play.mill.create_token(f"chaos-{whose}-{role}", role).text for role in ROLES[1:]}


def _request(
    dice: random.Random, client: httpx.Client, route: Route, document: dict[str, Any], headers: dict[str, str]
) -> httpx.Request:
    address = route.address
    if dice.random() < 0.3 and "{" in route.path:
        begin, _, rest = route.path.partition("{")
        address = begin + oddly_quoted(dice) + rest.partition("}")[2].replace("{stage}", "work")
    if route.queries and dice.random() < 0.6:
        named = dice.sample(route.queries, min(len(route.queries), dice.choice((1, 2))))
        address += "?" + "&".join(f"{name}={oddly_quoted(dice)}" for name in named)
    if dice.random() < 0.05:
        address += f"{'&' if '?' in address else '?'}surprise={oddly_quoted(dice)}"
    if dice.random() < 0.1:
        headers = {**headers, dice.choice(("Origin", "Host", "Sec-Fetch-Site", "Content-Type")): "evil.example"}
    content = _content(dice, route, document) if route.acts else None
    return client.build_request(
        route.method, address, content=content, headers={"Content-Type": "application/json", **headers}
    )


def oddly_quoted(dice: random.Random) -> str:
    if dice.random() < 0.4:
        return dice.choice(_WORDS)
    try:
        text = str(odd.draw(dice, 0))
    except (RecursionError, ValueError):  # too deep, too many digits
        text = "9" * 5000
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "replace")[:500]) or "x"


def _content(dice: random.Random, route: Route, document: dict[str, Any]) -> bytes:
    if dice.random() < 0.004:
        return b" " * (64 << 20)
    if dice.random() < 0.15:
        return dice.choice((b"", b"[" * 5000, b"{", b"null", b"\xff", b'{"a":' * 400, b" " * (3 << 20), b'"\\ud800"'))
    body = body_of(route, document, full=dice.random() < 0.5)
    for name in dice.sample(list(body), min(len(body), dice.choice((0, 1, 1, 2)))):
        body[name] = odd.draw(dice, 0)
    if dice.random() < 0.1:
        body["surprise"] = odd.draw(dice, 0)
    body.pop("replace", None)
    try:
        return orjson.dumps(body, default=str, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError):  # what JSON cannot say
        return b'{"odd": 1e400}'


def _unclear(answer: httpx.Response) -> Iterator[str]:
    if answer.status_code >= 500:
        yield f"{shown(answer)}: {answer.text[:300]}"
    elif answer.status_code >= 400:
        kind = answer.headers.get("content-type")
        said = answer.json().get("detail", "") if kind == "application/problem+json" else ""
        if not said or len(said) > 2000:
            yield f"{shown(answer)}: not a clear problem: {answer.text[:300]!r}"


def shown(answer: httpx.Response) -> str:
    return f"{answer.request.method} {str(answer.request.url)[:200]} {answer.request.content[:200]!r}: {answer.status_code}"
