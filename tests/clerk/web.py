"""Web servers on loopback for the tests of fetching: honest ones, and ones that lie, stall and send one in circles."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Handler = http.server.BaseHTTPRequestHandler
Route = Callable[[Handler], None]
PDF = b"%PDF-1.4\n" + b"x" * 500 + b"\n%%EOF\n"


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many tests are about."""


class Web:
    """A server whose pages are functions. It remembers what it was asked, and how often it was connected to."""

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.routes: dict[str, Route] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.released = threading.Event()  # what stalls goes on
        web = self

        class Pages(Handler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                web.connections += 1
                super().setup()

            def do_GET(self) -> None:  # noqa: N802 - its name there
                web.asked.append(self.path)
                web.headers.append({name.lower(): value for name, value in self.headers.items()})
                route = web.routes.get(self.path) or web.routes.get(self.path.partition("?")[0])
                if route:
                    route(self)
                else:
                    answer(b"no such page", status=404)(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = _Server((host, 0), Pages)
        self.server.daemon_threads = True
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.host, self.port = host, self.server.server_address[1]
        self.scheme = "https" if tls else "http"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def url(self, path: str, host: str | None = None) -> str:
        return f"{self.scheme}://{host or self.host}:{self.port}{path}"

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answer(body: bytes = PDF, status: int = 200, **headers: str) -> Route:
    """Header names are written with `_` for `-`."""

    def route(page: Handler) -> None:
        page.send_response(status)
        for name, value in {"Content_Type": "application/pdf", "Content_Length": str(len(body)), **headers}.items():
            if value:
                page.send_header(name.replace("_", "-"), value)
        page.end_headers()
        with contextlib.suppress(OSError):
            page.wfile.write(body)

    return route


def redirect(to: str, status: int = 302) -> Route:
    return answer(b"", status, Location=to)


def raw(*pieces: bytes, wait: threading.Event | None = None) -> Route:
    """Bytes as they are, then the end of the connection; `wait`: before that."""

    def route(page: Handler) -> None:
        page.close_connection = True
        with contextlib.suppress(OSError):
            for piece in pieces:
                page.wfile.write(piece)
            page.wfile.flush()
            if wait is not None:
                wait.wait(60)

    return route


class Canary:
    """Takes connections on every address of this machine, and must see none."""

    def __init__(self) -> None:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        dual = family == socket.AF_INET6
        self._socket = socket.create_server(("::" if dual else "", 0), family=family, dualstack_ipv6=dual)
        self.port = self._socket.getsockname()[1]
        self.seen = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.seen += 1
                connection.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextlib.contextmanager
def canary() -> Iterator[Canary]:
    made = Canary()
    try:
        yield made
    finally:
        made.close()


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for this name, and that of a client which trusts it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    try:
        named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        named = x509.DNSName(name)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([named]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))
