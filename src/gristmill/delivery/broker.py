"""What RQ and Arq have in common: ready jobs are published in Redis by their numbers, and offered to workers one by one.

The ledger stays the only truth. A message that is doubled or stale finds nothing to claim; one that got lost is published
again, by the relay, which also publishes what was committed by somebody who died before they could tell Redis.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gristmill.delivery.inbox import Inbox
from gristmill.delivery.protocol import ALL, ANYWHERE, Bell, Doorbell, Heard, Seat
from gristmill.delivery.redis import RedisDelivery, RedisServer
from gristmill.errors import DatabaseError
from gristmill.ledger import outbox
from gristmill.ledger.outbox import Due, Mark
from gristmill.ledger.store import Ledger
from gristmill.ledger.tx import DELAYED, Tx

log = logging.getLogger("gristmill.delivery")

_KEY = "gristmill:outbox"  # a hash: since when this Redis has its data, and how many batches it took since then
_BATCH = 500
_BACKOFF = (0.2, 0.5, 1.0, 2.0)
_GOODBYE = 3.0  # seconds for the broker to take note that a worker is gone
_KNOWN_FOR = 1.0  # seconds that the names of queues are believed


class Broker(Protocol):
    """What RQ and Arq differ in."""

    name: str

    def name_of(self, due: Due) -> str:
        """What a job is called there. It is made of job and attempt, so publishing twice gives the same."""
        ...

    def add(self, pipeline: Any, queue: str, due: Sequence[Due]) -> None:
        """Adds messages for jobs of one queue, which only carry their numbers."""
        ...

    def feed(self, bell: BrokerBell) -> None:
        """Runs its own worker until the bell is closed, or Redis is lost. In a thread."""
        ...


class BrokerDelivery:
    def __init__(self, ledger: Ledger, server: RedisServer, broker: Broker) -> None:
        self.name = broker.name
        self.url: str | None = server.url
        self.ledger = ledger
        self.server = server
        self.broker = broker
        self.doorbell = RedisDelivery(server)  # for what is no job: that one is delayed, and till when
        self.relayed = 0  # relays in this process: they publish, and nobody else waits for Redis
        self.nudged = threading.Event()
        self._nudges: set[int] = set()
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._limited: frozenset[int] = frozenset()  # queues whose jobs are not published
        self._names_until = 0.0
        self._floors: dict[int, int] = {}  # queue: the highest place in its line that was seen

    # ---- telling of jobs

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None:
        """Only what is committed is published."""

    def notice(self, queue: int) -> None:
        """A broker is told after the commit."""

    def ahead(self, queue: int) -> bool:
        return False

    def after_commit(self, queues: Iterable[int]) -> None:
        queues = set(queues)
        wanted = [queue for queue in queues if queue > ALL]
        with contextlib.suppress(DatabaseError):
            self.queue_names()
        if rung := queues & {DELAYED, *self._limited}:
            self.doorbell.after_commit(rung)
        if self.relayed:
            with self._lock:
                self._nudges.update(wanted)
            self.nudged.set()
        elif wanted and not self.server.rests:
            with contextlib.suppress(DatabaseError):  # it is committed, and the relay comes by
                self.publish(wanted)

    def nudges(self) -> set[int]:
        """The queues that got jobs since this was last asked."""
        self.nudged.clear()
        with self._lock:
            found, self._nudges = self._nudges, set()
        return found

    def publish(self, queues: Iterable[int] | None = None) -> bool:
        """Publishes what is ready in these queues and came lately; None: whatever is ready anywhere. False: no Redis."""
        try:
            for queue in self.queue_names() if queues is None else queues:
                floor = None if queues is None else self._floors.get(queue)
                while self._publish_some(queue, floor) >= _BATCH:
                    pass
            self.server.answered()
            return True
        except self.server.errors as error:
            self.server.failed(error)
            return False

    def _publish_some(self, queue: int, floor: int | None) -> int:
        name = self.queue_names().get(queue) or self.queue_names(anew=True).get(queue)
        with self.ledger.reading() as tx:
            mark = self._mark()  # after the snapshot was taken: all that it shows as published was taken by then
            if name is None:
                return 0
            if floor is None:
                due = outbox.unpublished(tx, queue, mark, _BATCH)
            else:
                due = outbox.newly_ready(tx, queue, mark, floor, _BATCH)
        if due:
            mark = self._send(name, due)
            self.ledger.do(outbox.record, [(one.job, one.attempt, self.broker.name_of(one)) for one in due], mark)
            self._floors[queue] = max(self._floors.get(queue, 0), *(one.ready for one in due))
        return len(due)

    def _mark(self) -> Mark:
        with self.server.client.pipeline(transaction=False) as pipeline:
            pipeline.hmget(_KEY, "era", "number")
            pipeline.info("server")
            (era, number), server = pipeline.execute()
        return _mark_of(era, number, server)

    def _send(self, queue: str, due: Sequence[Due]) -> Mark:
        with self.server.client.pipeline(transaction=True) as pipeline:
            self.broker.add(pipeline, queue, due)
            pipeline.hsetnx(_KEY, "era", time.time_ns() // 1000)
            pipeline.hincrby(_KEY, "number", 1)
            pipeline.hget(_KEY, "era")
            pipeline.info("server")
            *_, number, era, server = pipeline.execute()
        return _mark_of(era, number, server)

    def queue_names(self, anew: bool = False) -> Mapping[int, str]:
        """All queues by number; new ones are seen within seconds."""
        if anew or time.monotonic() >= self._names_until:
            with self.ledger.reading() as tx:
                queues = outbox.queues(tx)
            self._names = {queue: name for queue, (name, _) in queues.items()}
            self._limited = frozenset(queue for queue, (_, limited) in queues.items() if limited)
            self._names_until = time.monotonic() + _KNOWN_FOR
        return self._names

    def bell(self, seat: Seat = ANYWHERE) -> Bell:
        return BrokerBell(self, seat) if seat.by_name else _Silence()

    def close(self) -> None:
        self.server.close()


def _mark_of(era: bytes | None, number: bytes | int | None, server: Mapping[str, Any]) -> Mark:
    """One that was started again may have lost what it took last: it counts as another."""
    return Mark(int(era or 0) ^ int(server["run_id"][:12], 16), int(number or 0))


class _Silence(Doorbell):
    """For a worker that wants no offers: it polls."""

    def __init__(self) -> None:
        self._inbox = Inbox()

    def fileno(self) -> int:
        return self._inbox.fileno()

    def heard(self) -> Heard:
        return self._inbox.take()

    def close(self) -> None:
        self._inbox.close()


class BrokerBell:
    """A worker's end. RQ's or Arq's own worker runs in a thread of its own and offers what it gets here."""

    def __init__(self, delivery: BrokerDelivery, seat: Seat) -> None:
        self.server = delivery.server
        self.seat = seat
        self.feeds = False
        self.closed = threading.Event()
        self._delivery = delivery
        self._inbox = Inbox()
        self._changed = threading.Condition()
        self._room = 0
        self._unheard = 0  # offers that the worker has not seen yet
        self._reserved = 0  # and such that are on their way
        self._held: dict[int, list[Any]] = {}  # by job, what the broker wants to have back when it is done
        self._back: list[Any] = []
        self._doorbell = delivery.doorbell.listener(self._inbox)
        self._feeder = threading.Thread(target=self._keep_feeding, name=f"gristmill-{delivery.name}", daemon=True)
        self._feeder.start()

    # ---- the worker's side

    def fileno(self) -> int:
        return self._inbox.fileno()

    def heard(self) -> Heard:
        with self._changed:
            self._unheard = 0
            return self._inbox.take()

    def want(self, jobs: int) -> None:
        with self._changed:
            self._room = jobs - self._unheard - self._reserved
            self._changed.notify_all()

    def done(self, jobs: Iterable[int]) -> None:
        with self._changed:
            for job in jobs:
                self._back += self._held.pop(job, ())
            self._changed.notify_all()

    def close(self) -> None:
        self.closed.set()
        self.done(list(self._held))  # who keeps the books of it looks a last time when it is closed
        self._doorbell.close()

    def say_goodbye(self) -> None:
        self._feeder.join(_GOODBYE)

    # ---- the broker's side

    def queues(self) -> list[str]:
        """Those that this worker serves."""
        with contextlib.suppress(DatabaseError):
            return list(self.seat.queues) or list(self._delivery.queue_names().values())
        return list(self.seat.queues)

    def has_room(self, patience: float) -> bool:
        """Waits a moment for room."""
        with self._changed:
            return self._changed.wait_for(lambda: self._room > 0 or self.closed.is_set(), patience)

    def reserve(self) -> bool:
        """Is there room, and is it kept for the next offer?"""
        with self._changed:
            if self._room <= 0:
                return False
            self._room -= 1
            self._reserved += 1
            return True

    def release(self) -> None:
        """What it was reserved for did not come to be an offer."""
        with self._changed:
            self._room += 1
            self._reserved -= 1
            self._changed.notify_all()

    def offer(self, job: int, message: Any, reserved: bool = False) -> None:
        with self._changed:
            self._room -= not reserved
            self._reserved -= reserved
            self._unheard += 1
            self._held.setdefault(job, []).append(message)
            self._inbox.put(jobs=[job])

    def held(self) -> list[Any]:
        with self._changed:
            return [message for messages in self._held.values() for message in messages]

    def given_back(self, patience: float = 0.0) -> list[Any]:
        """Messages that are over; waits a moment for some."""
        with self._changed:
            self._changed.wait_for(lambda: self._back or self.closed.is_set(), patience)
            back, self._back = self._back, []
        return back

    def here(self) -> None:
        """Redis answers: from now on jobs come by message."""
        if not self.feeds:
            self.feeds = True
            self._inbox.put({ALL})

    def away(self, error: Exception) -> None:
        """Redis does not: from now on the worker looks for itself, without being told."""
        if self.feeds:
            log.warning("Redis %s is lost: %s; polling meanwhile", self.server.shown, error)
        self.feeds = False
        self._inbox.put({ALL})

    def _keep_feeding(self) -> None:
        failures = 0
        while not self.closed.is_set():
            was_here = False
            with self._changed:
                self._reserved = 0  # for what went down with the last feed
            try:
                self._delivery.broker.feed(self)
            except Exception as error:  # of Redis, of the broker's own code: polling goes on whatever it is
                was_here = self.feeds
                if failures == 0 and not was_here and not self.closed.is_set():
                    log.warning(
                        "%s cannot be used on %s: %s; polling meanwhile", self._delivery.name, self.server.shown, error
                    )
                self.away(error)
            failures = 0 if was_here else failures + 1
            self.closed.wait(_BACKOFF[min(failures, len(_BACKOFF) - 1)])
