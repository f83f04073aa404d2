"""Secrets do not get into logs, errors or reports: what looks like one is masked, and what is known to be one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from dotenv import dotenv_values

from clerk.config import Config, dotenv_file

MASK: Final = "***"

# A password may have any letter in it, also those that should be %40 and %2F there: it ends at the last @.
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s:/'\"]*):((?:(?!://)[^\s'\"])*)@", re.IGNORECASE)
_PORT = re.compile(r"\d{1,5}[/?#]")
_WHOLE_URL = re.compile(r"[^:/]+://[^:/]*:(.*)@", re.DOTALL)
# Who takes such a password for something else says so with a piece of it.
_AS_HOST = re.compile(r"(\bhost(?: name)? ['\"])[^\s'\"]*@", re.IGNORECASE)
_AS_PORT = re.compile(r"(\bPort could not be cast to integer value as )'[^']*'")
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
        text = _AS_HOST.sub(rf"\1{MASK}@", _IN_URL.sub(_without_password, text))
        text = _AS_PORT.sub(rf"\1{MASK}", text)
    lower = text.lower()
    if any(word in lower for word in _WORDS):  # most have none, and looking for words is quick
        text = _BEARER.sub(rf"\1 {MASK}", _NAMED.sub(rf"\1{MASK}", text))
    return text


def _without_password(url: re.Match[str]) -> str:
    is_port = url[1].lower().startswith("http") and _PORT.match(url[2])  # on the web an @ may also be part of a path
    return url[0] if is_port else f"{url[1]}:{MASK}@"


def is_secret(name: str) -> bool:
    """Whether what has this name is nobody's business."""
    return _SECRET_NAME.search(name) is not None


def masker(config: Config, environ: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """As `masked`, and without the secrets that this process was given, by its environment or by `.env`, wherever they
    stand. `environ`: only those of this one."""
    known = sorted(_known(config, _given() if environ is None else environ), key=len, reverse=True)
    if not known:
        return masked
    literal = re.compile("|".join(map(re.escape, known)))
    return lambda text: literal.sub(MASK, masked(text))


def _given() -> dict[str, str]:
    """Also what only `.env` says: a token in it is a secret like another."""
    given: dict[str, str] = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        path = dotenv_file(Path.cwd())
        given = {name: value for name, value in dotenv_values(path).items() if value} if path else {}
    return {**given, **os.environ}


def _known(config: Config, environ: Mapping[str, str]) -> set[str]:
    found: Iterable[str | None] = [
        config.dashboard_token,
        *(each for url in (config.database_url, config.redis_url, config.loki_url) for each in _passwords(url or "")),
        _parts(config.sentry_dsn or "").username,
        *(value for name, value in environ.items() if is_secret(name)),
    ]
    return {each for one in found if one for each in (one, unquote(one)) if len(each) >= _SHORTEST}


def _passwords(url: str) -> Iterator[str | None]:
    """As the standard reads it, and up to the last @: that is one which nobody has quoted."""
    yield _parts(url).password
    if whole := _WHOLE_URL.match(url):
        yield whole[1]


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # no URL, so nothing is known of it
        return urlsplit("")
