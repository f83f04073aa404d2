"""Jobs that a worker was offered by name, until they are claimed here or turn out not to be had."""

from __future__ import annotations

from collections.abc import Callable

from gristmill.delivery.protocol import Bell
from gristmill.ledger import outbox
from gristmill.ledger.claim import Lane, Taken, lanes_of
from gristmill.ledger.store import Ledger


class Offers:
    def __init__(self, ledger: Ledger) -> None:
        self.lanes: list[Lane] = []  # where they can be claimed
        self._ledger = ledger
        self._heard: list[int] = []
        self._declined: list[int] = []  # to be published again, if they are still ready

    def __len__(self) -> int:
        return len(self._heard) + sum(len(lane.jobs) for lane in self.lanes)

    def hear(self, jobs: tuple[int, ...]) -> None:
        self._heard += jobs

    def look_up(self, bell: Bell, in_hand: Callable[[], set[int]]) -> bool:
        """Finds out where they are ready; False: nothing is new.

        Others are over: doubled, stale, another was faster. But not those that this worker found by itself before it was
        told: they are over when they have ended.
        """
        if self._declined:
            self._ledger.do(outbox.decline, self._declined)
            self._declined = []
        if not self._heard:
            return False
        with self._ledger.reading() as tx:
            jobs = {*self._heard, *(job for lane in self.lanes for job in lane.jobs)}
            self.lanes = lanes_of(tx, sorted(jobs))
        self._heard = []
        if late := jobs.difference(*(lane.jobs for lane in self.lanes)):
            bell.done(late - in_hand())
        return True

    def claimed(self, taken: Taken, bell: Bell) -> None:
        """What a claim left: for others, if it could not be had; for the next claim, if there was no room."""
        if not self.lanes:
            return
        got = {job.id for job in taken.jobs}
        dry = {lane.jobs for lane in taken.empty}
        left: list[Lane] = []
        for lane in self.lanes:
            jobs = tuple(job for job in lane.jobs if job not in got)
            if lane.jobs in dry:  # all of it was asked for
                self._declined += jobs
                bell.done(jobs)
            elif jobs:
                left.append(lane._replace(jobs=jobs))
        self.lanes = left

    def drop(self) -> list[int]:
        """They are for others. Says which: a bell that goes on is to know that they are done with."""
        jobs = [*self._heard, *(job for lane in self.lanes for job in lane.jobs)]
        self._heard, self.lanes = [], []
        self._declined += jobs
        return jobs

    def give_back(self) -> None:
        """At the end, when nobody is going to look again."""
        self.drop()
        if self._declined:
            self._ledger.do(outbox.decline, self._declined)
