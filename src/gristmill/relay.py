"""The relay: publishes in Redis what is committed but not published there, for deliveries that carry jobs by name.

Every worker of such a delivery has one, in a thread of its own. What others enqueued is published by them; the relay comes
by every two seconds for what they could not: they died, Redis was away, or has lost everything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gristmill.delivery.broker import BrokerDelivery
from gristmill.errors import DatabaseError
from gristmill.housekeeping import beside

log = logging.getLogger("gristmill.relay")

EVERY = 2.0  # seconds between two looks at everything
_PACE = 0.02  # seconds between two looks at what is new: what comes meanwhile goes together
_AGAIN = 1.0  # after Redis or the database could not be reached


class Relay:
    """`running` for a worker; `tick` does what is due."""

    def __init__(self, delivery: BrokerDelivery) -> None:
        self.delivery = delivery
        self._sweep_at = 0.0
        self._failures = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with beside(self._loop):
            try:
                yield
            finally:
                self.delivery.nudged.set()  # who is stopped need not wait for the next look

    def _loop(self, stop: threading.Event) -> None:
        self.delivery.relayed += 1
        try:
            while not stop.is_set():
                self.delivery.nudged.wait(self.tick(time.monotonic()))
                stop.wait(_PACE)
        finally:
            self.delivery.relayed -= 1

    def tick(self, now: float) -> float:
        """Publishes what is due; says in how many seconds something will be, unless somebody nudges."""
        nudges = self.delivery.nudges()
        try:
            if now < self._sweep_at:
                well = not nudges or self.delivery.publish(nudges)
            else:
                well = self._sweep()
                self._sweep_at = now + (EVERY if well else _AGAIN)
            self._failures = 0
        except DatabaseError as error:
            if not self._failures:
                log.warning("%s; trying again in %g s", error, _AGAIN)
            self._failures += 1
            self._sweep_at = now + _AGAIN
        return max(0.0, self._sweep_at - now)

    def _sweep(self) -> bool:
        """Everything that is ready, by one relay at a time."""
        with self.delivery.ledger.sole("relay") as mine:
            return not mine or self.delivery.publish()
