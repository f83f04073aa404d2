"""People who watch pages, as their browsers do it: the stream of events, and the refreshes that `app.js` would ask for.

`python -m bench.api.watchers ADDRESS PATH …`: one for each path, until it is told to stop; then it says how many refreshes
there were. A process of its own, since people's browsers are on other machines.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from urllib.parse import urlsplit

EVERY, LEAST, AGAIN = 1.2, 0.7, 0.9  # seconds, as in app.js: usually; between two; and once more after a change


class Watcher:
    """One page in one browser."""

    def __init__(self, address: str, path: str) -> None:
        self.where, self.path = urlsplit(address), path
        self.told = asyncio.Event()
        self.times: list[float] = []

    async def watch(self) -> None:
        following = asyncio.create_task(self._follow())
        try:
            reader, writer = await asyncio.open_connection(self.where.hostname, self.where.port)
            await self._ask(reader, writer, refresh=False)
            while True:
                was_told = await self._pause()
                began = time.monotonic()
                await self._ask(reader, writer)
                self.times.append(time.monotonic() - began)
                if was_told:  # the answer may be of just before the change
                    await asyncio.sleep(max(0.0, AGAIN - (time.monotonic() - began)))
                    await self._ask(reader, writer)
        finally:
            following.cancel()

    async def _pause(self) -> bool:
        """Until it is time to look again; says whether an event was the reason."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(EVERY):
                await self.told.wait()
        except TimeoutError:
            return False
        await asyncio.sleep(max(0.0, LEAST - (time.monotonic() - began)))
        self.told.clear()
        return True

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refresh: bool = True) -> None:
        more = "HX-Request: true\r\n" if refresh else ""
        writer.write(f"GET {self.path} HTTP/1.1\r\nHost: {self.where.netloc}\r\n{more}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: "))
        await reader.readexactly(length)

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection(self.where.hostname, self.where.port)
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: {self.where.netloc}\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"event: "):
                self.told.set()


async def main(address: str, paths: list[str]) -> None:
    watchers = [Watcher(address, path) for path in paths]
    tasks = [asyncio.create_task(watcher.watch()) for watcher in watchers]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("watching", flush=True)
    waiting = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done - {waiting}:
        task.result()
    times = sorted(time for watcher in watchers for time in watcher.times)
    told = {"refreshes": len(times), "p95": times[int(len(times) * 0.95)] if times else None, "used": time.process_time()}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
