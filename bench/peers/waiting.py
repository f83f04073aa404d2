"""A peer whose client is asynchronous, for scenarios that are not. Only the standard library, as in common.py."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from bench.peers.common import Order, Peer

AT_ONCE = 100  # calls, where a peer has none for many jobs: more of them gain nothing on two processors
T = TypeVar("T")


class AsyncPeer(Peer):
    """Has one event loop for all calls, as a program has that is asynchronous itself."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self._loop = self.new_loop()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    async def open(self) -> None:
        """Connects, makes tables."""

    async def send(self, number: int) -> None:
        """What `enqueue` does."""
        raise NotImplementedError

    async def send_many(self, numbers: Sequence[int]) -> None:
        """What `enqueue_many` does; without a call for it, many calls are made at once."""
        for first in range(0, len(numbers), AT_ONCE):
            await asyncio.gather(*(self.send(number) for number in numbers[first : first + AT_ONCE]))

    async def start_fan(self, count: int) -> None:
        raise NotImplementedError

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def prepare(self) -> None:
        self._wait(self.open())

    def enqueue(self, number: int) -> None:
        self._wait(self.send(number))

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        self._wait(self.send_many(numbers))

    def fan(self, count: int) -> None:
        self._wait(self.start_fan(count))
