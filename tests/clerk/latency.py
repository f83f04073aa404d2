"""How long documents take from a server that answers late. `python -m tests.clerk.latency [DOCUMENTS]` prints the ratio."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clerk.config import Config
from clerk.fetchers.downloading import download_all
from clerk.fetchers.http import Client
from clerk.fetchers.http_index import HttpIndex
from clerk.fetchers.turns import Turns
from clerk.parts import Fetched, Found

LATENCY = 0.1
_SERVER = f"""
import asyncio
BODY = b"%PDF-1.4" + b"x" * 20_000
async def serve(reader, writer):
    try:
        while await reader.readuntil(b"\\r\\n\\r\\n"):
            await asyncio.sleep({LATENCY})
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(BODY) + BODY)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def measure(folder: Path, documents: int, slots: int) -> float:
    """The seconds that they take."""
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        base = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with Client(Config(allow_private=True, fetch_rate=1e9), pace=Turns()) as client:
            index = HttpIndex({"url": base}, client)
            index.get(Found(f"{base}/first", "minutes", "M", "2026-01-31"), None, folder)
            founds = (Found(f"{base}/{number}.pdf", "minutes", "M", "2026-01-31") for number in range(documents))
            begin = time.monotonic()
            outcomes = list(download_all(index, founds, lambda _: None, folder, slots))
            taken = time.monotonic() - begin
        assert all(isinstance(one, Fetched) for one in outcomes)
        assert len(outcomes) == documents
        return taken
    finally:
        server.kill()
        server.communicate()


def main() -> None:
    documents = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        one, many = measure(Path(folder), documents, 1), measure(Path(folder), documents, 20)
    print(f"{documents} documents, each after {LATENCY} s: one slot {one:.2f} s, 20 slots {many:.2f} s, {one / many:.1f} x")


if __name__ == "__main__":
    main()
