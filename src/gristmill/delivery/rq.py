"""RQ as delivery: jobs are in RQ's own queues NAME:high, NAME and NAME:low, and RQ's own worker takes them from there.

An RQ job only carries the ledger's number of a job. The worker is RQ's, so that `rq info` and rq-dashboard show it, its
queues and what it is on; but instead of forking for a job it offers it to ours, whose claim, children and ledger do the
rest. JSON, never pickle.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Sequence
from typing import Any

from rq import Queue, Worker
from rq.exceptions import DequeueTimeout
from rq.executions import Execution
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from gristmill.delivery.broker import BrokerBell
from gristmill.identity import host
from gristmill.ledger.outbox import Due
from gristmill.priority import Priority

log = logging.getLogger("gristmill.delivery")

TASK = "gristmill.delivery.rq.run"
_SUFFIX = {Priority.HIGH: ":high", Priority.NORMAL: "", Priority.LOW: ":low"}
_LISTEN = 1  # seconds that it waits for a message before it looks around
_AGAIN = 0.1  # seconds between two tries to end that
_GOODBYE = 3.0  # seconds for RQ to take note of what is over, at the end
_TTL = 120  # seconds after which RQ forgets a job, or a worker, that gave no sign of life
_BEAT = 20.0

for _name in ("rq.worker", "rq.queue", "rq.job"):  # what it says, we say; a line for each job is too much
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def run(job: int) -> None:
    """What RQ's plain worker would call."""
    raise RuntimeError(
        f"job {job} is Gristmill's: start its worker with `gristmill work --delivery rq`, not with `rq worker`"
    )


def queue_names(queues: Sequence[str]) -> list[str]:
    """RQ takes from the first that has something: all high ones come first."""
    return [f"{queue}{suffix}" for suffix in _SUFFIX.values() for queue in queues]


class RqBroker:
    name = "rq"

    def __init__(self, client: Any) -> None:
        self._client = client
        self._queues: dict[str, Queue] = {}

    def name_of(self, due: Due) -> str:
        return f"{due.job}-{due.attempt}"  # RQ takes letters, digits and dashes

    def add(self, pipeline: Any, queue: str, due: Sequence[Due]) -> None:
        for one in due:
            target = self._queue(f"{queue}{_SUFFIX[Priority(one.priority)]}")
            job = Job.create(
                TASK,
                args=[one.job],
                id=self.name_of(one),
                connection=self._client,
                serializer=JSONSerializer,
                timeout=-1,  # its time limit is the ledger's
                result_ttl=0,
                description=f"gristmill job {one.job}, attempt {one.attempt}",
            )
            target.enqueue_job(job, pipeline=pipeline)

    def _queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = Queue(name, connection=self._client, serializer=JSONSerializer)
        return self._queues[name]

    def feed(self, bell: BrokerBell) -> None:
        name = f"gristmill-{host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        client = bell.server.connect(None, client_name=name)
        worker = FeedingWorker(bell, client, name)
        books = threading.Thread(target=worker.keep_books, name="gristmill-rq-books", daemon=True)
        books.start()
        try:
            worker.work()
        finally:
            worker.over.set()
            books.join(_GOODBYE)
            if not books.is_alive():  # else it still has something to tell RQ, over this connection
                client.close()
        if worker.lost is not None:
            raise worker.lost


class _Message:
    """An RQ job that this worker has taken, and RQ's record of that."""

    def __init__(self, job: Job, execution: Execution) -> None:
        self.job = job
        self.execution = execution


class FeedingWorker(Worker):
    """RQ's worker, whose horses are the children of ours. It takes several jobs at once, as many as there is room for."""

    max_connection_wait_time = 1.0
    log_job_description = False

    def __init__(self, bell: BrokerBell, client: Any, name: str) -> None:
        self.bell = bell
        self.over = threading.Event()
        self._told = threading.Lock()  # what RQ is told of this worker is said by one thread at a time
        self.lost: Exception | None = None
        self._names = queue_names(bell.queues())
        super().__init__(self._names, name=name, connection=client, serializer=JSONSerializer, worker_ttl=_TTL)

    # ---- not in a process of its own

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """RQ's thread that listens tries for ever, also for a worker that is gone."""
        if self.over.is_set():
            pubsub_thread.stop()
        else:
            super()._pubsub_exception_handler(exc, pubsub, pubsub_thread)

    def bootstrap(self, *args: Any, **options: Any) -> None:
        self.register_birth()  # type: ignore[no-untyped-call]
        self.subscribe()  # type: ignore[no-untyped-call]
        self.set_state(WorkerStatus.STARTED)

    def _install_signal_handlers(self) -> None:
        """Signals are for our worker, which stops this one."""

    def procline(self, message: str) -> None:
        """The process is not RQ's."""

    @property
    def dequeue_timeout(self) -> int:
        return _LISTEN

    @property
    def connection_timeout(self) -> int:
        return _LISTEN + 5

    # ---- its loop

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> Any:
        """One message, once there is room for it; None ends the loop."""
        while not self.bell.closed.is_set():
            try:
                self._serve()
                self.heartbeat()
                self.bell.here()
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()  # type: ignore[no-untyped-call]
                if not self._names:
                    self.bell.closed.wait(_LISTEN)
                if not self._names or not self.bell.has_room(_LISTEN):
                    continue
                found = self.queue_class.dequeue_any(
                    self._ordered_queues,
                    timeout,
                    connection=self.connection,
                    job_class=self.job_class,
                    serializer=self.serializer,
                    death_penalty_class=self.death_penalty_class,
                )
            except DequeueTimeout:
                continue
            except self.bell.server.errors as error:
                self.lost = error
                return None
            if found is not None:
                return found
        return None

    def _serve(self) -> None:
        """Queues that are new are listened to as well."""
        names = queue_names(self.bell.queues())
        if names != self._names:
            self._names = names
            self.queues = [self.queue_class(name, connection=self.connection, serializer=self.serializer) for name in names]
            self._ordered_queues = self.queues[:]
            self.connection.hset(self.key, "queues", ",".join(names))

    def execute_job(self, job: Job, queue: Queue) -> None:
        if self.bell.closed.is_set():
            queue.push_job_id(job.id, at_front=True)
            return
        number = _number(job)
        if number is None:
            log.warning("RQ job %s in queue %s is not Gristmill's: it is left among RQ's failed jobs", job.id, queue.name)
            self.handle_job_failure(job, queue, exc_string="not a job of Gristmill")
            return
        with self._told:
            execution = self.prepare_execution(job)
            self.execution = None
            self.set_current_job_id(job.id)
            self.bell.offer(number, _Message(job, execution))

    def set_state(self, state: str, pipeline: Any = None) -> None:
        busy = state == WorkerStatus.IDLE and self.bell.held()
        super().set_state(WorkerStatus.BUSY if busy else state, pipeline)

    # ---- what became of them, in a thread of its own

    def keep_books(self) -> None:
        """Tells RQ of messages that are over, and that the others are not."""
        beat = 0.0
        while not self.over.is_set():
            back = self.bell.given_back(_LISTEN)
            beat += _LISTEN
            with contextlib.suppress(*self.bell.server.errors):
                self._forget(back)
                if beat >= _BEAT:
                    beat = 0.0
                    self._keep(self.bell.held())
                if self.bell.closed.is_set():
                    self._wait_no_more()
            if self.bell.closed.is_set():
                self.over.wait(_AGAIN)
        with contextlib.suppress(*self.bell.server.errors):
            self._forget(self.bell.given_back())  # of what is still held, the next one keeps the books

    def _wait_no_more(self) -> None:
        """Whoever of us waits for a message is told that none has come."""
        known: Any = self.connection.client_list()
        for one in known:
            if one["name"] == self.name and "b" in one["flags"]:
                self.connection.client_unblock(int(one["id"]))

    def _forget(self, messages: Sequence[_Message]) -> None:
        if not messages:
            return
        with self._told, self.connection.pipeline() as pipeline:
            for message in messages:
                message.execution.delete(message.job, pipeline)
                pipeline.delete(message.job.key)
                self.increment_successful_job_count(pipeline)
            if not self.bell.held():
                self.set_current_job_id(None, pipeline)
                super().set_state(WorkerStatus.IDLE, pipeline)
            pipeline.execute()

    def _keep(self, messages: Sequence[_Message]) -> None:
        with self.connection.pipeline() as pipeline:
            self.heartbeat(pipeline=pipeline)
            for message in messages:
                message.execution.heartbeat(message.job.started_job_registry, _TTL, pipeline)
            pipeline.execute()


def _number(job: Job) -> int | None:
    """The ledger's number that a message carries; None: it is somebody else's."""
    try:
        if job.func_name == TASK and type(job.args[0]) is int:
            return int(job.args[0])
    except Exception as error:  # pickled, or damaged: anything can be wrong with it
        log.debug("an RQ job that cannot be read: %s", type(error).__name__)
    return None
