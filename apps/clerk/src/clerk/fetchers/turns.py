"""When a request may begin, and until when it may take: all threads of a process share one pace for each host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from clerk.errors import Transient

_MANY_HOSTS = 1_000
_LONGEST_HOLD = 60.0  # a server that asks for more is asked again; how often, the caller decides


class Stopped(Transient):
    """The client was closed: another attempt here would meet the same."""


class Turns:
    """Hands out moments, `1 / rate` seconds apart for each host."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def wait(self, host: str, rate: float, stop: threading.Event) -> float:
        """Sleeps until it is this caller's turn, or until `stop` is set; the seconds that took."""
        now = self._clock()
        with self._lock:
            if len(self._next) > _MANY_HOSTS:
                self._next = {name: at for name, at in self._next.items() if at > now}
            at = max(now, self._next.get(host, now))
            self._next[host] = at + 1 / rate
        if at > now:
            stop.wait(at - now)
        return max(0.0, self._clock() - now)

    def hold(self, host: str, seconds: float) -> None:
        """The host asked for quiet."""
        with self._lock:
            until = self._clock() + min(seconds, _LONGEST_HOLD)
            self._next[host] = max(until, self._next.get(host, until))


OF_PROCESS = Turns()


class Limits(threading.local):
    """Of the request that this thread is making."""

    deadline: float = float("inf")
