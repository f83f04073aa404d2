"""What is below HTTP: names are looked up once, the address is checked and that one connected to; every wait has an end.

A name that answers differently the second time therefore gains nothing, and neither does a redirect: each connection
passes through here. Imported late, since httpcore takes its time.
"""

from __future__ import annotations

import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import certifi
import httpcore

from clerk.errors import Transient
from clerk.fetchers.addresses import NotPermitted
from clerk.fetchers.turns import Limits, Stopped

Resolve = Callable[[str, int], list[str]]
_TRIED = 4  # addresses of one name
_SLICE = 1.0  # how soon a waiting read notices that it should stop


def look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@functools.cache  # reading all of them takes a tenth of a second
def tls() -> ssl.SSLContext:
    """The system's authorities, those of SSL_CERT_FILE, and Mozilla's for machines that have none."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


class Network(httpcore.NetworkBackend):
    def __init__(self, permitted: Callable[[str], bool], resolve: Resolve, limits: Limits, stop: threading.Event) -> None:
        self._permitted = permitted
        self._resolve = resolve
        self._limits = limits
        self._stop = stop
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        found = self._addresses(host, port)
        allowed = [address for address in found if self._permitted(address)]
        if not allowed:
            raise NotPermitted(host, found)
        failure: Exception | None = None
        for address in allowed[:_TRIED]:
            left = min(timeout or _SLICE, self._limits.deadline - time.monotonic())
            if left <= 0 or self._stop.is_set():
                break
            try:
                stream = self._sockets.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            return Stream(stream, self._limits, self._stop)
        raise failure or httpcore.ConnectTimeout(f"no time left to connect to {host}")

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            return self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise Transient(f"the name {host} cannot be looked up: {getattr(error, 'strerror', None) or error}") from error


class Stream(httpcore.NetworkStream):
    """A connection whose reads also end at the deadline of the request, and when the client is closed."""

    def __init__(self, inner: httpcore.NetworkStream, limits: Limits, stop: threading.Event) -> None:
        self._inner = inner
        self._limits = limits
        self._stop = stop

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        end = min(self._limits.deadline, time.monotonic() + (timeout or _SLICE))
        while not self._stop.is_set():
            left = end - time.monotonic()
            if left <= 0:
                raise httpcore.ReadTimeout("the answer takes too long")
            try:
                return self._inner.read(max_bytes, min(left, _SLICE))
            except httpcore.ReadTimeout:
                continue
        raise Stopped("fetching was stopped")

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._limits, self._stop)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
