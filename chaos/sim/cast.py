"""Who plays: workers on hosts, with the processes of their children; and the record of what they really did."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import orjson

from chaos.sim.delivery import SimDelivery, SimSelector, is_readable
from chaos.sim.ledger import SimLedger
from chaos.sim.process import SimChild, SimProcess, Work
from chaos.sim.world import LEASE, POLL, Actor, Killed, World
from gristmill import Mill, housekeeping, reconciler, worker
from gristmill.errors import AppError, Unavailable
from gristmill.execution import children, crew
from gristmill.ledger.store import Ledger
from gristmill.ledger.workers import Registration
from gristmill.registry import Registry
from gristmill.settings import VERSION, WorkerSettings
from gristmill.worker import Worker


class Operator:
    """Whoever sits at the command line."""

    name = "operator"
    dead = suspended = False


class Post:
    """A worker's process on some host. When it is killed, what it held in memory is gone."""

    def __init__(self, cast: Cast) -> None:
        self.cast, self.world = cast, cast.world
        self.pid = cast.next_pid()
        self.name = f"w{self.pid}"
        self.host = f"host{cast.world.dice.randint(1, 2)}"
        self.dead = self.suspended = self.started = False
        self.next_at = self.world.now
        self.frozen_until = 0.0
        self.frozen_with_children = False
        recycle = self.world.dice.choice((0, 0, 0, 3))
        settings = WorkerSettings(
            slots=2, async_slots=3, lease=LEASE, poll=POLL, grace=3.0, cancel_grace=1.0, jobs_mib=1000, recycle=recycle
        )
        self.worker = Worker(cast.ledger(self), cast.delivery, ["simulated"], settings)
        self.worker._selector.close()
        self.worker._selector = SimSelector()  # type: ignore[assignment]
        cast.posts.append(self)

    @property
    def frozen(self) -> bool:
        return self.world.now < self.frozen_until

    def due(self) -> bool:
        bell = [] if self.worker._bell is None else [self.worker._bell]
        return self.world.now >= self.next_at or any(
            map(is_readable, [*bell, *self.worker.crew.children, self.worker._wake])
        )

    def step(self) -> None:
        before, self.cast.active = self.cast.active, self
        self.suspended = True  # nobody starts it once more while it is at it
        try:
            if self._ends():
                self._leave()
        except Killed:
            self.world.trace(self.name, "was killed on its way")
            self.close()
        finally:
            self.suspended = False
            self.cast.active = before

    def _ends(self) -> bool:
        """One round of its loop; says whether that was the last."""
        try:
            if not self.started:
                self.worker._start()
                self.started = True
            self.worker._wait(0)
            now = self.world.now
            if self.world.chance(self.world.nature.pauses / 4):
                self.world.others(self)
            if self.dead:
                raise Killed
            self.next_at = self.world.now + self.worker.tick(now)
            return self.worker._over(None)
        except (Unavailable, AppError) as error:
            # Without a database it does not start; and if its first child is killed, it cannot know why.
            if (isinstance(error, AppError) and "SIGKILL" in str(error)) or not self.started:
                return True
            raise  # the loop must not let that through

    def _leave(self) -> None:
        self.world.trace(self.name, "leaves")
        self.worker._finish()
        self.dead = True
        self.cast.posts.remove(self)

    def kill(self) -> None:
        """Its children die with it. If it was in the middle of something, it does not come back to it."""
        self.world.trace(self.name, "is killed")
        self.dead = True
        self.cast.posts.remove(self)
        for process in [process for process in self.cast.processes if process.post is self]:
            process.die(-9)
        if not self.suspended:
            self.close()

    def close(self) -> None:
        """What this program holds of it."""
        if self.worker._bell is not None:
            self.worker._bell.close()
        for child in self.worker.crew.children:
            cast(SimChild, child).abandon()
        os.close(self.worker._wake)
        os.close(self.worker._woken)


class Cast:
    """All of them, on one database."""

    def __init__(self, world: World, shared: Ledger, registry: Registry) -> None:
        self.world, self.registry = world, registry
        self.delivery = SimDelivery(world)
        self._shared = shared
        shared.announcer = self.delivery
        shared.clock = world.ledger_time
        self.posts: list[Post] = []
        self.processes: list[SimProcess] = []
        self.active: Post | None = None
        self.operator = Operator()
        self.mill = Mill(self.ledger(self.operator), registry)
        self.mill.ledger.announcer = self.mill.delivery = self.delivery
        self.began: dict[tuple[int, int], int] = {}
        self.ended: set[tuple[int, int]] = set()
        self._pids = 100
        self.given: dict[tuple[Any, ...], list[str]] = {}

    def ledger(self, actor: Actor) -> SimLedger:
        return SimLedger(self._shared, self.world, actor)

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def look(self, sql: str) -> list[Any]:
        """Reads behind everyone's back."""
        with self._shared.engine.connect() as connection:
            return list(connection.exec_driver_sql(sql).all())

    def gone(self, pid: int, birth: str) -> bool:
        return all(post.pid != pid for post in self.posts)

    def host(self) -> str:
        return self.active.host if self.active is not None else "elsewhere"

    def introduction(self, settings: WorkerSettings, queues: Any, delivery: str) -> Registration:
        assert self.active is not None
        me = (self.active.host, self.active.pid, "simulated")
        return Registration(*me, queues, settings.slots, VERSION, (), {}, settings.jobs_mib, delivery)

    # ---- what jobs give to others: the same in each attempt

    def items_of(self, work: Work, info: list[Any] | None) -> list[Any]:
        """As they go over the wire: key, arguments, stage, keys of limits. Keys say whose: several may give to one."""
        if work.part_of is not None or info is None or not info[2]:
            return []
        keys = self._keys(("items", work.run, work.stage, work.key), (0, 1, 2, 3, 5))
        limited = {stage: self.registry.task(task).limit for stage, task in info[2]}
        made = []
        for n, key in enumerate(keys):
            limits = {stage: limit.key({"n": n % 2}) for stage, limit in limited.items() if limit is not None}
            made.append((f"{info[0]}{key}", orjson.dumps({"n": n % 2}).decode(), None, *([limits] if limits else [])))
        return made

    def parts_of(self, work: Work) -> list[str]:
        return self._keys(("parts", work.job), (0, 1, 2, 4))

    def _keys(self, of: tuple[Any, ...], numbers: tuple[int, ...]) -> list[str]:
        if of not in self.given:
            self.given[of] = [f"k{n}" for n in range(self.world.dice.choice(numbers))]
        return self.given[of]

    def close(self) -> None:
        for post in list(self.posts):
            post.kill()

    @contextlib.contextmanager
    def on_stage(self) -> Iterator[None]:
        """While this lasts, the engine's code meets these processes, these hosts and this clock, and no real ones."""
        random_state = mock.patch("gristmill.retry.random.random", self.world.dice.random)
        with contextlib.ExitStack() as stack:
            stack.enter_context(random_state)
            stack.enter_context(mock.patch("time.monotonic", self.world.monotonic))
            for module, name, stand_in in self._stand_ins():
                stack.enter_context(mock.patch.object(module, name, stand_in))
            yield

    def _stand_ins(self) -> list[tuple[Any, str, Any]]:
        def popen(command: list[str], *, pass_fds: tuple[int, int], **_: Any) -> SimProcess:
            return SimProcess(self, *pass_fds)

        return [
            (crew, "Child", SimChild),
            (children, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=None)),
            (children, "kernel_kills", lambda: None),
            (worker, "introduction", self.introduction),
            (housekeeping, "gone", self.gone),
            (housekeeping, "host", self.host),
            (housekeeping, "near", lambda birth: True),
            (reconciler, "gone", self.gone),
            (reconciler, "host", self.host),
        ]
