"""A delivery whose every message comes at least twice: real ones, on the way that the first one took."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chaos.record import note
from gristmill import Mill
from gristmill.delivery.broker import BrokerDelivery
from gristmill.delivery.database import CHANNEL, NotifyDelivery
from gristmill.ledger.outbox import Due

OFTEN = 0.01  # the share of messages that come ten times
LATE = 0.3  # seconds at most until a broker has the next copy


class Doubled:
    """From now on the delivery of this mill is one."""

    def __init__(self, mill: Mill, folder: str | Path, seed: int) -> None:
        delivery: Any = mill.delivery
        self._ledger, self._delivery, self._folder = mill.ledger, delivery, folder
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._ring = delivery.after_commit
        delivery.after_commit = self.after_commit
        if isinstance(delivery, BrokerDelivery):
            broker: Any = delivery.broker
            self._add = broker.add
            broker.add = self.add

    def copies(self) -> int:
        with self._lock:
            times = 10 if self._dice.random() < OFTEN else 2
        note(self._folder, "messages", times)
        return times

    def after_commit(self, queues: Iterable[int]) -> None:
        queues = sorted(queues)
        if not isinstance(self._delivery, NotifyDelivery):
            for _ in range(self.copies()):
                self._ring(queues)
            return
        for _ in range(self.copies() - 1):  # the first went with the commit
            self._ledger.glance(lambda tx: tx.script(f"NOTIFY {CHANNEL}, '{','.join(map(str, queues))}'"))

    def add(self, pipeline: Any, queue: str, due: Sequence[Due]) -> None:
        """A broker's own message, of one job. Copies come when the first may have been taken already, or while it is not."""
        self._add(pipeline, queue, due)
        for one in due:
            for _ in range(self.copies() - 1):
                timer = threading.Timer(LATE * self._dice.random(), self._again, [queue, one])
                timer.daemon = True
                timer.start()

    def _again(self, queue: str, one: Due) -> None:
        with self._delivery.server.client.pipeline(transaction=True) as pipeline:
            self._add(pipeline, queue, [one])
            pipeline.execute()
