"""Redis as a doorbell: one PUBLISH per transaction that made jobs ready. Whoever misses it finds its jobs by polling.

Redis may vanish at any moment. Then nothing fails and nobody waits: an enqueuer leaves it alone for some seconds after an
error, and a worker's bell comes back by itself, in a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from gristmill.delivery.inbox import Inbox
from gristmill.delivery.protocol import ALL, ANYWHERE, Bell, Doorbell, Heard, Seat
from gristmill.errors import Invalid
from gristmill.ledger.tx import Tx

log = logging.getLogger("gristmill.delivery")

_PATIENCE = 0.3  # seconds for one answer of Redis while somebody waits for their enqueue
_REST = 5.0  # seconds that it is left alone after it failed
_BACKOFF = (0.1, 0.5, 1.0, 2.0)  # between a bell's attempts to come back
_LOOK = 0.5  # seconds of listening before a bell sees that it was closed
_PING = 5.0  # seconds between two signs of life that a bell asks for
_MOST = 500  # queues in one message; more are rung for as all
_KEEPALIVE = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}


# ---- the server


class RedisServer:
    """Where Redis is, how to talk to it, and whether it is worth while to try."""

    def __init__(self, url: str) -> None:
        self.shown = shown(url)
        _check_options(urlsplit(url))
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError:
            raise Invalid("Redis needs its client; run: pip install 'gristmill[redis]'") from None
        self.errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self.wrong_password = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
        self._make: Any = redis.Redis.from_url
        self.url = url
        self._how: dict[str, Any] = {"socket_keepalive": True, "client_name": "gristmill"}
        if urlsplit(url).scheme != "unix":
            options = {getattr(socket, name): n for name, n in _KEEPALIVE.items() if hasattr(socket, name)}
            self._how["socket_keepalive_options"] = options
        else:
            del self._how["socket_keepalive"]
        # Once more: a connection that was kept may be of a server that is gone.
        self._retry: Any = lambda: Retry(NoBackoff(), 1)
        try:
            self.client: Any = self.connect(_PATIENCE)
        except (ValueError, TypeError):
            raise Invalid(f"the Redis URL {self.shown!r} is malformed; {_WRITE}") from None
        self._rests_until = 0.0
        self._said = False
        self._saying = threading.Lock()

    def connect(self, patience: float | None, **how: Any) -> Any:
        """A client of its own; `patience`: seconds for an answer, None: as long as it takes."""
        return self._make(self.url, retry=self._retry(), **{**self.options(patience), **how})

    def options(self, patience: float | None) -> dict[str, Any]:
        """How to connect, whoever does it."""
        return {"socket_connect_timeout": patience or 2.0, "socket_timeout": patience, **self._how}

    @property
    def database(self) -> int:
        return int(self.client.connection_pool.connection_kwargs.get("db") or 0)

    @property
    def rests(self) -> bool:
        """It failed a moment ago: nobody should wait for it again so soon."""
        return time.monotonic() < self._rests_until

    def failed(self, error: Exception) -> None:
        self._rests_until = time.monotonic() + _REST
        self.say(error)

    def say(self, error: Exception) -> None:
        """That it is away, once: who rings and who listens find out at the same time."""
        with self._saying:
            said, self._said = self._said, True
        if not said:
            log.warning("Redis %s cannot be used: %s; workers find their jobs by polling meanwhile", self.shown, error)

    def answered(self) -> None:
        self._rests_until = 0.0
        with self._saying:
            said, self._said = self._said, False
        if said:
            log.info("Redis %s is back", self.shown)

    def close(self) -> None:
        with contextlib.suppress(*self.errors):
            self.client.close()


_WRITE = "write redis://HOST:6379/0, or rediss:// for TLS"


def shown(url: str) -> str:
    """The URL as it may be shown: without its password, and without options, which may hold one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid(f"the Redis URL is malformed; {_WRITE}") from None
    if "@" in url.partition("://")[2][len(parts.netloc) :]:  # it may be part of the password that was read as a path
        raise Invalid(
            "the Redis URL has an '@' behind its first '/', '?' or '#'; in a password, write %2F, %3F, %23 and %40"
        )
    if parts.scheme not in ("redis", "rediss", "unix") or not (parts.netloc or parts.path):
        raise Invalid(f"the Redis URL begins with {parts.scheme[:20]!r}; {_WRITE}")
    who, at, host = parts.netloc.rpartition("@")
    user = who.partition(":")[0]
    return f"{parts.scheme}://{user}{':***' if ':' in who else ''}{at}{host}{parts.path}"


_OPTIONS = ("db", "username", "password")
_TLS_OPTIONS = (
    "ca_certs",
    "ca_path",
    "ca_data",
    "certfile",
    "keyfile",
    "password",
    "cert_reqs",
    "check_hostname",
    "ciphers",
)


def _check_options(parts: SplitResult) -> None:
    """Its client takes any others, and either fails over them when something is committed, or does not wait, or answer,
    as it should. It takes a database that is no number for the first."""
    known = [*_OPTIONS, *(f"ssl_{name}" for name in _TLS_OPTIONS if parts.scheme == "rediss")]
    if any(name not in known for name, _ in parse_qsl(parts.query, keep_blank_values=True)):  # it may be a secret
        raise Invalid(f"the Redis URL has an option that is not known; those of {parts.scheme}:// are {', '.join(known)}")
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not (database.isascii() and database.isdigit()):
        raise Invalid(f"the Redis URL ends with {database[:20]!r}, which is no number of a database; {_WRITE}")


# ---- the delivery


class RedisDelivery:
    """Everyone who makes jobs ready publishes the numbers of their queues; every worker has subscribed."""

    name = "redis"

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url: str | None = server.url
        # Channels know no database numbers, and two ledgers may share a server by those.
        self._channel = f"gristmill:{server.database}"

    def before_commit(self, tx: Tx, queues: Iterable[int]) -> None:
        """Nobody should hear of it before it is committed."""

    def notice(self, queue: int) -> None:
        """Redis is told after the commit."""

    def ahead(self, queue: int) -> bool:
        return False

    def after_commit(self, queues: Iterable[int]) -> None:
        if self.server.rests:
            return
        numbers = sorted(queues)
        message = ",".join(map(str, numbers if len(numbers) <= _MOST else [ALL]))
        try:
            self.server.client.publish(self._channel, message)
            self.server.answered()
        except self.server.errors as error:  # it is committed: nothing that happens here may look like a failure
            self.server.failed(error)

    def bell(self, seat: Seat = ANYWHERE) -> Bell:
        return self.listener(Inbox())

    def listener(self, inbox: Inbox) -> Bell:
        """A bell whose ringing goes into this inbox, from others too."""
        return _RedisBell(self.server, self._channel, inbox)

    def close(self) -> None:
        self.server.close()


class _RedisBell(Doorbell):
    """Listens in a thread, so that a worker never waits for Redis; silent while that is away."""

    def __init__(self, server: RedisServer, channel: str, inbox: Inbox) -> None:
        self._server = server
        self._channel = channel
        self._inbox = inbox
        self._closed = threading.Event()
        threading.Thread(target=self._keep_listening, name="gristmill-bell", daemon=True).start()

    def fileno(self) -> int:
        return self._inbox.fileno()

    def heard(self) -> Heard:
        return self._inbox.take()

    def close(self) -> None:
        self._closed.set()
        self._inbox.close()

    def _keep_listening(self) -> None:
        failures = 0
        while not self._closed.is_set():
            client = self._server.connect(None)
            try:
                for _ in self._listen(client):
                    if failures:
                        self._server.answered()
                    failures = 0
            except self._server.errors as error:
                if failures == 0 and not self._closed.is_set():
                    self._server.say(error)
                self._closed.wait(_BACKOFF[min(failures, len(_BACKOFF) - 1)])
                failures += 1
            finally:
                with contextlib.suppress(*self._server.errors):
                    client.close()

    def _listen(self, client: Any) -> Iterable[None]:
        """Listens until it is closed, or the connection is lost; yields when it has come about."""
        with client.pubsub() as subscription:
            subscription.subscribe(self._channel)
            heard_at = time.monotonic()
            asked_at = 0.0
            while not self._closed.is_set():
                message = subscription.get_message(timeout=_LOOK)
                now = time.monotonic()
                if message is not None:
                    heard_at = now
                    self._understand(message)
                    yield
                elif now - heard_at > 2 * _PING:
                    raise TimeoutError("no sign of life")
                elif now - asked_at > _PING:
                    asked_at = now
                    subscription.ping()

    def _understand(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._inbox.put({ALL})  # whatever was rung before, nobody here heard it
        elif message["type"] == "message":
            with contextlib.suppress(ValueError):  # not one of ours
                self._inbox.put({int(number) for number in message["data"].split(b",")})
