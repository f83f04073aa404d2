"""A worker that starts while its database is away waits for it, as it does when that goes away later: it never exits."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from clerk import logs
from clerk.errors import OutOfReach
from gristmill.errors import Unavailable

T = TypeVar("T")
_AGAIN: Final = (0.1, 0.5, 2.0, 5.0)  # seconds until it is tried again, or half as many more or less: not all come at once


def patiently(do: Callable[[], T]) -> T:
    """Until it can be done. That it has to wait is said once; what waiting does not mend is raised."""
    failures = 0
    with _ended_by_sigterm():
        while True:
            try:
                return do()
            except (OutOfReach, Unavailable) as error:
                if not failures:
                    logs.log.warning("%s; trying again", error)
                time.sleep(_AGAIN[min(failures, len(_AGAIN) - 1)] * (0.5 + random.random()))
                failures += 1


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """There is no item yet to finish. In a container, a first process that does not listen for this would go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
