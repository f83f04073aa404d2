"""Secrets do not get into logs, errors or reports: what looks like one is masked, and what is known to be one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from clerk.config import Config

MASK: Final = "***"

_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s:/@'\"]*):[^\s/'\"]*@", re.IGNORECASE)
_NAMED = re.compile(
    r"""(?ix) ( (?: password | passwd | secret | token | api[_-]?key | access[_-]?key | signature )
        ['"]? \s? [=:] \s? ['"]? ) [^\s&,;'"}]+"""
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_SECRET_NAME = re.compile(r"(?i)(password|passwd|secret|token|api_?key|access_?key|authorization)$")
_WORDS = ("passw", "secret", "token", "key", "signature", "bearer", "basic")
_SHORTEST = 6  # a shorter word would be masked in the middle of others


def masked(text: str) -> str:
    """Without passwords in URLs, and without what is named password, token, key or secret."""
    if "://" in text:
        text = _IN_URL.sub(rf"\1:{MASK}@", text)
    lower = text.lower()
    if any(word in lower for word in _WORDS):  # most have none, and looking for words is quick
        text = _BEARER.sub(rf"\1 {MASK}", _NAMED.sub(rf"\1{MASK}", text))
    return text


def is_secret(name: str) -> bool:
    """Whether what has this name is nobody's business."""
    return _SECRET_NAME.search(name) is not None


def masker(config: Config, environ: Mapping[str, str]) -> Callable[[str], str]:
    """As `masked`, and without the secrets that this process was given, wherever they stand."""
    known = sorted(_known(config, environ), key=len, reverse=True)
    if not known:
        return masked
    literal = re.compile("|".join(map(re.escape, known)))
    return lambda text: literal.sub(MASK, masked(text))


def _known(config: Config, environ: Mapping[str, str]) -> set[str]:
    found: Iterable[str | None] = [
        config.dashboard_token,
        *(_login(url)[1] for url in (config.database_url, config.redis_url, config.loki_url)),
        _login(config.sentry_dsn)[0],
        *(value for name, value in environ.items() if is_secret(name)),
    ]
    return {each for one in found if one for each in (one, unquote(one)) if len(each) >= _SHORTEST}


def _login(url: str | None) -> tuple[str | None, str | None]:
    try:
        parts = urlsplit(url or "")
        return parts.username, parts.password
    except ValueError:  # no URL, so nothing is known of it
        return None, None
