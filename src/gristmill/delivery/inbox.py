"""Where a thread puts what it hears, and a worker's loop finds it: a pipe to select on, and what was said."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable

from gristmill.delivery.protocol import Heard


class Inbox:
    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        self._queues: set[int] = set()
        self._jobs: list[int] = []
        self._closed = False

    def fileno(self) -> int:
        return self._read

    def put(self, queues: Iterable[int] = (), jobs: Iterable[int] = ()) -> None:
        with self._lock:
            self._queues.update(queues)
            self._jobs += jobs
            if not self._closed:  # its end of the pipe may be someone else's file by then
                with contextlib.suppress(BlockingIOError):  # full: it is ringing already
                    os.write(self._write, b"!")

    def take(self) -> Heard:
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._read, 65536):
                    pass
            heard = Heard(frozenset(self._queues), tuple(self._jobs))
            self._queues, self._jobs = set(), []
            return heard

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
