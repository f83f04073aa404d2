"""The one HTTP client of the fetchers: what it may connect to, how long, how much and how often is decided here."""

from __future__ import annotations

import codecs
import contextlib
import email.utils
import functools
import json
import re
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clerk import __version__
from clerk.config import Config
from clerk.errors import Transient, Unreadable
from clerk.fetchers import addresses, store, turns, urls
from clerk.parts import Fetched, Found, Known

if TYPE_CHECKING:
    import httpcore

USER_AGENT = f"clerk/{__version__} (fetches public meeting documents)"
MOST_REDIRECTS = 5
LARGEST_PAGE = 20 * 1024 * 1024  # of an index, decoded
_LONGEST_HEADER = 1_000  # of those that are kept
_LONGEST_RETRY_AFTER = 86_400.0
_REDIRECTS = {301, 302, 303, 307, 308}
_LATER = {408, 425, 429}
_PDF = b"%PDF-"
_CHARSETS = re.compile(r"utf-(8|16|32).*|iso8859-\d+|cp\d+|koi8-[ru]|mac-.*|gb.*|big5.*|euc_.*|shift_jis.*")
_META_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    connect: float = 10.0
    read: float = 30.0  # without a byte
    page: float = 120.0  # all of it, redirects included
    document: float = 900.0


@dataclass(frozen=True)
class Page:
    """A page of an index, all of it in memory."""

    url: str  # where it came from in the end
    content_type: str
    charset: str | None
    data: bytes

    @property
    def text(self) -> str:
        """Decoded as browsers do: by its mark, its header, its own words; else UTF-8, else the usual Windows."""
        named = _META_CHARSET.search(self.data[:4_096])
        marked = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
        mark = next((name for start, name in marked.items() if self.data.startswith(start)), None)
        for name in (mark, self.charset, named[1].decode() if named else None):
            codec = _codec(name)
            if codec:
                return self.data.decode(codec, "replace")
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return self.data.decode("cp1252", "replace")

    def json(self) -> Any:
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError):
            raise Unreadable(f"{urls.shown(self.url)} is no JSON") from None


def _codec(name: str | None) -> str | None:
    """Python's name for it, if it is one that web pages have."""
    with contextlib.suppress(LookupError, ValueError):
        found = codecs.lookup(name.strip()).name if name else ""
        if found in {"iso8859-1", "ascii"}:
            return "cp1252"  # what people mean by them
        return found if _CHARSETS.fullmatch(found) else None
    return None


@dataclass(frozen=True)
class _Answer:
    url: str
    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class Client:
    """Safe to use by many threads. Lookups and connections happen on use; `close` ends all of them within a second or so."""

    def __init__(
        self,
        config: Config,
        timeouts: Timeouts | None = None,
        *,
        resolve: Callable[[str, int], list[str]] | None = None,
        permitted: Callable[[str], bool] | None = None,
        tls: ssl.SSLContext | None = None,
        pace: turns.Turns = turns.OF_PROCESS,
    ) -> None:
        self.max_bytes = config.max_document_mb * 1024 * 1024
        self._rate = config.fetch_rate
        self._timeouts = timeouts or Timeouts()
        self._resolve = resolve
        self._permitted = permitted or functools.partial(addresses.permitted, allow_private=config.allow_private)
        self._tls = tls
        self._pace = pace
        self._stop = threading.Event()
        self._making = threading.Lock()
        self._limits = turns.Limits()
        self._pool: httpcore.ConnectionPool | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        with self._making, contextlib.suppress(RuntimeError):  # of requests that are just ending
            if self._pool is not None:
                self._pool.close()

    # ---- what fetchers ask for

    def get(self, found: Found, known: Known | None, into: Path) -> Fetched:
        """A document, as `Fetcher.get` promises it. It comes as it is: no encoding is accepted, so nothing can swell."""
        with self._answer(found.url, _conditions(known), self._timeouts.document) as answer:
            etag, modified = _kept(answer, "etag"), _kept(answer, "last-modified")
            if answer.status == 304:
                if known is None:
                    raise Transient(f"{urls.shown(found.url)} says that it is unchanged, but nothing is known of it")
                return Fetched(found, sha256=known.sha256, etag=known.etag, modified=known.modified, unchanged=True)
            if answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise Unreadable(f"{urls.shown(found.url)} came compressed, though it was asked for as it is")
            self._check_length(found.url, answer, self.max_bytes)
            received = store.receive(answer.chunks, into, self.max_bytes, urls.shown(found.url))
        if known is not None and received.sha256 == known.sha256:
            received.path.unlink()
            return Fetched(found, sha256=known.sha256, etag=etag, modified=modified, unchanged=True)
        return Fetched(found, received.path, received.sha256, etag, modified, _type_of(answer, received.head))

    def page(self, url: str, accept: str = "text/html,application/xhtml+xml,*/*;q=0.5", types: str = "") -> Page:
        """A page of an index; `types`: what its content type must match, if it has one."""
        with self._answer(url, {"Accept": accept}, self._timeouts.page) as answer:
            content_type, _, parameters = answer.headers.get("content-type", "").partition(";")
            content_type = content_type.strip().lower()
            if answer.status == 304 or (types and content_type and not re.search(types, content_type)):
                raise Unreadable(f"{urls.shown(url)} is {content_type or 'nothing new'}, not an index that can be read here")
            self._check_length(url, answer, LARGEST_PAGE)
            data = bytearray()
            for chunk in _decoded(answer):
                data += chunk
                if len(data) > LARGEST_PAGE:
                    raise Unreadable(
                        f"{urls.shown(url)} is larger than {LARGEST_PAGE // 1024**2} MB, too large for an index"
                    )
        charset = re.search(r"charset\s*=\s*[\"']?([\w.:-]+)", parameters, re.IGNORECASE)
        return Page(answer.url, content_type, charset[1] if charset else None, bytes(data))

    # ---- one request, with its redirects

    @contextlib.contextmanager
    def _answer(self, url: str, headers: Mapping[str, str], seconds: float) -> Iterator[_Answer]:
        """The answer that is no redirect and no failure. Every hop is checked as the first one was."""
        seen: list[str] = []
        self._connections()  # what that takes is not the server's time
        deadline = time.monotonic() + seconds
        while True:
            target = urls.parse(url)
            if target.url in seen:
                raise Unreadable(f"{urls.shown(seen[0])} redirects in a circle")
            if len(seen) > MOST_REDIRECTS:
                raise Unreadable(f"{urls.shown(seen[0])} redirects more than {MOST_REDIRECTS} times")
            seen.append(target.url)
            deadline += self._pace.wait(target.host, self._rate, self._stop)
            try:
                with self._one(target, headers, deadline) as answer:
                    if answer.status not in _REDIRECTS:
                        self._check_status(target, answer)
                        yield answer
                        return
                    url = _redirected(target, answer)
            except addresses.NotPermitted as error:  # a redirect's end says nothing of where it began
                raise Unreadable(f"{urls.shown(seen[0])}: {error}") from error

    @contextlib.contextmanager
    def _one(self, target: urls.Target, headers: Mapping[str, str], deadline: float) -> Iterator[_Answer]:
        if self._stop.is_set():
            raise turns.Stopped("fetching was stopped")
        pool = self._connections()
        import httpcore

        sent = {
            "Host": target.authority,
            "User-Agent": USER_AGENT,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            **headers,
        }
        waits = {"connect": self._timeouts.connect, "read": self._timeouts.read, "write": self._timeouts.read}
        self._limits.deadline = deadline
        try:
            with pool.stream(
                "GET",
                httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path),
                headers=[(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
                extensions={"timeout": waits, "sni_hostname": target.host},
            ) as response:
                heard = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
                yield _Answer(target.url, response.status, heard, response.iter_stream())
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise _explained(target, error) from error
        finally:
            self._limits.deadline = float("inf")

    def _connections(self) -> httpcore.ConnectionPool:
        """Made by the first request: until then nothing heavy is imported."""
        with self._making:
            if self._pool is None:
                import httpcore

                from clerk.fetchers import wire

                network = wire.Network(self._permitted, self._resolve or wire.look_up, self._limits, self._stop)
                self._pool = httpcore.ConnectionPool(
                    self._tls or wire.tls(), max_connections=None, max_keepalive_connections=100, network_backend=network
                )
            return self._pool

    def _check_status(self, target: urls.Target, answer: _Answer) -> None:
        if answer.status in {200, 203, 304}:
            return
        text = f"{urls.shown(target.url)} answers {answer.status}"
        if answer.status not in _LATER and answer.status < 500:
            raise Unreadable(text)
        error = Transient(text)
        error.retry_after = _retry_after(answer.headers.get("retry-after", ""))
        if error.retry_after:
            self._pace.hold(target.host, error.retry_after)
        raise error

    def _check_length(self, url: str, answer: _Answer, limit: int) -> None:
        length = answer.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limit:
            raise Unreadable(f"{urls.shown(url)} is larger than {limit // 1024**2} MB")


def _redirected(target: urls.Target, answer: _Answer) -> str:
    where = urls.absolute(target.url, answer.headers.get("location", ""))
    if where is None:
        raise Unreadable(f"{urls.shown(target.url)} redirects to what is no address on the web")
    if target.scheme == "https" and not where.startswith("https:"):
        raise Unreadable(f"{urls.shown(target.url)} redirects from https to http, where nothing is verified")
    return where


def _explained(target: urls.Target, error: Exception) -> Transient | Unreadable:
    shown = urls.shown(target.url)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unreadable(f"{shown} has a certificate that cannot be verified: {cause.verify_message}")
        cause = cause.__cause__ or cause.__context__
    import httpcore

    if isinstance(error, httpcore.TimeoutException):
        return Transient(f"{shown} does not answer in time")
    if isinstance(error, httpcore.LocalProtocolError):
        return Unreadable(f"{shown} cannot be asked for: {urls.shown(str(error))}")
    return Transient(f"{shown} could not be fetched whole: {urls.shown(str(error)) or type(error).__name__}")


def _conditions(known: Known | None) -> dict[str, str]:
    if known is None:
        return {}
    given = {"If-None-Match": known.etag, "If-Modified-Since": known.modified}
    return {name: value for name, value in given.items() if value and value.isprintable() and _is_latin(value)}


def _is_latin(text: str) -> bool:
    return all(ord(character) < 256 for character in text)


def _kept(answer: _Answer, name: str) -> str | None:
    value = answer.headers.get(name)
    return value if value and len(value) <= _LONGEST_HEADER else None


def _retry_after(text: str) -> float | None:
    """Seconds or a date."""
    if text.strip().isdecimal():
        return min(float(text), _LONGEST_RETRY_AFTER)
    with contextlib.suppress(ValueError, TypeError):
        return min(max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time()), _LONGEST_RETRY_AFTER)
    return None


def _type_of(answer: _Answer, head: bytes) -> str:
    """A web page only if the server says so and nothing promised a PDF: what else comes instead of one is judged in ocr."""
    said = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    promised = _PDF in head or urls.file_name(answer.url).lower().endswith(".pdf")
    return "text/html" if said in {"text/html", "application/xhtml+xml"} and not promised else "application/pdf"


def _decoded(answer: _Answer) -> Iterator[bytes]:
    """The chunks of a page. Some servers compress though they were asked not to; one layer is undone, a piece at a time."""
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        yield from answer.chunks
        return
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise Unreadable(f"{urls.shown(answer.url)} came in an encoding that was not asked for: {encoding[:40]}")
    inflating = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for chunk in answer.chunks:
            while chunk and not inflating.eof:
                yield inflating.decompress(chunk, 1 << 20)
                chunk = inflating.unconsumed_tail
    except zlib.error:
        raise Unreadable(f"{urls.shown(answer.url)} says {encoding} but is not") from None
    if not inflating.eof:
        raise Transient(f"{urls.shown(answer.url)} ended before all of it came")
