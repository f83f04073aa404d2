"""A server in this process: uvicorn, on one port."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

from fastapi import FastAPI
from starlette.types import Lifespan

from gristmill.api.application import app
from gristmill.api.events import Hub
from gristmill.errors import Invalid
from gristmill.listening import bind
from gristmill.metrics import Family
from gristmill.mill import Mill

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ModuleNotFoundError:
    raise Invalid("a server needs uvicorn; run: pip install 'gristmill[serve]'") from None

log = logging.getLogger("gristmill.api")
_THREADS = 16  # requests that are at work at once: each has a connection to the database
_ASKED_WITHIN = 30  # seconds from a connection, or the answer before, to the end of a request's head
_GRACE = 5  # seconds that requests may go on when it is told to stop


def run(
    mill: Mill,
    host: str,
    port: int,
    *,
    hosts: Sequence[str] = (),
    read_only: bool = False,
    token: str | None = None,
    metrics: Sequence[Callable[[], Iterable[Family]]] = (),
    where: str = "",
    tell: Callable[[str], None] = log.info,
    listening: socket.socket | None = None,
) -> None:
    """Serves until SIGTERM or Ctrl-C. `token`: an admin's, without which nobody gets in; `metrics`: an
    application's own; `tell`: says where it is; `listening`: what somebody else has opened there already."""
    is_open = not token and check_place(mill, host)
    made = app(mill, open=is_open, read_only=read_only, hosts=[host, *hosts], token=token, metrics=metrics, pages=True)
    listening = listening or bind(host, port)
    port = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    tell(f"http://{shown}:{port}/ serves {where}{', read-only' if read_only else ''}; Ctrl-C stops it")
    server = Server(made)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn has its own while it serves, and sends itself these at the end
        signal.signal(number, server.stop)
    server.run(sockets=[listening])
    log.info("stopped")


@contextmanager
def in_thread(mill: Mill, host: str, port: int) -> Iterator[str]:
    """The same in a thread, on this machine only, while something else is done here; gives its address."""
    if not is_loopback(host):
        raise Invalid(f"{host!r} is not this machine; `serve` is for others")
    listening = bind(host, port)
    server = Server(app(mill, open=check_place(mill, host), hosts=[host], pages=True))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="gristmill-server", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(2 * _GRACE)
        listening.close()


class Protocol(H11Protocol):
    """Lets go who connects and does not ask: each would keep a file of this process, of which there are not many."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _time_head(self) -> None:
        """Nobody is at work for this connection: it has so long to send what is left of one request, and the next head."""
        if self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE:
            self._stop_waiting()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(_ASKED_WITHIN, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Server(uvicorn.Server):
    """Ends those who follow events when it is told to stop: they would never leave by themselves."""

    def __init__(self, made: FastAPI) -> None:
        self.hub: Hub = made.state.hub
        made.router.lifespan_context = _with_threads(made.router.lifespan_context)
        super().__init__(
            uvicorn.Config(
                made,
                http=Protocol,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE,
                lifespan="on",
            )
        )

    def stop(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hub.close()
        await super().shutdown(sockets)


def _with_threads(lifespan: Lifespan[Any]) -> Lifespan[Any]:
    """What an application does when this starts and stops, and so many threads for its requests."""

    @asynccontextmanager
    async def both(made: Any) -> AsyncIterator[Any]:
        from anyio.to_thread import current_default_thread_limiter

        current_default_thread_limiter().total_tokens = _THREADS
        async with lifespan(made) as state:
            yield state

    return both


def check_place(mill: Mill, host: str) -> bool:
    """Whether this may be open to all who reach it: only where nobody else does, and while there was never a token."""
    if is_loopback(host):
        return not mill.tokens(every=True)
    if not mill.tokens():
        raise Invalid(
            f"there is no token, so anybody who reaches {host!r} could do everything;"
            " make one first: gristmill token create NAME --role admin"
        )
    return False


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
