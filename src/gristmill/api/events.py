"""What changes, as it is committed: one reader of the ledger for all who follow, however many."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.errors import GristmillError
from gristmill.mill import Mill
from gristmill.model import to_json
from gristmill.watched import Event

log = logging.getLogger("gristmill.api")
_PAGE = 500  # events that are read at once
_KEPT = 5000  # events that those who are slow may be behind
_EVERY = 0.25  # seconds between two looks, while somebody follows
_SILENCE = 15.0  # seconds after which a line is sent all the same: proxies close what is silent
_STUCK = 30.0  # seconds that one line may take to be sent
MOST = 1000  # followers of one process

Item = Event | str  # a text: what came before this place is not kept any more, so look at everything anew


class Hub:
    """Reads events while somebody follows, and keeps the newest for them. All of it in one event loop."""

    def __init__(self, mill: Mill) -> None:
        self._mill = mill
        self._kept: deque[Item] = deque(maxlen=_KEPT)
        self._count = 0  # events ever kept: what is kept has the numbers from `_count - len(_kept)` on
        self._last: str | None = None  # up to where all was read
        self._moved = asyncio.Event()  # set, and replaced by a new one, after each look
        self._reader: asyncio.Task[None] | None = None
        self.followers = 0
        self.closed = False

    def close(self) -> None:
        """Everybody's stream ends: they will come back when there is a server again."""
        self.closed = True
        self._wake()

    async def follow(self, after: str | None) -> AsyncGenerator[Item | None, None]:
        """Events from a place on (None: from now on), each once and in the order of their commits. None instead of one:
        nothing happened for a while. It ends for who is too slow."""
        self.followers += 1
        try:
            self._begin()
            at = await self._now() if after is None else self._place(after)
            while at is None:
                page = await run_in_threadpool(self._mill.events, after, limit=_PAGE)
                if page.reset:
                    yield page.last
                for event in page.events:
                    yield event
                after = page.last
                at = self._place(after)
                if at is None and not page.events:  # we are at the end, and the reader is not there yet
                    await self._next(_EVERY)
                    at = self._place(after)
            async for item in self._live(at):
                yield item
        finally:
            self.followers -= 1

    async def _live(self, at: int) -> AsyncGenerator[Item | None, None]:
        while not self.closed:
            first = self._count - len(self._kept)
            if at < first:
                return
            if at == self._count:
                if not await self._next(_SILENCE):
                    yield None
                continue
            for item in list(self._kept)[at - first :]:
                yield item
                at += 1

    def _place(self, after: str | None) -> int | None:
        """The number of the event that comes after this place, if that is kept or about to come."""
        if after is not None and after == self._last:
            return self._count
        for back, item in enumerate(reversed(self._kept)):
            if after == (item if isinstance(item, str) else item.id):
                return self._count - back
        return None

    async def _now(self) -> int:
        while self._last is None and not self.closed:
            await self._next(_SILENCE)
        return self._count

    async def _next(self, seconds: float) -> bool:
        """Waits until the reader has found something; False: it took too long."""
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    # ---- the one reader

    def _begin(self) -> None:
        if self._reader is None or self._reader.done():
            self._last = None  # nobody looked meanwhile
            self._kept.clear()
            self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while self.followers and not self.closed:
            try:
                more = await self._look()
            except GristmillError as error:
                log.warning("cannot look for events: %s", error)
                more = False
            if not more:
                await asyncio.sleep(_EVERY)

    async def _look(self) -> bool:
        """Keeps what is new; says whether there may be more."""
        if self._last is None:
            self._last = await run_in_threadpool(self._mill.last_event)
            self._wake()
            return False
        found = await run_in_threadpool(self._mill.events, self._last, limit=_PAGE)
        new: list[Item] = [found.last, *found.events] if found.reset else list(found.events)
        self._last = found.last
        self._kept.extend(new)
        self._count += len(new)
        if new:
            self._wake()
        return len(new) >= _PAGE

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


class Stream(Response):
    """Server-sent events until the client leaves, or is too slow."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, after: str | None, wanted: Callable[[Event], bool]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.hub, self.after, self.wanted = hub, after, wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            results = await asyncio.gather(sending, leaving, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, TimeoutError | OSError):
                log.warning("a stream of events ended: %s: %s", type(error).__name__, error)

    async def _send(self, send: Send) -> None:
        async def say(text: str, more: bool = True) -> None:
            async with asyncio.timeout(_STUCK):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        await say("retry: 2000\n\n")
        last: str | None = None
        async with contextlib.aclosing(self.hub.follow(self.after)) as followed:
            async for item in followed:
                if item is None:  # who was sent nothing knows where to go on all the same
                    await say(f"id: {last}\n\n" if last else ":\n\n")
                elif isinstance(item, str):
                    await say(f"id: {item}\nevent: reset\ndata: {{}}\n\n")
                else:
                    last = item.id
                    if self.wanted(item):
                        await say(written(item))
        await say("", more=False)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def written(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.name}\ndata: {orjson.dumps(to_json(event)).decode()}\n\n"
