"""A server that answers late, in a process of its own, and how long documents take from it."""

from __future__ import annotations

import contextlib
import datetime
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clerk.config import Config
from clerk.fetchers.downloading import Outcome, download_batches
from clerk.fetchers.http import Client
from clerk.fetchers.http_index import HttpIndex
from clerk.fetchers.turns import Turns
from clerk.parts import Fetched, Found

LATENCY = 0.1
_FIRST = datetime.date(2000, 1, 1)
# Any path below /documents is a folder that has a page with links; whatever is posted is answered in a word.
_SERVER = """
import asyncio, pathlib, sys
latency, folder = float(sys.argv[1]), pathlib.Path(sys.argv[2])
names = sorted(path.name for path in folder.iterdir())
index = "".join(f'<a href="{name}">{name}</a>\\n' for name in names).encode()
async def serve(reader, writer):
    try:
        while head := await reader.readuntil(b"\\r\\n\\r\\n"):
            name = head.split()[1].decode().rpartition("/")[2]
            length = [line for line in head.lower().split(b"\\r\\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
            await asyncio.sleep(latency)
            kind, body = "text/html", index
            if head.startswith(b"POST"):
                kind, body = "text/plain", b"read elsewhere"
            elif name:
                kind, body = "application/pdf", (folder / name).read_bytes()
            head = f"HTTP/1.1 200 OK\\r\\nContent-Type: {kind}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
            writer.write(head.encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@contextlib.contextmanager
def serving(folder: Path, latency: float = LATENCY) -> Iterator[str]:
    """The files of a folder; its address, which ends without a slash."""
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(latency), folder], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.communicate()


def fill(folder: Path, documents: int) -> Path:
    """So many minutes, one a day, of 20 kB: nobody reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        day = _FIRST + datetime.timedelta(days=number)
        (folder / f"minutes-{day}.pdf").write_bytes(b"%PDF-1.4 of " + str(day).encode() + b"x" * 20_000)
    return folder


def download_all(*given: Any, **options: Any) -> Iterator[Outcome]:
    """Each outcome by itself."""
    with contextlib.closing(download_batches(*given, **options)) as batches:
        for batch in batches:
            yield from batch


def downloaded(base: str, folder: Path, documents: int, slots: int) -> float:
    """The seconds that so many of them take."""
    with Client(Config(allow_private=True, fetch_rate=1e9), pace=Turns()) as client:
        index = HttpIndex({"url": base}, client)
        days = [_FIRST + datetime.timedelta(days=number) for number in range(documents)]
        founds = [Found(f"{base}/minutes-{day}.pdf", "minutes", "M", str(day)) for day in days]
        index.get(founds[0], None, folder)
        begin = time.monotonic()
        outcomes = list(download_all(index, founds, lambda _: None, folder, slots))
        taken = time.monotonic() - begin
    assert all(isinstance(one, Fetched) for one in outcomes)
    assert len(outcomes) == documents
    return taken
