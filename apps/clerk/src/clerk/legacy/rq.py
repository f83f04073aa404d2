"""What the older clerk left in RQ's keys: coordinators that wait for jobs that failed, and those jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from clerk.masking import masked

_QUEUES: Final = ("high", "express", "fetch", "ocr", "compilation", "extraction", "deploy")
_DEFERRED: Final = tuple(f"rq:deferred:{queue}" for queue in _QUEUES)  # only coordinators depended on other jobs
_FAILED: Final = ("rq:failed:ocr",)
_BATCH: Final = 500


@dataclass(frozen=True)
class Cleared:
    deferred: int
    failed: int

    def lines(self, dry_run: bool = False) -> list[str]:
        verb = "Would clear" if dry_run else "Cleared"
        return [f"{verb} {self.deferred} deferred coordinators", f"{verb} {self.failed} failed OCR jobs"]


def clear(url: str, dry_run: bool = False) -> tuple[Cleared | None, str | None]:
    """What was cleared, or why not: without Redis all else goes on."""
    try:
        from redis import Redis, RedisError
    except ImportError:
        return None, "REDIS_URL is set, but redis is not installed, so old jobs stay there; run: pip install redis"
    try:
        with Redis.from_url(url, socket_connect_timeout=5, socket_timeout=30) as client:
            cleared = [sum(_clear(client, key, dry_run) for key in keys) for keys in (_DEFERRED, _FAILED)]
            return Cleared(*cleared), None
    except (RedisError, OSError, ValueError) as error:
        return None, f"Redis at {masked(url)} cannot be reached, so old jobs stay there: {error}"


def _clear(client: Any, registry: str, dry_run: bool) -> int:
    """A job leaves its registry last: if this is broken off, it is found again."""
    if dry_run:
        return int(client.zcard(registry))
    cleared = 0
    while jobs := [_text(job) for job in client.zrange(registry, 0, _BATCH - 1)]:
        for key, job in _dependents(client, jobs):
            client.srem(key, job)
        pipeline = client.pipeline(transaction=False)
        for job in jobs:
            pipeline.delete(*_keys(job))
        pipeline.zrem(registry, *jobs)
        cleared += pipeline.execute()[-1]
    return cleared


def _dependents(client: Any, jobs: list[str]) -> Iterator[tuple[str, str]]:
    """Where other jobs say that these wait for them."""
    for job in jobs:
        for other in client.smembers(_dependencies(job)):
            yield f"rq:job:{_text(other)}:dependents", job


def _keys(job: str) -> list[str]:
    return [f"rq:job:{job}", f"rq:job:{job}:dependents", _dependencies(job), f"rq:results:{job}", f"rq:executions:{job}"]


def _dependencies(job: str) -> str:
    return f"rq:job::{job}:dependencies"


def _text(value: bytes | str) -> str:
    """The server's client may decode, by its URL."""
    return value.decode() if isinstance(value, bytes) else value
