"""What a worker asks the ledger for: which lines of ready jobs, how many of each, and when to look at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from gristmill.admission import Admission
from gristmill.delivery.offers import Offers
from gristmill.delivery.protocol import Bell
from gristmill.execution.room import ASYNC, SYNC, Room
from gristmill.fairness import Shares
from gristmill.floors import Floors
from gristmill.ledger.claim import BY_NAME, Claimed, Kind, Lane, Taken, Want
from gristmill.ledger.queues import QueueRow
from gristmill.ledger.store import Ledger
from gristmill.priority import Priority
from gristmill.settings import WorkerSettings

_QUEUE_OF = attrgetter("kind.queue_id")


class Appetite:
    """One worker's view of the lines that it serves."""

    def __init__(
        self, ledger: Ledger, room: Room, settings: WorkerSettings, only: Sequence[str], run: int | None = None
    ) -> None:
        self._ledger = ledger
        self._room = room
        self.admission = Admission(ledger, room, settings.labels, settings.jobs_mib, run, settings.one_line)
        self._own = settings.slots_of()
        self._strict = settings.strict
        self._one_line = settings.one_line
        self._by_weight = not settings.strict and not settings.one_line
        self._slots = settings.slots
        self._only = tuple(only)
        self._run = run  # jobs of others are left alone
        self.queues: list[QueueRow] = []
        self._limited: set[int] = set()  # those that have a limit
        self.look = {SYNC, ASYNC}  # places that there may be ready jobs for which were not seen yet
        self._heavy: list[Want] = []  # what of the last claim was for jobs that take more than a slot
        self._turns_of: Counter[tuple[int, int]] = Counter()  # claims of a queue and kind of child that brought something
        self._shares = Shares()
        self._floors = Floors(ledger)
        self._taken = 0  # jobs claimed so far
        self._empty: set[tuple[int, int, int | None]] = set()  # lanes that had nothing, since the last reason to look
        self._gave: set[tuple[int, int]] = set()  # (queue, pool) that had more than was taken when last asked
        self.offers = Offers(ledger)
        self.fed = False  # jobs are offered by name: a look at the lines is only a net
        self._lately: set[int] = set()  # the places of what was offered last; none: of all
        self._net = True  # it is time to look at all lines, offers or not

    # ---- what is known

    def see(self, queues: Iterable[QueueRow]) -> None:
        self.queues = [queue for queue in queues if not self._only or queue.name in self._only]
        self._limited = {queue.id for queue in self.queues if queue.limit_id is not None}
        if self._own:
            self._room.own = {queue.id: self._own[queue.name] for queue in self.queues if queue.name in self._own}

    def open_queues(self) -> list[int]:
        return [queue.id for queue in self.queues if not queue.paused]

    def places(self) -> set[int]:
        return {SYNC, ASYNC} if not self._own else {SYNC, ASYNC, *(-queue for queue in self._room.own)}

    def open_at(self, place: int) -> list[int]:
        """The open queues whose jobs run at a place."""
        if not self._own or place == ASYNC:
            return self.open_queues()
        return [queue for queue in self.open_queues() if self._room.place(queue, SYNC) == place]

    def look_again(self, queues: Collection[int] | None = None) -> None:
        """There may be new jobs in these queues (None: in any)."""
        self.look = self.places()
        self._net = True
        self._lately = set()
        self.admission.look_again(queues)
        self._empty = {lane for lane in self._empty if queues is not None and lane[0] not in queues}

    # ---- what to ask for

    def wants(self, now: float) -> tuple[list[Want], dict[int, int]]:
        """What to claim, and how much room for it there is at each place."""
        wants, room, taken = self._wants_heavy() if self.admission.classes else ([], {}, {})
        for place in sorted(self.look):
            idle = max(0, self._room.idle(place) - taken.get(place, 0))
            if place == ASYNC and self._by_weight and not self._limited:
                idle += self._room.async_ahead()
            spare = self._room.spare_seconds(place) if place != ASYNC and self._by_weight else 0.0
            if not idle and not spare:
                if place == ASYNC and self._room.has_async is False:
                    self.look.discard(place)
                continue
            lanes = {queue: found for queue in self.open_at(place) if (found := self._lanes(queue, place, now))}
            if not lanes:
                self.look.discard(place)
                continue
            if self._one_line:
                room[place] = idle
                wants += _one_line(place, idle, lanes.values())
                continue
            shares = {} if self._strict else self._share_out(lanes, place, idle, spare)
            # While jobs are taken in advance, one look at queues that had nothing lately; their shares are not known yet.
            ahead = sum(shares.values()) > idle
            probes = [Want(place, 1, lanes[queue]) for queue in lanes if queue not in shares] if ahead else []
            most = max(idle, sum(shares.values())) + len(probes)
            if not most:
                continue
            room[place] = most
            wants += probes + [Want(place, share, lanes[queue]) for queue, share in shares.items()]
            wants += [Want(place, most, lanes[queue]) for queue in self._in_order(lanes)]
        if self.fed:
            self._offered(taken, wants, room)
        return self._within_limits(wants), room

    def _within_limits(self, wants: list[Want]) -> list[Want]:
        """The same, where lanes of queues with limits say so."""
        limits = {queue.id: queue.limit_id for queue in self.queues if queue.limit_id is not None}
        if not limits:
            return wants
        told = [tuple(lane._replace(limit_id=limits.get(lane.queue_id)) for lane in want.lanes) for want in wants]
        return [want._replace(lanes=lanes) for want, lanes in zip(wants, told, strict=True)]

    def _wants_heavy(self) -> tuple[list[Want], dict[int, int], Mapping[int, int]]:
        """The same for jobs that take more than a slot, and how many children of each place they will have."""
        self._heavy, taken = self.admission.wants(self.open_queues(), self._turns)
        room: Counter[int] = Counter()
        for want in self._heavy:
            room[want.place] += want.most
        return list(self._heavy), dict(room), taken

    def _turns(self, place: int, heavy: Collection[int], starts: int) -> Counter[int]:
        """Whose turn the next starts at a place are: of queues with jobs that take more than a slot, and with others."""
        others = {queue for queue in self.open_at(place) if self._may_have(queue, place)}
        if self._one_line:
            return Counter(heavy)  # one: who is behind it may have to wait for others
        if self._strict:
            ranked = self._in_order({*heavy, *others})
            first = next((n for n, queue in enumerate(ranked) if queue in others), len(ranked))
            return Counter(dict.fromkeys(ranked[: first + 1], starts))
        weights = {queue.id: queue.weight for queue in self.queues if queue.id in {*heavy, *others}}
        return Counter(self._shares.sequence(weights, starts))

    def _may_have(self, queue: int, place: int) -> bool:
        """May there be jobs of a queue that take just a slot?"""
        levels = [int(level) for level in Priority]
        return any(
            (queue, pool, None) not in self._empty and any((queue, pool, level) not in self._empty for level in levels)
            for pool in self.admission.light(place)
        )

    def _offered(self, taken: Mapping[int, int], wants: list[Want], room: dict[int, int]) -> None:
        """Adds what was offered by name, behind what the lines are asked for: its message may be lost, and a worker that is
        never idle must find it too."""
        for lane in self.offers.lanes:
            place = self._room.place(lane.queue_id, lane.pool)
            idle = self._room.idle(place) - taken.get(place, 0)
            if idle > 0:
                room[place] = max(room.get(place, 0), idle)
                wants.append(Want(place, len(lane.jobs), (lane,)))

    def be_fed(self, bell: Bell, resting: bool) -> set[int]:
        """Looks up what was offered by name, by a bell that can do so; says at which places a child is missing for it."""
        if not bell.feeds:
            if self.fed:
                bell.done(self.stop_being_fed())
                self.look_again()
            return set()
        self.fed = True
        if resting:
            bell.done(self.offers.drop())
        if self.offers.look_up(bell, self._room.in_hand):
            self._lately = {self._room.place(lane.queue_id, lane.pool) for lane in self.offers.lanes}
        bell.want(0 if resting else self.could_take())
        if self._room.starting:
            return set()
        offered = {self._room.place(lane.queue_id, lane.pool) for lane in self.offers.lanes}
        return {place for place in offered - {ASYNC} if not self._room.idle(place)}

    def was_fed(self, bell: Bell, ended: Iterable[int], taken: Taken | None, resting: bool) -> None:
        """Tells the bell what became of its offers, and how many more there may be."""
        bell.done(ended)
        if taken is not None:
            self.offers.claimed(taken, bell)
        bell.want(0 if resting else self.could_take())

    def stop_being_fed(self) -> list[int]:
        """Says which offers are dropped."""
        self.fed = False
        return self.offers.drop()

    def could_take(self) -> int:
        """How many more jobs may be offered here: one for each child that could be on it, and never many at once.

        Which kind of child one needs is known only when it is here. So it counts what there is room for at the places that
        the last ones were for; once per poll, at all of them.
        """
        places = self._lately or self.places()
        free = sum(self._room.idle(ASYNC) if place == ASYNC else self._room.vacant(place) for place in places)
        most = self._slots + sum(self._own.values())
        return max(0, min(free, most) - len(self.offers))

    def _in_order(self, queues: Iterable[int]) -> list[int]:
        """Strictly: as given, else by weight. Otherwise the order does not matter."""
        if not self._strict:
            return list(queues)
        given = {name: n for n, name in enumerate(self._only)}
        rank = {queue.id: (given.get(queue.name, 0), -queue.weight, queue.id) for queue in self.queues}
        return sorted(queues, key=rank.__getitem__)

    def _share_out(self, queues: Collection[int], place: int, idle: int, spare: float) -> dict[int, int]:
        """How many starts each queue gets: one per idle slot in all, and more where jobs are known to be short."""
        weights = {queue.id: queue.weight for queue in self.queues if queue.id in queues}
        # What is taken in advance would count for a limit.
        trusted = {queue: 0 if queue in self._limited else self._room.trusted(queue) for queue in weights}
        most = max([idle, *trusted.values()]) if spare else idle
        if len(weights) == 1:
            (queue,) = weights
            return {queue: max(idle, min(most, int(spare / self._room.cost(queue))))}
        known = [queue for queue in weights if any((queue, pool) in self._gave for pool in self.admission.light(place))]
        if spare and len(known) == 1:  # whose turn it is needs no counting
            (queue,) = known
            shares = Counter(self._shares.sequence(weights, idle))
            taken = shares.total() + len(weights.keys() - {*shares, queue})  # each of the others gets a look
            shares[queue] += max(0, min(trusted[queue] - taken, int(spare / self._room.cost(queue))))
            return +shares
        shares = Counter()
        for turn, queue in enumerate(self._shares.sequence(weights, most)):
            if turn >= idle:
                if queue not in known:
                    continue  # nothing is known of it; it gets one look
                spare -= self._room.cost(queue)
                if spare < 0 or shares[queue] >= trusted[queue]:
                    break
            shares[queue] += 1
        return shares

    def _lanes(self, queue: int, place: int, now: float) -> tuple[Lane, ...]:
        """The lines of a queue that may hold something."""
        pools = self.admission.light(place)
        if self.fed and not self._net and queue not in self._limited:
            pools = tuple(pool for pool in pools if pool not in BY_NAME)  # those are offered
        if len(pools) != 1 or self._one_line:
            return self._mixed(queue, pools, now) if pools else ()
        (pool,) = pools
        lanes = [Lane(queue, pool, run=self._run)]
        if self._run is None and self._has_floor(queue, pool):
            lanes = [Lane(queue, pool, level, self._floor((queue, pool, level), now)) for level in map(int, Priority)]
        return tuple(lane for lane in lanes if lane[:3] not in self._empty)

    def _mixed(self, queue: int, pools: Sequence[int], now: float) -> tuple[Lane, ...]:
        """The same for jobs of several classes: by priority, and who is first changes with every claim that gave some."""
        at = self._turns_of[queue, pools[0]] % len(pools)
        turns = (*pools[at:], *pools[:at])
        if self._run is not None:
            lanes = [Lane(queue, pool, run=self._run) for pool in turns]
        else:
            lines = [(queue, pool, int(level)) for level in Priority for pool in turns]
            lanes = [Lane(*line, self._floor(line, now)) for line in lines if line not in self._empty]
        return tuple(lane for lane in lanes if lane[:3] not in self._empty)

    def _floor(self, line: tuple[int, int, int], now: float) -> int:
        return self._floors.of(line, now, self._taken) if self._has_floor(*line[:2]) else 0

    def _has_floor(self, queue: int, pool: int) -> bool:
        """Whether it is worth knowing: there is much in line. Only PostgreSQL needs it."""
        return not self._ledger.is_sqlite and (queue, pool) in self._gave

    # ---- what came of it

    def took(self, taken: Taken, room: Mapping[int, int]) -> set[int]:
        """Remembers what a claim showed; says which places have more."""
        if self.admission.classes:
            self.admission.took(taken, self._heavy)
            self._turns_of.update({(kind.queue_id, kind.pool % 2) for kind in taken.kinds})
        self._net = False
        self._taken += len(taken.jobs)
        empty = [lane for lane in taken.empty if not lane.jobs] if self.fed else taken.empty
        self._empty.update(lane[:3] for lane in empty)
        gave = {(kind.queue_id, kind.pool) for kind in taken.kinds if not self.admission.demand(kind.pool).heavy}
        dry = {(lane.queue_id, lane.pool) for lane in empty if lane.priority in (None, Priority.LOW)}
        self._gave = (self._gave | gave) - dry
        more = {self._room.place(*line) for line in gave - dry} if self._own else {pool % 2 for _, pool in gave - dry}
        self.look -= room.keys() - more
        if self._by_weight:
            # Only queues that had work: the others get no credit for their idleness.
            busy = {queue for queue, _ in self._gave | gave} | {kind.queue_id for kind in taken.kinds}
            weights = {queue.id: queue.weight for queue in self.queues if queue.id in busy}
            started = self._by_queue(taken)
            self._shares.charge(weights, {queue: n for queue, n in started.items() if queue in weights})
        return more

    def took_back(self, returned: Mapping[int, int]) -> None:
        """Jobs that were counted as starts of their queue, and were not."""
        if returned and self._by_weight:
            self._shares.refund({queue.id: queue.weight for queue in self.queues}, returned)

    @staticmethod
    def _by_queue(taken: Taken) -> Mapping[int, int]:
        queues = {kind.queue_id for kind in taken.kinds}
        return {queues.pop(): len(taken.jobs)} if len(queues) == 1 else Counter(map(_QUEUE_OF, taken.jobs))

    def in_turn(self, jobs: list[Claimed], kinds: Collection[Kind]) -> list[Claimed]:
        """Jobs of several queues in the order of the queues' turns, as if they had been claimed one by one.

        By weight, not by how many there are: what a queue gave beyond its share, since another ran dry, comes last.
        """
        if not self._by_weight or len({kind.queue_id for kind in kinds}) < 2:
            return jobs
        by_queue: dict[int, list[Claimed]] = {}
        for job in jobs:
            by_queue.setdefault(job.kind.queue_id, []).append(job)
        weights = {queue.id: queue.weight for queue in self.queues}
        ranked = [(n / weights[queue], job.id, job) for queue, group in by_queue.items() for n, job in enumerate(group)]
        return [job for _, _, job in sorted(ranked)]


def _one_line(place: int, most: int, of_queues: Iterable[Sequence[Lane]]) -> list[Want]:
    """All queues as one: those of a higher priority first, whichever queue they are in."""
    levels: dict[int, list[Lane]] = {}
    for lane in (lane for lanes in of_queues for lane in lanes):
        levels.setdefault(lane.priority or 0, []).append(lane)
    return [Want(place, most, tuple(levels[level]), merged=True) for level in sorted(levels)]
