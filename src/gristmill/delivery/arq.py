"""Arq as delivery: jobs are in Arq's own queues, `arq:queue:NAME`, and Arq's own worker takes them from there.

An Arq job only carries the ledger's number of a job. What Arq calls running it is to offer it to our worker, and to wait
until that is done with it: the claim, the child process and the ledger are the same as ever. JSON, never pickle.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

import orjson
from arq.connections import ArqRedis
from arq.constants import default_queue_name, in_progress_key_prefix, job_key_prefix
from arq.jobs import serialize_job
from arq.worker import Worker, func
from redis.asyncio import ConnectionPool

from gristmill.delivery.broker import BrokerBell
from gristmill.ledger.outbox import WINDOW, Due
from gristmill.priority import Priority

TASK = "gristmill"
_DAY = 86_400
_LOOK = 0.1  # seconds between two looks at a queue
_FRESH = 1.0  # seconds between two looks for new queues, and whether Redis is there
_GOODBYE = 1.0  # seconds for Arq to take note of what is over, at the end
_READ = 100  # messages that are looked at at once
_KEPT = 10.0  # seconds that Arq takes a job for running without being told so again
_AHEAD = {Priority.HIGH: 2000, Priority.NORMAL: 1000, Priority.LOW: 0}  # days by which a job's score comes earlier

logging.getLogger("arq.worker").setLevel(logging.CRITICAL)  # what it says, we say; a line for each job is too much


def queue_name(queue: str) -> str:
    return f"{default_queue_name}:{queue}"


class ArqBroker:
    name = "arq"

    def name_of(self, due: Due) -> str:
        return f"{due.job}:{due.attempt}"

    def add(self, pipeline: Any, queue: str, due: Sequence[Due]) -> None:
        """What Arq's `enqueue_job` does, for many at once and in the same transaction as the rest."""
        now = time.time_ns() // 1_000_000
        scores: dict[str, int] = {}
        for one in due:
            message = serialize_job(TASK, (one.job,), {}, None, now, serializer=orjson.dumps)
            pipeline.set(f"{job_key_prefix}{self.name_of(one)}", message, px=365 * _DAY * 1000)
            scores[self.name_of(one)] = now - _AHEAD[Priority(one.priority)] * _DAY * 1000
        pipeline.zadd(queue_name(queue), scores)

    def feed(self, bell: BrokerBell) -> None:
        asyncio.run(_Feeder(bell).run())


class _Feeder:
    """An Arq worker for each queue, all in one event loop."""

    def __init__(self, bell: BrokerBell) -> None:
        self.bell = bell
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._serving: list[FeedingWorker] = []
        self._over = False

    async def run(self) -> None:
        pool: Any = ConnectionPool.from_url(self.bell.server.url, **self.bell.server.options(3.0))
        redis = ArqRedis(pool, job_serializer=orjson.dumps, job_deserializer=orjson.loads)
        loop = asyncio.get_running_loop()
        try:
            await redis.ping()
            books = loop.run_in_executor(None, self._keep_books, loop)
            try:
                await self._serve(redis)
            finally:
                await self._end()
                self._over = True
                await books
        finally:
            await redis.aclose(close_connection_pool=True)
            await pool.disconnect()

    async def _serve(self, redis: ArqRedis) -> None:
        fresh = 0.0
        while not self.bell.closed.is_set():
            if time.monotonic() >= fresh:
                fresh = time.monotonic() + _FRESH
                for queue in await asyncio.to_thread(self.bell.queues):
                    if queue not in self._workers:
                        worker = FeedingWorker(self.bell, redis, queue)
                        self._serving.append(worker)
                        self._workers[queue] = asyncio.create_task(worker.main())
                await redis.ping()
                self.bell.here()
            for task in self._workers.values():
                if task.done():
                    task.result()
            await asyncio.sleep(_LOOK)

    async def _end(self) -> None:
        """What is over is told Arq; for the rest there is no time."""
        await _cancel(self._workers.values())
        self.bell.done([message.job for message in self.bell.held()])
        running = [task for worker in self._serving for task in worker.tasks.values()]
        if running:
            await asyncio.wait(running, timeout=_GOODBYE)
        await _cancel(running)

    def _keep_books(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tells Arq of messages that are over. In a thread: the worker's loop is not this one."""
        while True:
            back = self.bell.given_back(_LOOK * 5)
            for message in back:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(message.over.set)
            if self._over and not back:
                return
            if not back and self.bell.closed.is_set():
                time.sleep(_LOOK)  # nothing more is waited for


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Until they have ended: Arq takes a cancel that comes at the wrong moment for one of a job's, and goes on."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=_LOOK)
    await asyncio.gather(*tasks, return_exceptions=True)  # one error was raised already: the others say the same


class _Message:
    def __init__(self, job: int) -> None:
        self.job = job
        self.over = asyncio.Event()


class FeedingWorker(Worker):
    """Arq's worker for one queue, which takes no more than there is room for."""

    def __init__(self, bell: BrokerBell, redis: ArqRedis, queue: str) -> None:
        self.bell = bell
        self._offered: set[str] = set()
        super().__init__(
            [func(self.carry, name=TASK, keep_result=0, max_tries=10**9)],
            queue_name=queue_name(queue),
            redis_pool=redis,
            handle_signals=False,
            max_jobs=10_000,  # the bell says how many
            queue_read_limit=_READ,
            job_timeout=None,  # type: ignore[arg-type]  # the ledger's is the one; and Arq forgets what is running in 10 s
            poll_delay=_LOOK,
            health_check_interval=10,
            job_serializer=orjson.dumps,
            job_deserializer=orjson.loads,
            log_results=False,
        )

    async def carry(self, ctx: dict[str, Any], job: int) -> None:
        """What Arq runs: offers the job, and waits until it is over, so that Arq shows it as running meanwhile."""
        message = _Message(int(job))
        self._offered.add(ctx["job_id"])
        self.bell.offer(message.job, message, reserved=True)
        while not message.over.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(message.over.wait(), _KEPT / 3)
                return
            await self.pool.psetex(in_progress_key_prefix + ctx["job_id"], int(_KEPT * 1000), b"1")

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        """Arq leaves those that run in its queue: if all that was read are others', more is read the next time."""
        had, self.queue_read_limit = self.queue_read_limit, _READ
        for job_id in job_ids:
            if not self.bell.reserve():
                self.queue_read_limit = had
                return
            before = self.tasks.get(job_id.decode())
            await super().start_jobs([job_id])
            if self.tasks.get(job_id.decode()) is before:  # another has it
                self.bell.release()
        if len(job_ids) >= had:
            self.queue_read_limit = min(2 * had, WINDOW)

    async def run_job(self, job_id: str, score: int) -> None:
        try:
            await super().run_job(job_id, score)
        finally:
            if job_id not in self._offered:
                self.bell.release()
            self._offered.discard(job_id)
