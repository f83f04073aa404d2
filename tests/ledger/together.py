"""Doing several things at the same moment, with real threads on real connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

T = TypeVar("T")


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Lets all calls go at once; their results, in the order of the calls. The first exception is raised."""
    return [ended() for ended in outcomes(*calls)]


def outcomes(*calls: Callable[[], T]) -> list[Callable[[], T]]:
    """The same, each result still wrapped: calling it gives the result or raises."""
    barrier = Barrier(len(calls))

    def at_once(call: Callable[[], T]) -> T:
        barrier.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result for future in [pool.submit(at_once, call) for call in calls]]


def times(count: int, call: Callable[[], T]) -> list[T]:
    return together(*[call] * count)


def split(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    return [items[part::parts] for part in range(parts)]
