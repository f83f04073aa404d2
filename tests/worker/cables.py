"""A cable between a worker and PostgreSQL that can be cut, held and mended, and that can lose an answer."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

from sqlalchemy.engine import make_url

_PARSE = re.compile(rb"P.{4}(_pg3_\d+)\0([^\0]*)\0", re.DOTALL)  # psycopg gives a statement a name
# What commits: also statements that are whole transactions, of who has one job to enqueue and of an idle worker's claim.
_COMMITS = (b"COMMIT", b"WITH job AS (INSERT", b"WITH me AS MATERIALIZED")
_BIND = re.compile(rb"B.{4}\0(_pg3_\d+)\0", re.DOTALL)  # and from then on says only that


class Transcript:
    """What a client said on one connection since its last COMMIT."""

    def __init__(self) -> None:
        self._names: dict[bytes, bytes] = {}
        self.said = b""

    def add(self, data: bytes) -> bool:
        """Says whether something is committed by that."""
        self._names.update(_PARSE.findall(data))
        now = b"".join([data, *(self._names.get(name, b"") for name in _BIND.findall(data))])
        self.said += now
        return any(word in now for word in _COMMITS)

    def forget(self) -> None:
        self.said = b""


class Cable:
    """Forwards connections to a server. Cut: they break and new ones are refused. Held: nothing moves any more.

    Deaf: who listens for notifications hears of none.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._lose_commit = threading.Event()
        self._lose_of = b""
        self._losing: set[socket.socket] = set()  # ends at the server whose next answer gets lost
        self._listening: set[socket.socket] = set()  # ends at the server of connections that said LISTEN
        self._deaf = False
        self.unheard = 0  # how often a notification was dropped
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

    def deafen(self) -> None:
        self._deaf = True

    def lose_next_commit(self, of: bytes = b"") -> None:
        """The next COMMIT reaches the server, its answer does not come back. `of`: one of a transaction that says this."""
        self._lose_of = of
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
                for pump, *ends in ((self._pump, near, far), (self._pump_back, far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """What the client says."""
        transcript = Transcript()
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                if b"LISTEN " in data:
                    self._listening.add(sink)
                if not transcript.add(data):
                    sink.sendall(data)
                elif self._loses(transcript.said):
                    self._losing.add(sink)
                    sink.sendall(data)
                    return  # the answer ends both: until then the COMMIT may be on its way, and whoever asks may be first
                else:
                    transcript.forget()
                    sink.sendall(data)
        _hang_up(source, sink)

    def _loses(self, said: bytes) -> bool:
        with self._lock:
            lose = self._lose_commit.is_set() and self._lose_of in said
            if lose:
                self._lose_commit.clear()
            return lose

    def _pump_back(self, source: socket.socket, sink: socket.socket) -> None:
        """What the server says. To who only listens, it says nothing but notifications."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                if source in self._losing:
                    break
                if self._deaf and source in self._listening and data[:1] == b"A":
                    self.unheard += 1
                    continue
                sink.sendall(data)
        _hang_up(source, sink)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
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
