"""URLs from outside: taken apart in one strict way, joined, and shown without their secrets. Nothing here connects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote, urljoin, urlsplit

from clerk.errors import Unreadable

LONGEST = 4_000  # signed addresses of stores are long
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_V6 = re.compile(r"[0-9a-f:]+(\.\d{1,3}){0,3}")
_UNSEEN = re.compile(r"[\x00-\x20\x7f]")
_SAFE = "/%:@!$&'()*+,;=~-._[]|"

# Also a password with a slash in it, which a parser takes for the path.
_USERINFO = re.compile(r"//(?:[^/?#\s:]*:(?!\d+(?:[/?#]|$))\S*|[^/?#\s]*)@")
_SECRET = re.compile(
    r"([?&;][^=&#\s]*(?:token|key|secret|passw|pwd|auth|sig|credential|session)[^=&#\s]*=)[^&#\s]*", re.IGNORECASE
)


@dataclass(frozen=True)
class Target:
    """Where a request goes. `host` is what is looked up, named in `Host` and checked against the certificate."""

    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse(url: str) -> Target:
    """The one reading of a URL. What could be read in two ways is refused."""
    try:
        return _parsed(url)
    except ValueError as error:
        raise Unreadable(f"{shown(url)} cannot be fetched: {error}") from None


def _parsed(url: str) -> Target:
    if len(url) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    if _UNSEEN.search(url) or "\\" in url:
        raise ValueError("it has blanks, control characters or backslashes in it")
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError("only http:// and https:// are")
    if "@" in parts.netloc:
        raise ValueError("a name or password before the host is not sent; leave it out")
    port = parts.port if parts.port is not None else _PORTS[parts.scheme]
    if not port:
        raise ValueError("there is no port 0")
    path = quote(parts.path or "/", safe=_SAFE) + ("?" + quote(parts.query, safe=_SAFE + "?") if parts.query else "")
    return Target(parts.scheme, _host(parts.hostname or ""), port, path)


def _host(name: str) -> str:
    name = name.removesuffix(".")
    if not name.isascii():
        name = name.encode("idna").decode()  # a UnicodeError is a ValueError
    if ":" in name and _V6.fullmatch(name):
        return name
    if len(name) > 253 or not _HOST.fullmatch(name):
        raise ValueError("its host is no name or address")
    return name


def absolute(base: str, href: str) -> str | None:
    """Where a link leads, as browsers read it, without its fragment; None if that is nowhere on the web."""
    text = re.sub(r"[\t\r\n]", "", href).strip("\x00 ").replace("\\", "/")
    if not text or len(text) > LONGEST:
        return None
    try:
        joined, _, _ = urljoin(base, text).partition("#")
        return parse(_UNSEEN.sub(lambda blank: quote(blank[0]), joined)).url
    except (ValueError, Unreadable):
        return None


def file_name(url: str) -> str:
    """The last part of its path, as people read it."""
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])


def shown(text: str) -> str:
    """A URL, or a text with URLs in it, for people: without passwords and tokens, and not endless."""
    masked = _SECRET.sub(r"\1***", _USERINFO.sub("//***@", text[:4_000]))
    return masked if len(masked) <= 300 else masked[:300] + "…"
