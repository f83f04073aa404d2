"""A queue as services see it: three async methods, whatever carries the jobs.

For applications that are written against such a protocol and get their backend injected. The ledger is the truth behind all
of them; what differs is the delivery, and so the name that a job has there.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.errors import Invalid, NotFound
from gristmill.mill import Mill
from gristmill.model import Job, to_json
from gristmill.settings import DEFAULT_QUEUE

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

_NAME = re.compile(r"(\d{1,18})(?:[:-]\d+)?")  # a job's number, and perhaps the attempt


class QueueBackend(Protocol):
    """What a service needs of a queue."""

    async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = DEFAULT_QUEUE) -> str | None:
        """Adds a job; says what the backend calls it, None if that is not known yet."""
        ...

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        """What is known of a job, for diagnostics; None: there is none of this name."""
        ...

    async def get_job_result(self, backend_job_id: str) -> object | None:
        """The result of a completed job; None: it has none (yet)."""
        ...


class DatabaseQueueBackend:
    """No Redis: a job is called by its number in the ledger."""

    delivery = "database"

    def __init__(self, mill: Mill) -> None:
        if self.delivery != mill.delivery.name:
            raise Invalid(
                f"{type(self).__name__} is for delivery {self.delivery!r}, this mill has {mill.delivery.name!r};"
                f" open it with delivery={self.delivery!r}, or take queue_backend(mill)"
            )
        self.mill = mill

    async def enqueue(
        self,
        job_type: str,
        payload: dict[str, Any],
        *,
        queue_name: str = DEFAULT_QUEUE,
        connection: Connection | AsyncConnection | None = None,
    ) -> str | None:
        """With a `connection` (SQLAlchemy's, async or not) the job is part of its transaction, and published once that is
        committed: its name in Redis is not known then."""
        add = partial(self.mill.enqueue, job_type, args=payload, queue=queue_name)
        if connection is None:
            return await asyncio.to_thread(lambda: self._name(add()))
        if hasattr(connection, "run_sync"):
            job = await connection.run_sync(lambda inside: add(connection=inside))
        else:
            job = add(connection=connection)
        return self._name_before_commit(job)

    def _name(self, job: Job) -> str | None:
        return str(job.id)

    def _name_before_commit(self, job: Job) -> str | None:
        return str(job.id)

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        return await asyncio.to_thread(self._metadata, backend_job_id)

    async def get_job_result(self, backend_job_id: str) -> object | None:
        job = await asyncio.to_thread(self._find, backend_job_id)
        return None if job is None else job.result

    def _metadata(self, name: str) -> dict[str, Any] | None:
        job = self._find(name)
        if job is None:
            return None
        told = {"backend_job_id": self.mill.backend_job_id(job.id), "delivery": self.delivery}
        return {**to_json(job), **told}

    def _find(self, name: str) -> Job | None:
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        try:
            return self.mill.job(int(match[1]))
        except NotFound:
            return None


class RedisQueueBackend(DatabaseQueueBackend):
    """Redis as a doorbell: as with the database alone."""

    delivery = "redis"


class _Published(DatabaseQueueBackend):
    def _name(self, job: Job) -> str | None:
        """None: Redis is away, and the relay will publish it."""
        return self.mill.backend_job_id(job.id)

    def _name_before_commit(self, job: Job) -> str | None:
        return None


class RqQueueBackend(_Published):
    """RQ carries the jobs; they are called as RQ calls them."""

    delivery = "rq"


class ArqQueueBackend(_Published):
    """Arq carries the jobs; they are called as Arq calls them."""

    delivery = "arq"


class MockQueueBackend(DatabaseQueueBackend):
    """For tests: committed jobs are run in their order, in this process, by `drain()`. No Redis, no worker, no sleeping."""

    async def drain(self) -> int:
        """Runs all that is queued, and what comes of it; says how many attempts that took."""
        from gristmill.testing import drain

        return await asyncio.to_thread(drain, self.mill)


def queue_backend(mill: Mill) -> DatabaseQueueBackend:
    """The backend for a mill, by its delivery."""
    kinds = (DatabaseQueueBackend, RedisQueueBackend, RqQueueBackend, ArqQueueBackend)
    return next(kind for kind in kinds if kind.delivery == mill.delivery.name)(mill)
