"""Jobs that take more than a slot: which of them is next, and when there is room.

A job waits its turn in its queue, whatever its class. When it comes to one that does not fit just now, room is kept for
it: children get nothing more to do, and memory that becomes free is not given to those who come later, so that a big job
does not wait for ever for a moment in which no small one runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from gristmill.demand import NOTHING, Demand, Offer, class_of
from gristmill.execution.room import ASYNC, SYNC, Room
from gristmill.ledger.claim import Head, Lane, Taken, Want, find_head
from gristmill.ledger.store import Ledger

_STALE = 1.0  # seconds after which the head of a line is looked at again

Line = tuple[int, int]  # queue, pool
Share = Callable[[int, Collection[int], int], Counter[int]]  # (place, queues, starts): whose turn the next starts are


class _Blocked(NamedTuple):
    """Who waits for memory, and since when."""

    line: Line
    memory: int
    since: float


class Admission:
    """One worker's view of the lines of jobs that ask for something."""

    def __init__(
        self,
        ledger: Ledger,
        room: Room,
        labels: Collection[str],
        memory: int,
        run: int | None,
        one_line: bool = False,
    ) -> None:
        self._ledger = ledger
        self._one_line = one_line  # of all queues, not one of each
        self._room = room
        self._labels = frozenset(labels)
        self._memory = memory
        self._run = run
        self.classes: dict[int, Demand] = {}
        self._again = False
        self.grow: set[int] = set()  # places that need a child for such a job
        self._heads: dict[Line, tuple[Head | None, float]] = {}
        self._blocked: _Blocked | None = None
        self._light: dict[int, tuple[int, ...]] = {SYNC: (SYNC,), ASYNC: (ASYNC,)}

    # ---- what is known

    def learn(self, classes: Mapping[int, Demand]) -> None:
        """New classes, of which this worker serves what it can."""
        if classes:
            self.classes |= classes
            light = [n for n, demand in self.classes.items() if not demand.heavy and self._labels.issuperset(demand.labels)]
            self._light = {kind: (kind, *(2 * n + kind for n in light)) for kind in (SYNC, ASYNC)}

    def forget(self) -> None:
        self.classes = {}
        self._light = {SYNC: (SYNC,), ASYNC: (ASYNC,)}
        self._heads, self._blocked = {}, None

    def demand(self, pool: int) -> Demand:
        return self.classes.get(class_of(pool), NOTHING)

    def light(self, place: int) -> tuple[int, ...]:
        """The pools of a place whose jobs take a slot and no more."""
        return self._light[ASYNC if place == ASYNC else SYNC]

    def heavy(self, queue: int) -> list[int]:
        """The other pools that this worker serves."""
        kinds = (SYNC, ASYNC) if self._room.has_async else (SYNC,)
        heavy = [2 * n + kind for n, demand in self.classes.items() if demand.heavy for kind in kinds]
        return [pool for pool in heavy if not self.lacks(queue, pool)]

    def pools(self, queue: int) -> list[int]:
        """All pools of a queue that this worker serves."""
        return [*self._light[SYNC], *self._light[ASYNC], *self.heavy(queue)] if self.classes else [SYNC, ASYNC]

    def lacks(self, queue: int, pool: int) -> list[str]:
        """What this worker would need for such jobs and does not have, in words."""
        place = self._room.place(queue, pool)
        slots = 1 if place == ASYNC else self._room.slots(place)
        return Offer(self._labels, slots, self._memory).lacks(self.demand(pool))

    def look_again(self, queues: Collection[int] | None) -> None:
        if self._heads:
            self._heads = {line: head for line, head in self._heads.items() if queues is not None and line[0] not in queues}

    # ---- what to ask for

    def wants(self, queues: Sequence[int], share: Share) -> tuple[list[Want], Counter[int]]:
        """What to claim; and how many children of each place that will take. `share`: whose turn it is."""
        self.grow = set()
        lines = [(queue, pool) for queue in queues for pool in self.heavy(queue)]
        before = {queue: queues if self._one_line else [queue] for queue, _ in lines}
        self._look_at(lines, before)
        due = [line for line in lines if self._is_due(line, before[line[0]])]
        due.sort(key=self._head)
        if self._blocked is not None and self._blocked.line not in due:
            self._blocked = None
        plan = _Plan(self._room, self.demand)
        places = {place: {q for q, pool in due if self._room.place(q, pool) == place} for place in plan.places(due)}
        plan.left = {place: share(place, wanted, max(1, plan.free(place))) for place, wanted in places.items()}
        chosen: Counter[Line] = Counter()
        hopeful = due
        while hopeful:  # one of each at a time, since nobody knows how long the lines are
            hopeful = [line for line in hopeful if self._admit(line, plan, chosen)]
        self._room.keep(plan.to_keep())
        wants = [Want(pool, n, (Lane(queue, pool, run=self._run),)) for (queue, pool), n in chosen.items()]
        return wants, plan.planned

    def _admit(self, line: Line, plan: _Plan, chosen: Counter[Line]) -> bool:
        """One more job of a line, if it fits; then the next may be asked for, too."""
        queue, pool = line
        demand = self.demand(pool)
        if not self._has_memory(line, demand, plan, known=not chosen[line]):
            return False
        place = self._room.place(queue, pool)
        if plan.left[place][queue] <= 0 or (plan.waiting[place] and not chosen[line]):
            return False  # it is the turn of others, or somebody before it waits for slots
        if demand.cpu > plan.free(place):
            if not chosen[line]:
                plan.waiting[place] = max(plan.waiting[place], demand.cpu)
            return False
        if not plan.has_child(place):
            self.grow.add(place)
            return False
        plan.add(queue, place, demand)
        chosen[line] += 1
        if self._blocked is not None and self._blocked.line == line:
            self._blocked = None
        return True

    def _has_memory(self, line: Line, demand: Demand, plan: _Plan, known: bool) -> bool:
        """`known`: there is such a job; of those behind the first of a line nobody knows."""
        if not demand.memory:
            return True
        fits = plan.memory + demand.memory <= self._memory
        first = self._blocked
        if first is None or first.line == line:
            if not fits and first is None and known:
                self._blocked = _Blocked(line, demand.memory, time.monotonic())
            return fits
        # Who came later than one that waits may only take what that one leaves.
        return fits and plan.memory_since(first.since) + first.memory + demand.memory <= self._memory

    def _is_due(self, line: Line, queues: Iterable[int]) -> bool:
        """Is its first job before all of these queues that ask for less?"""
        head = self._heads[line][0]
        if head is None:
            return False
        others = [self._heads[queue, light][0] for queue in queues for light in self._light[line[1] % 2]]
        return all(other is None or head < other for other in others)

    def _head(self, line: Line) -> Head:
        head = self._heads[line][0]
        return Head(0, 0, 0) if head is None else head

    def _look_at(self, lines: Iterable[Line], before: Mapping[int, Iterable[int]]) -> None:
        """Reads who is first in lines that were not looked at lately, and in those of jobs that take just a slot."""
        now = time.monotonic()
        light = {(other, pool) for queue, heavy in lines for other in before[queue] for pool in self._light[heavy % 2]}
        wanted = {*lines, *light}
        stale = [line for line in wanted if now - self._heads.get(line, (None, -_STALE))[1] >= _STALE]
        if stale:
            with self._ledger.reading_in_turn() as tx:
                self._heads |= {line: (find_head(tx, Lane(*line, run=self._run)), now) for line in stale}

    # ---- what came of it

    def once_more(self) -> bool:
        """Did a claim bring less than was thought, so that there is room for others? Said once."""
        again, self._again = self._again, False
        return again

    def took(self, taken: Taken, wants: Iterable[Want]) -> None:
        """Remembers what a claim showed."""
        got = Counter((job.kind.queue_id, job.kind.pool) for job in taken.jobs if job.kind.pool > ASYNC)
        if self._one_line:  # who stands in front of all must not be taken for who stood there
            for kind in taken.kinds:
                self._heads.pop((kind.queue_id, kind.pool), None)
        for want in wants:
            (lane,) = want.lanes
            line = (lane.queue_id, lane.pool)
            if got[line] < want.most:
                self._again = True
                self._heads[line] = (None, time.monotonic())
            else:
                self._heads.pop(line, None)


class _Plan:
    """What runs, and what is about to."""

    def __init__(self, room: Room, demand: Callable[[int], Demand]) -> None:
        self._room = room
        children = [child for child in room.children if child.heavy or child.bounded]
        held = [(child.place, *held) for child in children for held in child.held.values()]
        running = [(place, demand(job.kind.pool), given) for place, job, _, given in held]
        self._running = [(place, demand, given) for place, demand, given in running if demand.heavy]
        self.memory = sum(demand.memory for _, demand, _ in self._running)
        self.left: dict[int, Counter[int]] = {}  # starts of each place, by queue
        self.planned: Counter[int] = Counter()  # jobs per place
        self.waiting: Counter[int] = Counter()  # slots per place that somebody waits for
        self._soon = 0  # MiB of what is about to start
        self._extra: Counter[int] = Counter()  # slots of each place that jobs take beside that of their child
        for place, running_demand, _ in self._running:
            self._extra[place] += running_demand.cpu - 1

    def places(self, lines: Iterable[Line]) -> set[int]:
        return {self._room.place(*line) for line in lines}

    def free(self, place: int) -> int:
        """Slots of children that do nothing, and of those that were not made yet."""
        if place == ASYNC:
            return self._room.idle(ASYNC) - self.planned[place]
        empty = self._room.slots(place) - self._room.busy(place)
        return empty - self._extra[place] - self.planned[place]

    def has_child(self, place: int) -> bool:
        return place == ASYNC or len(self._room.empty(place)) > self.planned[place]

    def add(self, queue: int, place: int, demand: Demand) -> None:
        self.left[place][queue] -= 1
        self.planned[place] += 1
        self._extra[place] += demand.cpu - 1
        self.memory += demand.memory
        self._soon += demand.memory

    def memory_since(self, since: float) -> int:
        return self._soon + sum(demand.memory for _, demand, given in self._running if given >= since)

    def to_keep(self) -> dict[int, int]:
        """Slots of each place that nothing else may take."""
        places = {place for place in (*self._extra, *self.waiting) if place != ASYNC}
        return {place: self._extra[place] + self.waiting[place] + self.planned[place] for place in places}
