"""Working: a worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.demand import labels_of
from gristmill.errors import Invalid, Refused, did_you_mean
from gristmill.mill.lazy import lazy
from gristmill.mill.scheduling import Scheduling
from gristmill.model import Run
from gristmill.settings import worker_settings

if TYPE_CHECKING:
    from gristmill import relay as relaying
    from gristmill import worker as supervisor
    from gristmill.delivery import broker
    from gristmill.ledger import names
    from gristmill.worker import Until
else:
    relaying, supervisor = lazy("gristmill", "relay", "worker")
    (broker,) = lazy("gristmill.delivery", "broker")
    (names,) = lazy("gristmill.ledger", "names")


class Working(Scheduling):
    def work(
        self,
        until: Until = None,
        *,
        run: Run | int | None = None,
        queues: Sequence[str] = (),
        tickers: Sequence[Callable[[float], float]] = (),
        **settings: Any,
    ) -> None:
        """A worker in this process. `until`: None works until stopped, "idle" until nothing is ready, "drained" until
        nothing is queued or waits to be retried. `run`: only jobs of that run, until it ends; others may work on it too.
        One that works until stopped fires schedules too.
        Settings: see `gristmill.settings`."""
        if until not in (None, "idle", "drained"):
            raise Invalid(f"unknown until={until!r}{did_you_mean(str(until), ['idle', 'drained'])}")
        if run is not None and until is not None:
            raise Invalid("work on one run ends when that ends; leave out until=…")
        if run is not None and self.run(run.id if isinstance(run, Run) else run).terminal:
            return
        fires = until is None and run is None
        self.worker(run=run, queues=queues, tickers=tickers, schedules=fires, **settings).run(until)

    def worker(
        self,
        *,
        run: Run | int | None = None,
        queues: Sequence[str] = (),
        tickers: Sequence[Callable[[float], float]] = (),
        schedules: bool = False,
        **settings: Any,
    ) -> supervisor.Worker:
        """The same as an object, which `run()` runs; with `schedules` it fires them."""
        number = run.id if isinstance(run, Run) else run
        if number is not None and (found := self.run(number)).state == "waiting":
            raise Refused(f"run {number} has not begun: {found.subject!r} has an active run, which comes first")
        chosen = worker_settings(**settings)
        if not self.registry.tasks:
            raise Invalid("this mill has no pipelines and no tasks, so there is nothing that it could work on")
        self._queue_ids = self.ledger.do(names.add_queues, self.registry.queues())
        for task in self.registry.tasks.values():
            self._pool(task)  # known before its first job comes
        labels_of(chosen.labels, "labels")
        for queue in (*queues, *chosen.slots_of()):
            self._known_queue(queue)
        for queue in chosen.slots_of():
            if queues and queue not in queues:
                raise Invalid(f"queue {queue!r} has slots of its own, but is not among those of this worker; add it")
        if schedules:
            self.declare_schedules()
            tickers = [*tickers, self.scheduler().tick]
        relay = self.relay().running() if self.delivery.name in ("rq", "arq") else None
        sources = self.registry.sources()
        return supervisor.Worker(self.ledger, self.delivery, sources, chosen, queues, tickers, number, relay)

    def relay(self) -> relaying.Relay:
        """What publishes in Redis what is not there yet, for the deliveries `rq` and `arq`. Each worker has one."""
        if not isinstance(self.delivery, broker.BrokerDelivery):
            raise Invalid(f"delivery {self.delivery.name!r} publishes no jobs; a relay is for rq and arq")
        return relaying.Relay(self.delivery)
