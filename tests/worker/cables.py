"""A cable between a worker and PostgreSQL that can be cut, held and mended, and that can lose an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from sqlalchemy.engine import make_url


class Cable:
    """Forwards connections to a server. Cut: they break and new ones are refused. Held: nothing moves any more."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._lose_commit = threading.Event()
        self.port = 0
        self.mend()

    def cut(self) -> None:
        with self._lock:
            for end in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            self._open.clear()
        self._accepting.join()

    def mend(self) -> None:
        """The same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()

    def hold(self) -> None:
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def lose_next_commit(self) -> None:
        """The next COMMIT reaches the server, its answer does not come back."""
        self._lose_commit.set()

    @property
    def lost_it(self) -> bool:
        return not self._lose_commit.is_set()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._server)
                with self._lock:
                    self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                lose = self._lose_commit.is_set() and b"COMMIT" in data
                if lose:  # before the server can answer
                    self._lose_commit.clear()
                    source.shutdown(socket.SHUT_RDWR)
                sink.sendall(data)
                if lose:
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cable(url: str) -> Iterator[tuple[Cable, str]]:
    """A cable to this database, and the URL at its other end."""
    parsed = make_url(url)
    assert parsed.host is not None
    made = Cable(parsed.host, parsed.port or 5432)
    try:
        yield made, parsed.set(host="127.0.0.1", port=made.port).render_as_string(hide_password=False)
    finally:
        made.release()
        made.cut()
