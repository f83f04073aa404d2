"""Brings many documents at a time, within bounds: as many as there are slots, and never a list of all of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from clerk.errors import Critical, Transient
from clerk.fetchers.turns import Stopped
from clerk.parts import Fetched, Fetcher, Found, Known

Outcome = Fetched | tuple[Found, Exception]
PAUSES = (2.0, 10.0)  # seconds before the second and the third attempt, plus a little by chance


@dataclass(frozen=True)
class _Listed:
    """The source has said all that it will; unless it broke off."""

    failure: BaseException | None = None


_Event = Found | _Listed | Future[Outcome]


def download_batches(
    fetcher: Fetcher,
    founds: Iterable[Found],
    known: Callable[[Found], Known | None],
    into: Path,
    slots: int,
    pauses: Sequence[float] = PAUSES,
) -> Generator[list[Outcome], None, None]:
    """What came of each, as it comes; what came at the same time, or while the last ones were dealt with, in one list.

    A failure is one document's, except `Critical`, which ends all. `founds` is used by a thread of its own: what has come
    must not wait for a source that takes its time to list the next. `known` is only used by the thread that iterates. If it
    stops early, what is on its way is not waited for: close the client, and it ends.
    """
    stop = threading.Event()
    room = threading.Semaphore(2 * slots - 1)  # one ready for each that ends
    events: SimpleQueue[_Event] = SimpleQueue()
    pool = ThreadPoolExecutor(slots, thread_name_prefix="fetch")
    running, listed = 0, None
    threading.Thread(target=_list, args=(founds, room, stop, events), name="fetch-list", daemon=True).start()
    try:
        while listed is None or running:
            batch: list[Outcome] = []
            for event in _waiting(events):
                if isinstance(event, Found):
                    future = pool.submit(_attempts, fetcher, event, known(event), into, pauses, stop)
                    future.add_done_callback(events.put)
                    running += 1
                elif isinstance(event, _Listed):
                    listed = event
                else:
                    batch.append(event.result())
                    running -= 1
                    room.release()
            if batch:
                yield batch
        if listed.failure is not None:
            raise listed.failure
    finally:
        stop.set()
        room.release()
        pool.shutdown(wait=False, cancel_futures=True)


def _list(founds: Iterable[Found], room: threading.Semaphore, stop: threading.Event, events: SimpleQueue[_Event]) -> None:
    try:
        for found in founds:
            events.put(found)
            room.acquire()
            if stop.is_set():
                return
    except BaseException as error:  # the source broke off: what it listed until then still counts
        events.put(_Listed(error))
    else:
        events.put(_Listed())


def _waiting(events: SimpleQueue[_Event]) -> Iterator[_Event]:
    """At least one; then all that there are."""
    try:
        yield events.get()
        while True:
            yield events.get_nowait()
    except Empty:
        return


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
