"""Brings many documents at a time, within bounds: as many as there are slots, and never a list of all of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from clerk.errors import Critical, Transient
from clerk.fetchers.turns import Stopped
from clerk.parts import Fetched, Fetcher, Found, Known

Outcome = Fetched | tuple[Found, Exception]
PAUSES = (2.0, 10.0)  # seconds before the second and the third attempt, plus a little by chance


def download_batches(
    fetcher: Fetcher,
    founds: Iterable[Found],
    known: Callable[[Found], Known | None],
    into: Path,
    slots: int,
    pauses: Sequence[float] = PAUSES,
) -> Generator[list[Outcome], None, None]:
    """What came of each, as it comes; what came at the same time, or while the last ones were dealt with, in one list.

    A failure is one document's, except `Critical`, which ends all. `founds` and `known` are only used by the thread that
    iterates. If it stops early, what is on its way is not waited for: close the client, and it ends.
    """
    stop = threading.Event()
    pool = ThreadPoolExecutor(slots, thread_name_prefix="fetch")
    running: set[Future[Outcome]] = set()
    rest = iter(founds)
    failure: Exception | None = None
    try:
        while True:
            while failure is None and len(running) < 2 * slots:  # one ready for each that ends
                try:
                    found = next(rest, None)
                except Exception as error:  # the source broke off: what it listed until then still counts
                    failure = error
                    break
                if found is None:
                    break
                running.add(pool.submit(_attempts, fetcher, found, known(found), into, pauses, stop))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield [future.result() for future in done]
        if failure is not None:
            raise failure
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _attempts(
    fetcher: Fetcher, found: Found, known: Known | None, into: Path, pauses: Sequence[float], stop: threading.Event
) -> Outcome:
    for pause in (*pauses, None):
        try:
            return fetcher.get(found, known, into)
        except Critical:
            raise
        except Stopped as error:
            return found, error
        except Transient as error:
            if pause is None or stop.wait(pause * random.uniform(1, 1.5)):
                return found, error
        except Exception as error:
            return found, error
    raise AssertionError("the last attempt returns")
