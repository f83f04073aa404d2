"""A doorbell that may be lost, late or doubled; and a selector that asks what it is given instead of the kernel."""

from __future__ import annotations

import select
import selectors
from collections.abc import Iterable
from typing import Any, NamedTuple

from chaos.sim.world import World
from gristmill.delivery.protocol import ALL, ANYWHERE, Bell, Doorbell, Heard, Seat
from gristmill.errors import Unavailable
from gristmill.execution.children import Child
from gristmill.ledger.tx import Tx


class SimDelivery:
    """Rings every worker's bell, or not."""

    name = "database"
    url: str | None = None

    def __init__(self, world: World) -> None:
        self.world = world
        self.bells: list[SimBell] = []

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None: ...
    def notice(self, queue: int) -> None: ...
    def ahead(self, queue: int) -> bool:
        return False

    def after_commit(self, queues: Iterable[int]) -> None:
        rung = sorted(queues)
        for bell in self.bells:
            how = self.world.dice.choice(("lost", "late", "twice", "all")) if self.chance() else "now"
            if how == "lost":
                continue
            at = self.world.now + (self.world.dice.random() * 5 if how == "late" else 0.0)
            bell.rung += [(at, [ALL] if how == "all" else rung)] * (2 if how == "twice" else 1)

    def chance(self) -> bool:
        return self.world.chance(self.world.nature.bells)

    def bell(self, seat: Seat = ANYWHERE) -> Bell:
        bell = SimBell(self)
        self.bells.append(bell)
        return bell

    def close(self) -> None: ...


class SimBell(Doorbell):
    def __init__(self, delivery: SimDelivery) -> None:
        self.delivery = delivery
        self.rung: list[tuple[float, list[int]]] = []

    def fileno(self) -> int:
        return -1  # nobody selects on it

    @property
    def ringing(self) -> bool:
        return any(at <= self.delivery.world.now for at, _ in self.rung)

    def heard(self) -> Heard:
        now = self.delivery.world.now
        if self.delivery.world.chance(self.delivery.world.nature.faults / 2):
            raise Unavailable("simulated: the bell broke")
        heard = [queue for at, queues in self.rung if at <= now for queue in queues]
        self.rung = [(at, queues) for at, queues in self.rung if at > now]
        return Heard(frozenset(heard))

    def close(self) -> None:
        if self in self.delivery.bells:
            self.delivery.bells.remove(self)


class _Key(NamedTuple):
    fileobj: Any
    events: int


class SimSelector:
    """Stands in for the worker's selector: bells, children whose process said something, and its own pipe."""

    def __init__(self) -> None:
        self._map: dict[Any, _Key] = {}

    def get_map(self) -> dict[Any, _Key]:
        return self._map

    def register(self, source: Any, events: int) -> None:
        self._map[source] = _Key(source, events)

    modify = register

    def unregister(self, source: Any) -> None:
        del self._map[source]

    def select(self, seconds: float) -> list[tuple[_Key, int]]:
        return [(key, events) for key in list(self._map.values()) if (events := _events(*key))]

    def close(self) -> None:
        self._map.clear()


def is_readable(source: Any) -> bool:
    """Would a selector report it?"""
    return bool(_events(source, selectors.EVENT_READ))


def _events(source: Any, wanted: int) -> int:
    if isinstance(source, SimBell):
        return selectors.EVENT_READ if source.ringing else 0
    fd = source.fileno() if isinstance(source, Child) else source
    readable, writable, _ = select.select([fd], [fd] if wanted & selectors.EVENT_WRITE else [], [], 0)
    return (selectors.EVENT_READ if readable else 0) | (selectors.EVENT_WRITE if writable else 0)
