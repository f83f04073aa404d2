"""Servers on loopback that take what clerk sends, and keep it for the test to look at."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def eventually(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Waits until it is true, and says what it is then."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)
    return found


@dataclass
class Taken:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class StandIn:
    port: int = 0
    taken: list[Taken] = field(default_factory=list)
    status: int = 204
    refused: int = 0
    hangs_up: bool = False  # after each answer, without a word
    open: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def stand_in(port: int = 0) -> Iterator[StandIn]:
    """Answers once its `open` is set, as it is at first."""
    here = StandIn()
    here.open.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            here.open.wait()
            status = here.status
            if status < 300:
                here.taken.append(Taken(self.path, dict(self.headers), body))
            else:
                here.refused += 1
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.close_connection = here.hangs_up

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        here.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield here
        finally:
            here.open.set()
            server.shutdown()
            thread.join()
