"""A delivery that drops, doubles, delays and reorders what another one says, at random but repeatably."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable

from gristmill.delivery.protocol import ALL, ANYWHERE, Bell, Delivery, Heard, Seat
from gristmill.ledger.tx import Tx

DELAY = 0.3  # seconds at most


class Faulty:
    """Three of ten messages get lost, three come twice, three late; on their way in and on their way out."""

    def __init__(self, delivery: Delivery, seed: int) -> None:
        """From now on the delivery is one."""
        self._before, self._after, self._bell = delivery.before_commit, delivery.after_commit, delivery.bell
        for name in ("before_commit", "after_commit", "notice", "ahead", "bell"):
            setattr(delivery, name, getattr(self, name))
        self.counts = dict.fromkeys(("lost", "twice", "late", "well"), 0)
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def fate(self) -> str:
        with self._lock:
            (fate,) = self._random.choices(["lost", "twice", "late", "well"], [3, 3, 3, 1])
            self.counts[fate] += 1
            return fate

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None:
        queues = set(queues)
        for _ in range({"lost": 0, "twice": 2}.get(self.fate(), 1)):
            self._before(tx, queues)

    def notice(self, queue: int) -> None:
        """What rings within its statement would never be lost."""

    def ahead(self, queue: int) -> bool:
        return False

    def after_commit(self, queues: Iterable[int]) -> None:
        queues = set(queues)
        fate = self.fate()
        if fate == "late":
            threading.Timer(DELAY * self._random.random(), self._after, [queues]).start()
        for _ in range({"lost": 0, "late": 0, "twice": 2}.get(fate, 1)):
            self._after(queues)

    def bell(self, seat: Seat = ANYWHERE) -> Bell:
        return FaultyBell(self._bell(seat), self)


class FaultyBell:
    def __init__(self, bell: Bell, faulty: Faulty) -> None:
        self.feeds = bell.feeds
        self._bell = bell
        self._faulty = faulty
        self._late: list[Heard] = []

    def fileno(self) -> int:
        return self._bell.fileno()

    def heard(self) -> Heard:
        """What is late comes with the next, and before it."""
        self.feeds = self._bell.feeds  # changes are told of
        late, self._late = self._late, []
        queues: list[int] = []
        jobs: list[int] = []
        for rung in (*late, self._bell.heard()):
            one_by_one = [Heard(frozenset([queue])) for queue in rung.queues] + [Heard(jobs=(job,)) for job in rung.jobs]
            for message in one_by_one:
                fate = "well" if rung in late or ALL in message.queues else self._faulty.fate()
                if fate == "late":
                    self._late.append(message)
                for _ in range({"lost": 0, "late": 0, "twice": 2}.get(fate, 1)):
                    queues += message.queues
                    jobs += message.jobs
        return Heard(frozenset(queues), tuple(jobs))

    def want(self, jobs: int) -> None:
        self._bell.want(jobs)

    def done(self, jobs: Iterable[int]) -> None:
        self._bell.done(jobs)

    def close(self) -> None:
        self._bell.close()

    def say_goodbye(self) -> None:
        self._bell.say_goodbye()
