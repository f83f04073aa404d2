"""A web server as municipalities have them, for the demonstration and for tests: on loopback, with validators, so that
somebody who asks again is told that nothing changed. It counts what it was asked."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from clerk.demo import listings
from clerk.errors import Usage
from clerk.names import KINDS

_PLAIN: Final = {"Content-Type": "text/plain; charset=utf-8"}
_IDLE: Final = 30.0  # seconds that a connection may stay open without a request


@dataclass(frozen=True)
class Answer:
    content: bytes
    kind: str
    modified: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:20]}"'


@dataclass(frozen=True)
class Asked:
    path: str
    status: int

    @property
    def is_document(self) -> bool:
        return self.path.endswith(".pdf")


class _Http(ThreadingHTTPServer):
    request_queue_size = 128  # many may come at once

    def server_bind(self) -> None:
        """Without asking a name server what loopback is called: that can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asks may be stopped at any moment: that is no error of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """Serves a folder that `clerk.demo.documents.make` filled. Files that are added later are listed from then on.

    /<site>/                    a table of meetings
    /<site>/archive/            links to a page per year
    /<site>/feed.xml            RSS
    /v1/<site>/events           as Legistar answers
    /<site>/documents/<kind>/<meeting>/<date>.pdf
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        """`port`: this one if nobody has it; 0: any."""
        self.folder = folder
        self._asked: list[Asked] = []
        self._lock = threading.Lock()
        self._http = _bound(port, _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="demo-server", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    # ---- what was asked

    def note(self, path: str, status: int) -> None:
        with self._lock:
            self._asked.append(Asked(path, status))

    def asked(self) -> list[Asked]:
        with self._lock:
            return list(self._asked)

    def counts(self, documents: bool | None = None) -> Counter[int]:
        """Requests by status; only those for documents, or only those for listings, if that is asked."""
        return Counter(one.status for one in self.asked() if documents is None or one.is_document == documents)

    def forget(self) -> None:
        with self._lock:
            self._asked.clear()

    # ---- answers

    def answer(self, target: str) -> Answer | None:
        """None: there is no such page. `Usage`: the question makes no sense."""
        parts = urlsplit(target)
        names = [unquote(name) for name in parts.path.split("/")[1:]]
        sites = self._sites()
        if names == [""]:
            return self._page(listings.start(sites), sites)
        if len(names) == 3 and names[0] == "v1" and names[1] in sites and names[2].lower() == "events":
            text = listings.events(names[1], listings.rows(self.folder, names[1]), self.url, dict(parse_qsl(parts.query)))
            return self._page(text, [names[1]], "application/json; charset=utf-8")
        if names[0] not in sites:
            return None
        if len(names) == 5 and names[1] == "documents":
            return self._document(names[0], *names[2:])
        return self._listing(names[0], names[1:])

    def _listing(self, site: str, names: list[str]) -> Answer | None:
        rows = listings.rows(self.folder, site)
        match names:
            case [""]:
                return self._page(listings.table(site, rows), [site])
            case ["feed.xml"]:
                return self._page(listings.feed(site, rows, self.url), [site], "application/rss+xml; charset=utf-8")
            case ["archive", ""]:
                return self._page(listings.archive(site, rows), [site])
            case ["archive", file]:
                of_year = [row for row in rows if f"{row.day.year}.html" == file]
                return self._page(listings.table(site, of_year), [site]) if of_year else None
        return None

    def _document(self, site: str, kind: str, body: str, file: str) -> Answer | None:
        if (
            kind not in KINDS
            or not file.endswith(".pdf")
            or any("/" in name or name.startswith(".") for name in (body, file))
        ):
            return None
        path = self.folder / site / kind / body / file
        try:
            return Answer(path.read_bytes(), "application/pdf", path.stat().st_mtime)
        except (OSError, ValueError):  # not there; a name that no file can have
            return None

    def _sites(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith("."))

    def _page(self, text: str, sites: list[str], kind: str = "text/html; charset=utf-8") -> Answer:
        times = [p.stat().st_mtime for s in sites for r in listings.rows(self.folder, s) for p in r.files.values()]
        return Answer(text.encode(), kind, max(times, default=0.0))


@contextlib.contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[Server]:
    server = Server(folder, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _bound(port: int, handler: type[BaseHTTPRequestHandler]) -> _Http:
    try:
        return _Http(("127.0.0.1", port), handler)
    except OSError:
        if not port:
            raise
        return _Http(("127.0.0.1", 0), handler)


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _IDLE
        wbufsize = -1  # head and content leave together

        def do_GET(self) -> None:  # the name that http.server calls
            try:
                answer = server.answer(self.path)
            except Usage as error:
                return self._send(HTTPStatus.BAD_REQUEST, f"{error}\n".encode(), _PLAIN)
            if answer is None:
                return self._send(HTTPStatus.NOT_FOUND, b"Not found\n", _PLAIN)
            validators = {"ETag": answer.etag, "Last-Modified": formatdate(answer.modified, usegmt=True)}
            if self._has(answer):
                return self._send(HTTPStatus.NOT_MODIFIED, b"", validators)
            return self._send(HTTPStatus.OK, answer.content, {**validators, "Content-Type": answer.kind})

        do_HEAD = do_GET  # noqa: N815  # _send leaves the content out

        def _has(self, answer: Answer) -> bool:
            """What the asker knows is what there is. An entity tag counts more than a time."""
            if tags := self.headers.get("If-None-Match"):
                return answer.etag in [tag.strip().removeprefix("W/") for tag in tags.split(",")]
            try:
                return int(answer.modified) <= parsedate_to_datetime(self.headers["If-Modified-Since"]).timestamp()
            except (TypeError, ValueError, KeyError):
                return False

        def _send(self, status: HTTPStatus, content: bytes, headers: dict[str, str]) -> None:
            server.note(urlsplit(self.path).path, status.value)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status is not HTTPStatus.NOT_MODIFIED:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what was asked is counted."""

    return Handler
