"""Children hand the lines that they log to their worker, through a socket: what was sent outlives the child."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

from clerk.scratch import Scratch

_PATIENCE = 0.2  # seconds that a child waits at most for a worker that does not listen
_PAUSE = 5.0  # seconds until it tries again
_LONGEST = 1 << 20  # bytes without a line's end: not one of ours


class Relay:
    """The worker's side: each whole line goes to `pass_on`, from a thread."""

    def __init__(self, pass_on: Callable[[str], None]) -> None:
        self._pass_on = pass_on
        self._folder = Scratch("log")
        self.path = self._folder.path / "s"
        self._stop, self._stopping = socket.socketpair()
        self._door = socket.socket(socket.AF_UNIX)
        try:
            self._door.bind(str(self.path))
            self._door.listen(64)
        except OSError:
            self._end()
            raise
        self._thread = threading.Thread(target=self._listen, daemon=True, name="clerk-log-relay")
        self._thread.start()

    def close(self) -> None:
        """Passes on what has come, and ends."""
        self._stopping.send(b".")
        self._thread.join(2)
        self._end()

    def _end(self) -> None:
        for each in (self._door, self._stop, self._stopping):
            each.close()
        self._folder.close()

    def _listen(self) -> None:
        half: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for each in (self._door, self._stop):
                each.setblocking(False)
                selector.register(each, selectors.EVENT_READ)
            stopping = False
            while True:
                ready = [key.fileobj for key, _ in selector.select(0 if stopping else None)]
                stopping = stopping or self._stop in ready
                came = [each for each in ready if isinstance(each, socket.socket) and each is not self._stop]
                if stopping and not came:
                    break
                for each in came:
                    if each is self._door:
                        with contextlib.suppress(OSError):
                            child, _ = each.accept()
                            child.setblocking(False)
                            selector.register(child, selectors.EVENT_READ)
                            half[child] = b""
                    elif not self._hear(each, half):
                        selector.unregister(each)
                        del half[each]
                        each.close()
        for each in half:
            each.close()

    def _hear(self, child: socket.socket, half: dict[socket.socket, bytes]) -> bool:
        try:
            data = child.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *whole, half[child] = (half[child] + data).split(b"\n")
        for line in whole:
            with contextlib.suppress(Exception):  # a line that nobody can read harms no other
                self._pass_on(line.decode())
        return bool(data) and len(half[child]) < _LONGEST


class ToWorker(logging.Handler):
    """The child's side."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._link: socket.socket | None = None
        self._pid = 0
        self._not_before = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if self._pid != os.getpid():  # a fork: two on one link would mix their lines
            self._hang_up()
            self._pid, self._not_before = os.getpid(), 0.0
        if self._link is None and time.monotonic() < self._not_before:
            return
        try:
            if self._link is None:
                self._link = socket.socket(socket.AF_UNIX)
                self._link.settimeout(_PATIENCE)
                self._link.connect(self._path)
            self._link.sendall(f"{self.format(record)}\n".encode("utf-8", "replace"))
        except OSError:
            self._hang_up()
            self._not_before = time.monotonic() + _PAUSE

    def close(self) -> None:
        self._hang_up()
        super().close()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
