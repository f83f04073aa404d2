"""Working: a worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.errors import Invalid, did_you_mean
from gristmill.mill.base import Base
from gristmill.mill.lazy import lazy
from gristmill.settings import worker_settings

if TYPE_CHECKING:
    from gristmill import worker as supervisor
    from gristmill.ledger import names
    from gristmill.worker import Until
else:
    (supervisor,) = lazy("gristmill", "worker")
    (names,) = lazy("gristmill.ledger", "names")


class Working(Base):
    def work(
        self,
        until: Until = None,
        *,
        queues: Sequence[str] = (),
        tickers: Sequence[Callable[[float], float]] = (),
        **settings: Any,
    ) -> None:
        """A worker in this process. `until`: None works until stopped, "idle" until nothing is ready, "drained" until
        nothing is queued or waits to be retried. Settings: see `gristmill.settings`."""
        if until not in (None, "idle", "drained"):
            raise Invalid(f"unknown until={until!r}{did_you_mean(str(until), ['idle', 'drained'])}")
        self.worker(queues=queues, tickers=tickers, **settings).run(until)

    def worker(
        self, *, queues: Sequence[str] = (), tickers: Sequence[Callable[[float], float]] = (), **settings: Any
    ) -> supervisor.Worker:
        chosen = worker_settings(**settings)
        if not self.registry.tasks:
            raise Invalid("this mill has no pipelines and no tasks, so there is nothing that it could work on")
        self._queue_ids = self.ledger.do(names.add_queues, self.registry.queues())
        for queue in queues:
            self._queue_id(queue)
        return supervisor.Worker(self.ledger, self.delivery, self.registry.sources(), chosen, queues, tickers)
