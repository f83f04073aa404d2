"""Clients that ask slowly, or do not read: they are let go, and nobody else waits for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from gristmill import Mill, listening
from gristmill.api import app, events, guard, serving
from tests.api.server import in_thread

MANY = 50


@contextmanager
def connected(port: int, text: bytes, many: int = MANY) -> Iterator[list[socket.socket]]:
    """So many clients that send this, and then nothing more."""
    clients = [socket.socket() for _ in range(many)]
    for client in clients:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(60)
        client.connect(("127.0.0.1", port))
        client.sendall(text.replace(b"\n", b"\r\n"))
    yield clients
    for client in clients:
        client.close()


def answers(port: int) -> bool:
    return httpx.get(f"http://127.0.0.1:{port}/api/me", timeout=60, trust_env=False).status_code == 200


def wait_until_gone(server: serving.Server) -> None:
    until = time.monotonic() + 60
    while server.server_state.connections:
        assert time.monotonic() < until, "they are still there"
        time.sleep(0.01)


def test_who_does_not_ask_is_let_go(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_ASKED_WITHIN", 2)
    server = serving.Server(app(mill, open=True))
    with in_thread(server) as port, connected(port, b"GET /api/me HTTP/1.1\nHost: 127."):
        assert answers(port)
        wait_until_gone(server)


@pytest.mark.parametrize("body", [b"", b"Content-Length: 9\n"], ids=["no body", "half a body"])
def test_who_asks_once_and_then_half_is_let_go(mill: Mill, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(serving, "_ASKED_WITHIN", 2)
    server = serving.Server(app(mill, open=True))
    with in_thread(server) as port, connected(port, b"GET /health HTTP/1.1\nHost: 127.0.0.1\n" + body + b"\n") as clients:
        for client in clients:
            assert client.recv(1000).split()[1] == b"200"
            client.sendall(b"GET /")
        assert answers(port)
        wait_until_gone(server)


def test_who_does_not_send_what_was_promised_is_told_so(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_SENT_WITHIN", 1)
    server = serving.Server(app(mill, open=True))
    asked = b"POST /api/jobs HTTP/1.1\nHost: 127.0.0.1\nContent-Type: application/json\nContent-Length: 99\n\n{"
    with in_thread(server) as port, connected(port, asked) as clients:
        assert answers(port)
        assert {client.recv(100).split()[1] for client in clients} == {b"408"}
        wait_until_gone(server)


def test_who_follows_and_never_reads_is_let_go(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_UNREAD", 1000)
    monkeypatch.setattr(events, "_STUCK", 1.0)
    made = app(mill, open=True)
    server = serving.Server(made)
    with in_thread(server) as port, connected(port, b"GET /api/events HTTP/1.1\nHost: 127.0.0.1\n\n", 10):
        while made.state.hub.followers < 10:
            time.sleep(0.01)
        for _ in range(600):
            mill.event("shop.sold", {"much": "x" * 7000})
        assert answers(port)
        while made.state.hub.followers:
            time.sleep(0.01)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # elsewhere the connection itself stays until they leave
            wait_until_gone(server)
