"""`gristmill serve` as a real process, and a client for it."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import uvicorn

from gristmill import Mill
from gristmill.api import app as made_of
from gristmill.api.serving import Server
from gristmill.listening import bind
from tests import forking
from tests.forking import Process

APP = Path(__file__).parents[1] / "cli" / "letters.py"
_ADDRESS = re.compile(r"(http://\S+?)/ serves")
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nobody speaks TLS here, and to read all authorities takes 30 ms per client
_OURS = ("GRISTMILL_", "DATABASE_URL")


class At:
    """Where a server is."""

    def __init__(self, address: str, database: str) -> None:
        self.address, self.database = address, database

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers=headers, timeout=60, trust_env=False, verify=PLAIN, **options)


class Served(At):
    """A server in a process of its own, and what it logged."""

    def __init__(self, process: Process, database: str) -> None:
        self.process = process
        self.log: list[str] = []
        said: Queue[str | None] = Queue()
        threading.Thread(target=self._listen, args=(said,), daemon=True).start()
        line = said.get(timeout=100)
        assert line is not None, "".join(self.log)
        super().__init__(line, database)

    def _listen(self, said: Queue[str | None]) -> None:
        assert self.process.stderr is not None
        with os.fdopen(os.dup(self.process.stderr.fileno()), errors="replace") as lines:  # the other is closed at the end
            for line in lines:
                self.log.append(line)
                if found := _ADDRESS.search(line):
                    said.put(found[1])
        said.put(None)


@contextmanager
def calling(*words: str, stderr: int, fresh: bool = False) -> Iterator[Process]:
    """The command as a process, without settings of whoever runs the tests; told to stop at the end."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    with forking.start("gristmill", *words, env=ours, stderr=stderr, fresh=fresh) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@contextmanager
def serving(database: str, *options: str, app: Path | str | None = APP, fresh: bool = False) -> Iterator[Served]:
    words = [*(["-A", str(app)] if app else []), "--database", database, "serve", "--port", "0", *options]
    with calling(*words, stderr=subprocess.PIPE, fresh=fresh) as process:
        yield Served(process, database)


@contextmanager
def serving_here(database: str, mill: Mill) -> Iterator[At]:
    """The same in a thread of this process, which takes a tenth of the time."""
    with in_thread(Server(made_of(mill, open=True, pages=True))) as port:
        yield At(f"http://127.0.0.1:{port}", database)


@contextmanager
def in_thread(server: uvicorn.Server) -> Iterator[int]:
    """Its port."""
    listening = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
