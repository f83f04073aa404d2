"""How much work a worker's children can take, by what jobs took lately, and who gets which."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gristmill.execution.children import Child
from gristmill.ledger.claim import Claimed
from gristmill.settings import WorkerSettings

# Places where jobs run: children for plain functions, and event loops. A queue with slots of its own has a place of its
# own: its number, below zero. The kind of child is the last bit of a job's pool.
SYNC, ASYNC = 0, 1
STUCK = 0.1  # seconds that jobs may wait behind one that takes longer than was thought
_MOST_BYTES = 1 << 20  # of arguments that a child is given in advance
_TOO_LONG = 1.0  # seconds of work in hand that are given back; less is not worth it where a machine is slow for a moment
_TURNS = 6  # work for so many turns may be held, so that bringing it takes little beside doing it
_GATHER = 0.01  # seconds that a completion may wait for others before it is written, where turns are fast
_MOMENT = 0.01  # seconds in which children must be able to do a batch of items, for it to wait for them
_MISTRUST = 2  # a child gets at most so many times the jobs of a queue in advance as have been seen to be short
_MISTRUST_SLOW = 8  # the same where a turn takes longer than what may have to wait: each step of learning costs one


@dataclass
class Pace:
    """How fast jobs of a queue go, as seen here lately."""

    rate: float  # jobs per second of a child
    seen: int = 0
    size: float = 0.0  # bytes of arguments that a job has

    def learn(self, jobs: int, seconds: float) -> None:
        """Quickly upwards: the first job of a task often pays for imports. What is trusted grows by itself.

        Rates are averaged, not times: a child that the machine held up for a moment must not look like slow jobs.
        """
        rate = jobs / max(seconds, 1e-9)
        self.rate += (0.8 if rate > self.rate else 0.3) * (rate - self.rate)
        self.seen += jobs


class Room:
    """The children as places for jobs."""

    def __init__(self, children: Sequence[Child], settings: WorkerSettings) -> None:
        self.children = children
        self._settings = settings
        self.has_async: bool | None = None  # has the application async functions? None until a child has loaded it
        self.turn_takes = 0.0  # seconds that the worker's turns took lately
        self.own: dict[int, int] = {}  # slots of its own, by queue
        self.held_back: Mapping[int, int] = {}  # slots of a place that are not for jobs which take just one
        self._paces: dict[int, Pace] = {}

    def place(self, queue: int, pool: int) -> int:
        return ASYNC if pool % 2 else -queue if queue in self.own else SYNC

    def slots(self, place: int) -> int:
        return self.own[-place] if place < 0 else self._settings.slots

    def of(self, place: int) -> list[Child]:
        """The children of a place that will have more to do."""
        return [child for child in self.children if child.place == place and not child.retiring]

    def busy(self, place: int) -> int:
        return sum(1 for child in self.of(place) if child.held)

    def empty(self, place: int) -> list[Child]:
        """Those that can be given a job that takes more than a slot."""
        return [
            child
            for child in self.of(place)
            if child.ready and not child.held and not child.doomed and not child.recalled and self.jobs_left(child) > 0
        ]

    def keep(self, slots: Mapping[int, int]) -> None:
        """Holds so many slots of each place back: of those without a child, then of children that are idle, or soon are."""
        self.held_back = slots
        for child in self.children:
            if child.kept and not slots.get(child.place):
                child.kept = False
        for place, number in slots.items():
            children = sorted(
                (child for child in self.of(place) if not child.heavy), key=lambda child: (not child.kept, len(child.held))
            )
            number -= max(0, self.slots(place) - len(self.of(place)))
            for n, child in enumerate(children):
                child.kept = n < number

    def idle(self, place: int) -> int:
        """How many jobs can start at once."""
        if place != ASYNC:
            return sum(1 for child in self.free(place) if not child.held)
        free = self.free(ASYNC)
        if not self.has_async:
            return 0
        if not free and self.loop is None:
            return 1  # the first one makes the child
        return sum(self._idle_async(child) for child in free)

    @property
    def loop(self) -> Child | None:
        """The child whose event loop is given more: not one that has had its number of jobs, and is to be replaced."""
        return next((c for c in self.children if c.is_async and not (c.alone or c.retiring) and self.jobs_left(c) > 0), None)

    def _idle_async(self, child: Child) -> int:
        held = sum(len(c.held) for c in self.children if c.is_async and not c.alone)  # what others are not through with, too
        return max(0, min(self._settings.async_slots - held, self.jobs_left(child)))

    def async_ahead(self) -> int:
        """How many more jobs event loops may hold that begin when others end; 0 while they have half of what they may."""
        more, now = 0, time.monotonic()
        for child in self.children:
            if child.is_async and not (child.retiring or child.recalled or child.doomed or child.alone):
                at_work = len(child.held) - len(child.ahead)
                most = child.turnover.ahead(child.begun(), at_work, self._depth, self.soon, now)
                if self._settings.recycle:
                    most = min(most, len(child.ahead) + self.jobs_left(child) - self._idle_async(child))
                more += most - len(child.ahead) if 2 * len(child.ahead) <= most else 0
        return more

    @property
    def soon(self) -> float:
        """Seconds in which a job of an event loop must be expected to end, for another to be there in its place: so few that
        those do not go back because it takes a little longer."""
        return min(self._depth, STUCK / 2)

    @property
    def starting(self) -> bool:
        return any(not child.ready for child in self.children)

    def in_hand(self) -> set[int]:
        return {job for child in self.children for job in child.held}

    def vacant(self, place: int) -> int:
        """How many plain functions could be running that are not, children that would have to be made first included."""
        return max(0, self.slots(place) - self.busy(place))

    def spare_seconds(self, place: int) -> float:
        """How much estimated work the plain children could hold in advance; 0 while none runs low."""
        depth = self._depth
        loads = [self.load(child) for child in self.free(place)]
        low = min(max(2 * self.turn_takes, depth / 4), depth / 2)  # what lasts until the next turn has brought more
        return sum(max(0.0, depth - load) for load in loads) if any(load < low for load in loads) else 0.0

    @property
    def _depth(self) -> float:
        """Seconds of work that a child may hold in advance: where turns are slow, several times as much as one takes."""
        prefetch = self._settings.prefetch
        return max(prefetch, min(_TURNS * self.turn_takes, STUCK)) if prefetch else 0.0

    @property
    def gather(self) -> float:
        """Seconds that a completion may wait for others before it is written."""
        return max(_GATHER, min(_TURNS * self.turn_takes, STUCK) / 2)

    def keeps_up(self, items: int) -> bool:
        """Will plain children that are busy be through with so many more jobs of the kind that they hold, in a moment?"""
        costs = [max(map(self.cost, child.queues)) for child in self.free(SYNC) if child.held]
        return bool(costs) and items * max(costs) < _MOMENT * len(costs)

    def trusted(self, queue: int) -> int:
        """How many jobs of this queue may be claimed in advance."""
        pace = self._paces.get(queue)
        if pace is None:
            return 0
        each = min(self._settings.batch, int(_MOST_BYTES / max(pace.size, 1.0)) + 1)
        free = self.free(self.place(queue, SYNC))
        room = sum(min(max(0, each - len(child.held)), self.jobs_left(child)) for child in free)
        return min(room, (_MISTRUST if self.turn_takes < STUCK else _MISTRUST_SLOW) * pace.seen)

    def free(self, place: int) -> list[Child]:
        """The children of a place that may be given (more) jobs."""
        return [
            child
            for child in self.children
            if child.ready
            and child.place == place
            and not (child.retiring or child.alone or child.recalled or child.doomed or child.kept or child.heavy)
            and len(child.held) < (self._settings.batch if place != ASYNC else self._settings.async_slots)
            and self.jobs_left(child) > 0
            and not (place != ASYNC and self._busy(child))
        ]

    def _busy(self, child: Child) -> bool:
        """Is it on a job that takes longer than children may work in advance, or emits? Nothing is put behind that."""
        current = child.current()
        if current is None:
            return False
        job, started = current
        return job in child.producers or time.monotonic() - started > self._settings.prefetch

    def jobs_left(self, child: Child) -> int:
        """How many more jobs this child may be given before it is replaced."""
        limit = self._settings.recycle
        return limit - child.finished - len(child.held) if limit else max(self._settings.batch, self._settings.async_slots)

    def load(self, child: Child) -> float:
        """Estimated seconds of work in its hands; as if all of it were of the slowest kind that it has."""
        if not child.held:
            child.queues.clear()
            child.unique = child.keeps_limits = False
            return 0.0
        return len(child.held) * max(self.cost(queue) for queue in child.queues)

    def overfull(self, child: Child) -> bool:
        """Was it given jobs for much longer than it may hold? They were thought to be shorter; others may be idle."""
        return self.load(child) > _TOO_LONG

    def deal(self, jobs: Sequence[Claimed], children: Sequence[Child]) -> list[list[Claimed]]:
        """Each job goes to the child with the least work so far; many at once, where that comes to the same.

        The last ones are left over if all children get as many as they may.
        """
        shares: list[list[Claimed]] = [[] for _ in children]
        line = [(self.load(child), n) for n, child in enumerate(children)]
        heapq.heapify(line)
        step = max(1, len(jobs) // (8 * len(children))) if children else 1
        dealt = 0
        while line and dealt < len(jobs):
            load, n = line[0]
            left = self.jobs_left(children[n]) - len(shares[n])
            some = jobs[dealt : dealt + min(step, left)]
            shares[n] += some
            dealt += len(some)
            if len(some) < left:
                heapq.heapreplace(line, (load + len(some) * self.cost(some[0].kind.queue_id), n))
            else:
                heapq.heappop(line)
        return shares

    # ---- what jobs take

    def learn(self, child: Child, jobs: int, seconds: float) -> None:
        """So many jobs took so long; of children that hold jobs of several queues, as if all took the same."""
        exception = jobs == 1 and seconds > STUCK  # a long job among short ones: a recall sees to it
        for queue in child.queues:
            if not (exception and queue in self._paces):
                self._paces.setdefault(queue, Pace(jobs / max(seconds, 1e-9))).learn(jobs, seconds)

    def learn_turn(self, seconds: float) -> None:
        """A turn of the worker took so long. Believed at once when turns grow: children must not run dry during the next."""
        self.turn_takes += (0.8 if seconds > self.turn_takes else 0.3) * (seconds - self.turn_takes)

    def learn_slow(self, queue: int, seconds: float) -> None:
        """A job takes this long already."""
        if pace := self._paces.get(queue):
            pace.rate = min(pace.rate, 1 / seconds)

    def weigh(self, queue: int, args: Sequence[str | None]) -> None:
        """Jobs with much to carry are not taken by the thousand."""
        if pace := self._paces.get(queue):
            size = sum(map(len, filter(None, args))) / len(args)
            pace.size += (0.8 if size > pace.size else 0.3) * (size - pace.size)

    def cost(self, queue: int) -> float:
        """Seconds that a job of this queue takes; an hour while nothing is known, so that nothing is put behind it."""
        pace = self._paces.get(queue)
        return 1 / pace.rate if pace else 3600.0
