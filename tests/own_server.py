"""A PostgreSQL of somebody's own, which may be killed and started again."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests import servers


class OwnServer:
    """Killed: its postmaster and all that this has started, at once."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._binaries = servers.find_binaries(home)
        self._data = servers.make_cluster(self._binaries, home)
        self.process, self._port = servers.start_server(self._binaries, self._data, home / "log")
        self.url = f"postgresql://{servers.SUPERUSER}@127.0.0.1:{self._port}/postgres"

    def kill(self) -> None:
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for each in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait()
        psutil.wait_procs(started, servers.STOP_SECONDS)
        (self._data / "postmaster.pid").unlink()  # it says that the server is ready

    def start(self, wait: bool = True) -> None:
        """On the same port and the same files, which need recovery."""
        self.process = servers.spawn_server(self._binaries, self._data, self._home / "log", self._port)
        assert not wait or servers.is_ready(self.process, self._data)


@contextlib.contextmanager
def own_server() -> Iterator[OwnServer]:
    with tempfile.TemporaryDirectory(prefix="gristmill-pg-", ignore_cleanup_errors=True) as home:
        server = OwnServer(Path(home))
        try:
            yield server
        finally:
            servers.stop_server(server.process)
