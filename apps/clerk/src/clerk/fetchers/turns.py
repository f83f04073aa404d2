"""When a request may begin, and until when it may take: all who fetch share one pace for each host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from clerk.errors import Transient

_MANY_HOSTS = 1_000
_LONGEST_HOLD = 60.0  # a server that asks for more is asked again; how often, the caller decides
_FARTHEST = 3_600.0  # a turn that is later than that was given by a clock that has been set back since


class Stopped(Transient):
    """The client was closed: another attempt here would meet the same."""


class Turns:
    """Hands out moments, `1 / rate` seconds apart for each host: to all threads of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def wait(self, host: str, rate: float, stop: threading.Event) -> float:
        """Sleeps until it is this caller's turn, or until `stop` is set; the seconds that took."""
        now = self._clock()
        at = self.turn(host, rate)
        if at > now:
            stop.wait(at - now)
        return max(0.0, self._clock() - now)

    def turn(self, host: str, rate: float) -> float:
        """The next moment that nobody else has."""
        now = self._clock()
        with self._line(host) as line:
            at = max(now, line.next)
            line.next = at + 1 / rate
        return at

    def hold(self, host: str, seconds: float) -> None:
        """The host asked for quiet."""
        until = self._clock() + min(seconds, _LONGEST_HOLD)
        with self._line(host) as line:
            line.next = max(until, line.next)

    @contextlib.contextmanager
    def _line(self, host: str) -> Iterator[_Line]:
        with self._lock:
            if len(self._next) > _MANY_HOSTS:
                now = self._clock()
                self._next = {name: at for name, at in self._next.items() if at > now}
            line = _Line(self._next.get(host, 0.0))
            yield line
            self._next[host] = line.next


class _Line:
    def __init__(self, at: float) -> None:
        self.next = at  # when the next one may ask


class SharedTurns(Turns):
    """The same for all processes and machines that share a folder: a file for each host has the next moment."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._folder = folder

    @contextlib.contextmanager
    def _line(self, host: str) -> Iterator[_Line]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._folder / host, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:  # who writes documents there will say so; until then this process keeps its own pace
            with super()._line(host) as line:
                yield line
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            line = _Line(self._read(file))
            yield line
            with contextlib.suppress(OSError):  # a full disk is not the host's fault, nor this request's
                os.pwrite(file, f"{line.next:020.6f}".encode(), 0)
        finally:
            os.close(file)

    def _read(self, file: int) -> float:
        with contextlib.suppress(ValueError):
            at = float(os.pread(file, 40, 0))
            return at if at < self._clock() + _FARTHEST else 0.0
        return 0.0


OF_PROCESS = Turns()


class Limits(threading.local):
    """Of the request that this thread is making."""

    deadline: float = float("inf")
