"""What changes, as it is committed: one reader of the ledger for all who follow, however many."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable
from itertools import islice
from typing import NamedTuple

import orjson
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gristmill.errors import DatabaseError
from gristmill.mill import Mill
from gristmill.model import to_json
from gristmill.watched import Event, Events

log = logging.getLogger("gristmill.api")
_PAGE = 500  # events that are read at once
_KEPT = 5000  # events that those who are slow may be behind
_EVERY = 0.25  # seconds between two looks, while somebody follows
_SILENCE = 15.0  # seconds after which a line is sent all the same: proxies close what is silent
_ADMITTED = 15.0  # seconds after which it is asked again whether somebody may look
_ASKING = 4  # of them at once: all others need threads too
_STUCK = 30.0  # seconds that one line may take to be sent
MOST = 1000  # followers of one process


class Told(NamedTuple):
    """An event, and how it is sent to all who want it."""

    event: Event
    text: str


Item = Told | str  # a text: what came before this place is not kept any more, so look at everything anew


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
        self.asking = asyncio.Semaphore(_ASKING)
        self.closed = False

    def close(self) -> None:
        """Everybody's stream ends: they will come back when there is a server again."""
        self.closed = True
        self._wake()

    async def newest(self) -> str:
        """The place of who has just come, and wants what happens from now on."""
        if self._last is not None and self._reads():
            return self._last
        return await run_in_threadpool(self._mill.last_event)

    async def follow(self, after: str, patience: Callable[[], float]) -> AsyncGenerator[list[Item], None]:
        """Events from a place on, each once and in the order of their commits; as many at a time as there are. None at
        all: nothing happened for as many seconds as the patience was. It ends for who is too slow."""
        self.followers += 1
        try:
            self._begin()
            while (at := self._place(after)) is None:
                if self.closed:
                    return
                page = await run_in_threadpool(self._mill.events, after, limit=_PAGE)
                if found := _items(page):
                    yield found
                after = page.last
                if not page.events and self._place(after) is None:  # we are at the end, and the reader is not there yet
                    await self._next(_EVERY)
                    yield []
            async for some in self._live(at, patience):
                yield some
        finally:
            self.followers -= 1

    async def _live(self, at: int, patience: Callable[[], float]) -> AsyncGenerator[list[Item], None]:
        while not self.closed:
            first = self._count - len(self._kept)
            if at < first:
                return
            if at == self._count:
                if not await self._next(patience()):
                    yield []
                continue
            some = list(islice(self._kept, at - first, at - first + _PAGE))
            at += len(some)
            yield some

    def _place(self, after: str) -> int | None:
        """The number of the event that comes after this place, if that is kept or about to come."""
        if after == self._last:
            return self._count
        for back, item in enumerate(reversed(self._kept)):
            if after == (item if isinstance(item, str) else item.event.id):
                return self._count - back
        return None

    async def _next(self, seconds: float) -> bool:
        """Waits until the reader has found something; False: it took too long."""
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    # ---- the one reader

    def _reads(self) -> bool:
        return self._reader is not None and not self._reader.done()

    def _begin(self) -> None:
        if self._reads():
            return
        if self.followers == 1:  # nobody looked meanwhile
            self._last = None
            self._kept.clear()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Whatever goes wrong, those who follow still wait for what comes next: it is told once, and tried again."""
        told = False
        while self.followers and not self.closed:
            if _server_stops():
                self.close()
                break
            more = False
            try:
                more = await self._look()
                told = False
            except Exception as error:
                if not told:
                    log.warning("cannot look for events: %s: %s", type(error).__name__, error)
                told = True
            if not more:
                await asyncio.sleep(_EVERY)

    async def _look(self) -> bool:
        """Keeps what is new; says whether there may be more."""
        if self._last is None:
            self._last = await run_in_threadpool(self._mill.last_event)
            self._wake()
            return False
        found = await run_in_threadpool(self._mill.events, self._last, limit=_PAGE)
        new = _items(found)
        self._last = found.last
        self._kept.extend(new)
        self._count += len(new)
        if new:
            self._wake()
        return len(new) >= _PAGE

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


def _server_stops() -> bool:
    """Mounted into somebody's application, nobody closes the hub: uvicorn waits for all answers before it tells anything
    to stop, and a stream has no end. What it hears signals with knows."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


def _items(page: Events) -> list[Item]:
    told: list[Item] = [Told(event, written(event)) for event in page.events]
    return [page.last, *told] if page.reset else told


class Stream(Response):
    """Server-sent events until the client leaves, is too slow, or may not look any more (`admitted`, which may ask the
    database)."""

    media_type = "text/event-stream"

    def __init__(self, hub: Hub, after: str, wanted: Callable[[Event], bool], admitted: Callable[[], bool]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.hub, self.last, self.wanted, self.admitted = hub, after, wanted, admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.create_task(self._send(send))
        refused = asyncio.create_task(self._refused())
        leaving = asyncio.create_task(_left(receive))
        tasks = (sending, refused, leaving)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, TimeoutError | OSError):
                log.warning("a stream of events ended: %s: %s", type(error).__name__, error)
        if results[0] is None or not refused.cancelled():
            with contextlib.suppress(TimeoutError):
                await _say(send, "", more=False)

    async def _send(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        due = clock() + _SILENCE
        await _say(send, f"retry: 2000\n\nid: {self.last}\n\n")
        async with contextlib.aclosing(self.hub.follow(self.last, lambda: max(0.0, due - clock()))) as followed:
            async for some in followed:
                if text := "".join(map(self._text, some)):  # in one piece: each costs as much as reading the event
                    await _say(send, text)
                if some:
                    self.last = last if isinstance(last := some[-1], str) else last.event.id
                if clock() >= due:  # who was sent nothing knows where to go on all the same
                    await _say(send, f"id: {self.last}\n\n")
                    due = clock() + _SILENCE

    def _text(self, item: Item) -> str:
        if isinstance(item, str):
            return f"id: {item}\nevent: reset\ndata: {{}}\n\n"
        return item.text if self.wanted(item.event) else ""

    async def _refused(self) -> None:
        """Waits until this client may not look any more."""
        admitted = True
        while admitted:
            await asyncio.sleep(_ADMITTED)
            async with self.hub.asking:
                with contextlib.suppress(DatabaseError, NoConnection):  # then there is nothing to be seen either
                    admitted = await run_in_threadpool(self.admitted)


async def _say(send: Send, text: str, more: bool = True) -> None:
    async with asyncio.timeout(_STUCK):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": more})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def written(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.name}\ndata: {orjson.dumps(to_json(event)).decode()}\n\n"
