"""Lines to Loki, from a thread: bounded, so that a Loki that is away costs old lines and nothing else."""

from __future__ import annotations

import base64
import contextlib
import http.client
import logging
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import orjson

Line = tuple[str, int, str]  # level, nanoseconds since 1970, what was said

LIMIT: Final = 10_000  # lines that wait at most; then the oldest go
_BATCH = 1000
_BATCH_BYTES = 1 << 20
_TIMEOUT = 5.0
_LONGEST_PAUSE = 30.0
_AT_EXIT = 2.0
_PUSH = "/loki/api/v1/push"

log = logging.getLogger("clerk.loki")


class Loki(logging.Handler):
    """The thread is made when a process first has something to say: one made before a fork is not there after it. A URL
    that no Loki can have is a ValueError."""

    def __init__(self, url: str, worker: str | None = None, limit: int = LIMIT) -> None:
        super().__init__()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or not url.isprintable():
            raise ValueError(f"{url[:80]!r} is no address of the web")
        self._host = (parts.hostname or "", parts.port)
        self._is_tls = parts.scheme == "https"
        self._path = parts.path if parts.path.endswith("/push") else parts.path.rstrip("/") + _PUSH
        self._headers = {"Content-Type": "application/json"}
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = "Basic " + base64.b64encode(login).decode()
        self._labels = {"app": "clerk", "host": socket.gethostname(), "worker": worker or "none"}
        self._limit = limit
        self._pid = 0
        self._connection: http.client.HTTPConnection | None = None
        self.dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != log.name:
            self.put(int(record.created * 1e6) * 1000, record.levelname, self.format(record))

    def put(self, at: int, level: str, line: str) -> None:
        """Never waits for the network."""
        self.acquire()  # logging makes this lock anew after a fork
        try:
            if self._pid != os.getpid():
                self._begin()
            if len(self._waiting) == self._limit:
                self.dropped += 1
            self._waiting.append((level, at, line))
        finally:
            self.release()
        self._wake.set()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._closing.set()
            self._wake.set()
            self._thread.join(_AT_EXIT)
        super().close()

    def _begin(self) -> None:
        """What waits here belongs to the process that this one was forked from, which will send it."""
        self._waiting: deque[Line] = deque(maxlen=self._limit)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._connection = None
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="clerk-loki")
        with contextlib.suppress(RuntimeError):  # a process that ends gets no new thread
            self._thread.start()
            self._pid = os.getpid()
        if "multiprocessing.util" in sys.modules:  # its children do not end as others do
            from multiprocessing.util import Finalize

            Finalize(self, self.close, exitpriority=0)

    def _send_all(self) -> None:
        pause = 1.0
        batch: list[Line] = []
        while batch or self._waiting or not self._closing.is_set():
            if not batch and not self._waiting:
                self._wake.wait()
                self._wake.clear()
            batch = batch or self._take()
            if not batch or self._send(batch):
                batch, pause = [], 1.0
                continue
            if self._closing.is_set():
                break
            if pause == 1.0:
                log.warning("Loki cannot be reached; up to %d lines wait for it", self._limit)
            self._closing.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        self._hang_up()

    def _take(self) -> list[Line]:
        batch: list[Line] = []
        size = 0
        while self._waiting and len(batch) < _BATCH and size < _BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1][2])
        return batch

    def _send(self, batch: Sequence[Line]) -> bool:
        """Whether they are Loki's now, or nobody's: what it refuses today it refuses tomorrow."""
        reused = self._connection is not None
        try:
            status = self._post(self._body(batch))
        except (OSError, ValueError, http.client.HTTPException):  # ValueError: no name that can be looked up
            self._hang_up()
            return reused and self._send(batch)  # the other side may have closed what was not used for a while
        if status == 429 or status >= 500:
            return False
        if status >= 300:
            self.dropped += len(batch)
            log.warning("Loki refused %d lines with status %d", len(batch), status)
        return True

    def _post(self, body: bytes) -> int:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
            self._connection = kind(*self._host, timeout=_TIMEOUT)
        self._connection.request("POST", self._path, body, self._headers)
        response = self._connection.getresponse()
        response.read()
        return response.status

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _body(self, batch: Sequence[Line]) -> bytes:
        streams: list[dict[str, Any]] = [
            {"stream": {**self._labels, "level": level.lower()}, "values": [[str(at), line] for _, at, line in lines]}
            for level, lines in groupby(sorted(batch, key=itemgetter(0)), key=itemgetter(0))
        ]
        return orjson.dumps({"streams": streams})
