"""What all of the facade shares: the ledger, the application, and how verbs and looks are run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import orjson

from gristmill import settings
from gristmill.demand import NOTHING, Demand, Labels, labels_of
from gristmill.errors import Invalid, NotFound, did_you_mean, quoted
from gristmill.limit import Limit
from gristmill.mill.lazy import lazy
from gristmill.pipeline import Task
from gristmill.registry import Registry
from gristmill.settings import worker_settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from gristmill.delivery import choose
    from gristmill.execution.locking import Lock, Locks
    from gristmill.ledger import limits, names
    from gristmill.ledger.store import Ledger, Tx
else:
    (choose,) = lazy("gristmill.delivery", "choose")
    limits, names = lazy("gristmill.ledger", "limits", "names")

_NOTE_EVERY = 60.0  # seconds
Do = Callable[..., Any]  # runs a verb in some transaction
P = ParamSpec("P")
T = TypeVar("T")


class Base:
    def __init__(
        self, ledger: Ledger, registry: Registry, delivery: str | None = None, redis_url: str | None = None
    ) -> None:
        self.ledger = ledger
        self.registry = registry
        self.redis_url = settings.redis_url(redis_url)
        self.delivery = choose.choose(ledger, settings.delivery_name(delivery), self.redis_url)
        ledger.announcer = self.delivery
        self._locks: Locks | None = None
        self._queue_ids: dict[str, int] = {}
        self._noted: dict[str, float] = {}  # queue: when to say again by which delivery its workers are told
        self._task_ids: dict[tuple[str, str], int] = {}
        self._pools: dict[tuple[Demand, ...], int] = {}
        self._usual: dict[tuple[str, str | None], tuple[float, tuple[int, int, int]]] = {}  # task, queue: until when; `_how`
        self._limit_ids: dict[tuple[str, str], int] = {}

    def transaction(self) -> AbstractContextManager[Connection]:
        """`with mill.transaction() as connection:` one transaction for an application's own tables (in the same database)
        and for jobs and runs asked for with `connection=`. It commits at the end of the block, or not at all."""
        return self.ledger.transaction()

    def lock(self, kind: str | int, item: str | int, *, timeout: float | None = None) -> Lock:
        """`with mill.lock("edition", 42):` or `async with`: as `ctx.lock` in a job, for programs beside them."""
        from gristmill.execution.locking import Locks, Program

        if self._locks is None:
            self._locks = Locks(self.ledger, worker_settings().debug)
        return self._locks.lock(kind, item, timeout, Program())

    def _doing(self, connection: Connection | None) -> Do:
        """How to run a verb: in a transaction of its own, or in the caller's."""
        if connection is None:
            return self.ledger.do
        self.ledger.check_guest(connection)
        return partial(self.ledger.join, connection)

    def _task_id(self, task: Task[Any, Any], spec: Mapping[str, Any], do: Do | None = None) -> int:
        key = (task.name, orjson.dumps(spec).decode())
        if key in self._task_ids:
            return self._task_ids[key]
        naming = self._naming(do)
        found: dict[tuple[str, str], int] = naming(names.add_tasks, [key])
        if naming == self.ledger.do:
            self._task_ids.update(found)
        return found[key]

    def _pool(self, task: Task[Any, Any], needs: Labels = (), do: Do | None = None) -> int:
        """Where jobs of a task stand in line: by what they, and those who asked for them, need of a machine."""
        added = labels_of(needs, "needs=…")
        wanted = tuple(d._replace(labels=tuple(sorted({*d.labels, *added}))) for d in task.demands)
        if wanted == (NOTHING,):
            return int(task.is_async)
        if wanted in self._pools:
            return self._pools[wanted] + task.is_async
        naming = self._naming(do)
        pool: int = naming(names.add_pool, wanted)
        if naming == self.ledger.do:
            self._pools[wanted] = pool
        return pool + task.is_async

    def _queue_id(self, name: str, do: Do | None = None) -> int:
        """The number of a queue that gets jobs. What is said of its delivery lets `doctor` compare."""
        number = self._known_queue(name, do)
        if time.monotonic() >= self._noted.get(name, 0.0):
            naming = self._naming(do)
            naming(names.note_delivery, number, self.delivery.name)
            if naming == self.ledger.do:
                self._noted[name] = time.monotonic() + _NOTE_EVERY
        return number

    def _known_queue(self, name: str, do: Do | None = None) -> int:
        """A queue must be one that a task names, or that was made by `set_queue`: a typo is not a new queue."""
        if not isinstance(name, str):
            raise Invalid(f"a queue is given by its name, not by {quoted(name)}")
        if name in self._queue_ids:
            return self._queue_ids[name]
        naming = self._naming(do)
        declared = self.registry.queues()
        found: dict[str, int] = naming(names.queues)
        if name not in found:
            if name not in declared:
                raise NotFound(f"unknown queue {quoted(name)}{did_you_mean(name, declared | found.keys())}")
            found = naming(names.add_queues, declared)
        if naming == self.ledger.do:
            self._queue_ids = found
        return found[name]

    def _limit_id(self, limit: Limit, do: Do | None = None) -> int:
        """The number of a limit, with what is declared about it."""
        key = (limit.name, limit.stored())
        if key not in self._limit_ids:
            naming = self._naming(do)
            number: int = naming(limits.declare, *key)
            if naming != self.ledger.do:
                return number
            self._limit_ids[key] = number
        return self._limit_ids[key]

    def _limit_keys(self, limit: Limit, keys: Iterable[str], do: Do | None = None) -> dict[str, int]:
        """The numbers of keys of a limit."""
        found: dict[str, int] = self._naming(do)(limits.keys_of, self._limit_id(limit, do), keys)
        return found

    def _naming(self, do: Do | None) -> Do:
        """Names are added in a transaction of their own: nobody should wait for the caller's. But SQLite has one at a time.

        What the caller may still undo is not remembered.
        """
        return do if do is not None and self.ledger.is_sqlite else self.ledger.do

    def _act(self, dry_run: bool, verb: Callable[Concatenate[Tx, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Does it, or with `dry_run` does it and takes it back; says what it said."""
        if not dry_run:
            return self.ledger.do(verb, *args, **options)
        said: list[T] = []

        def rehearse(tx: Tx) -> None:
            said.append(verb(tx, *args, **options))
            raise _Undo

        with contextlib.suppress(_Undo):
            self.ledger.do(rehearse)
        return said[-1]

    def _read(self, look: Callable[Concatenate[Tx, P], T], *args: P.args, **options: P.kwargs) -> T:
        with self.ledger.reading() as tx:
            return look(tx, *args, **options)

    def _check_queue(self, tx: Tx, queue: str | None) -> None:
        if queue is not None and queue not in (known := names.queues(tx)):
            raise NotFound(f"unknown queue {queue!r}{did_you_mean(queue, known)}")


class _Undo(Exception):
    """The end of a rehearsal: the transaction is rolled back."""
