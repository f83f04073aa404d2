"""The seed's protocol over every delivery, and in-process for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill import (
    ArqQueueBackend,
    DatabaseQueueBackend,
    Invalid,
    Mill,
    MockQueueBackend,
    QueueBackend,
    RedisQueueBackend,
    RqQueueBackend,
    queue_backend,
)
from tests.apps import everyday
from tests.delivery.conftest import Opener
from tests.worker.helpers import drain


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Mill]:
    with Mill.open(sqlite_url, everyday.add, everyday.permanent, delivery="database") as mill:
        yield mill


async def service(backend: QueueBackend) -> str | None:
    """Knows the protocol only."""
    return await backend.enqueue("add", {"a": 2, "b": 3})


def test_a_service_enqueues_and_asks(opened: Opener, delivery: str) -> None:
    with opened() as mill:
        backend = queue_backend(mill)
        name = asyncio.run(service(backend))
        assert name == {"rq": "1-1", "arq": "1:1"}.get(delivery, "1")
        before = asyncio.run(backend.get_job_metadata(name))
        assert before is not None
        assert (before["state"], before["queue"], before["task"], before["delivery"]) == (
            "queued",
            "default",
            "add",
            delivery,
        )
        assert asyncio.run(backend.get_job_result(name)) is None
        drain(mill, slots=1)
        assert asyncio.run(backend.get_job_result(name)) == 5
        after = asyncio.run(backend.get_job_metadata(name))
        assert after is not None
        assert (after["state"], after["attempt"]) == ("completed", 1)


@pytest.mark.parametrize("name", ["99", "99:1", "99-1", "x", "", "1:x", "9" * 30])
def test_a_name_that_nobody_has(lite: Mill, name: str) -> None:
    backend = DatabaseQueueBackend(lite)
    assert asyncio.run(backend.get_job_metadata(name)) is None
    assert asyncio.run(backend.get_job_result(name)) is None


def test_a_job_is_part_of_the_callers_transaction(lite: Mill) -> None:
    backend = DatabaseQueueBackend(lite)
    with pytest.raises(ZeroDivisionError), lite.transaction() as connection:
        _ = asyncio.run(backend.enqueue("add", {"a": 1}, connection=connection)), 1 / 0
    assert lite.jobs() == []
    with lite.transaction() as connection:
        name = asyncio.run(backend.enqueue("add", {"a": 1}, connection=connection))
    assert [str(job.id) for job in lite.jobs()] == [name]


def test_of_a_job_that_is_not_committed_the_name_in_redis_is_not_known(opened: Opener, delivery: str) -> None:
    with opened() as mill, mill.transaction() as connection:
        name = asyncio.run(queue_backend(mill).enqueue("add", {"a": 1}, connection=connection))
        assert (name is None) == (delivery in ("rq", "arq"))


def test_in_process_jobs_run_in_order_when_told(lite: Mill) -> None:
    async def scenario(backend: MockQueueBackend) -> list[Any]:
        names = [await backend.enqueue("add", {"a": n}) for n in range(3)]
        names.append(await backend.enqueue("permanent", {}))
        assert await backend.drain() == 4
        return [await backend.get_job_result(name or "") for name in names]

    assert asyncio.run(scenario(MockQueueBackend(lite))) == [0, 1, 2, None]
    ended = [job.finished_at for job in sorted(lite.jobs(), key=lambda job: job.id)]
    assert ended == sorted(ended, key=lambda at: (at is None, at))


@pytest.mark.parametrize("kind", [ArqQueueBackend, RqQueueBackend, RedisQueueBackend])
def test_a_backend_for_another_delivery_is_refused(lite: Mill, kind: type[DatabaseQueueBackend]) -> None:
    with pytest.raises(Invalid, match=r"delivery='\w+', or take queue_backend"):
        kind(lite)


def test_what_is_wrong_is_said_at_once(lite: Mill) -> None:
    backend = DatabaseQueueBackend(lite)
    for wrong in (("ad", {}, "default"), ("add", {"c": 1}, "default"), ("add", {"a": 1}, "defualt")):
        with pytest.raises(Invalid):
            asyncio.run(backend.enqueue(wrong[0], wrong[1], queue_name=wrong[2]))
    assert lite.jobs() == []
