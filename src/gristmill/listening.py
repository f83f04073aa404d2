"""A port of this machine, opened for a server; apart from the server, whose libraries take a second to load."""

from __future__ import annotations

import socket

from gristmill.errors import Invalid

_UNREAD = 30_000  # milliseconds that what was sent may stay unread, where the system can be told (Linux)


def bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Those who connect inherit it. Else the body of an answer waits 40 ms for the client to confirm its head.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # who never reads would keep its connection for ever
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD)
            listening.bind((host, port))
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise Invalid(f"cannot listen on {host} port {port}: {error.strerror or error}; --port N takes another") from None
    return listening
