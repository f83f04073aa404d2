"""Messages between a supervisor and its children: a length, then a JSON list whose first element names the message.

To the child: setup, jobs, recall, cancel, ack, stop. From the child: hello, broken, done, emit, progress, returned,
lock, changed. The first of each says what it speaks: a child may be of newer code than its supervisor, or of older.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Iterator
from socket import socket
from typing import Any

import orjson

from gristmill.settings import VERSION

SPOKEN = f"{VERSION}/2"  # another number when a message changes between two versions
FLUSH_EVERY = 0.005  # seconds that a finished job may wait for company before it is reported
FLUSH_AT = 200
AT_ONCE = 1 << 16  # bytes to read from a socket: room for more would be asked of the system, and given back, each time
_LENGTH = struct.Struct(">I")
_LONGEST = 512 << 20  # bytes: far more than the largest batch; a longer one is garbage


def updated(worker: str | None, child: str | None) -> str:
    """What is said where a worker and its child do not speak the same. None: one that did not say what it speaks."""
    which = f"it is of {worker or 'an older version'}, and {child or 'an older version'} is installed"
    return f"Gristmill was updated since this worker began ({which}): start the worker again"


def pack(message: list[Any]) -> bytes:
    body = orjson.dumps(message)
    return _LENGTH.pack(len(body)) + body


def heard(link: socket, seconds: float) -> bool:
    """Is there something to read, within some seconds? (`select` cannot do this for numbers above 1023.)"""
    watching = select.poll()
    watching.register(link, select.POLLIN)
    return bool(watching.poll(seconds * 1000))


class Unpacker:
    """Bytes in, whole messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        self._buffer += data
        start = 0
        while len(self._buffer) >= start + 4:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > _LONGEST:
                raise ValueError(f"a message of {length} bytes")
            if len(self._buffer) < start + 4 + length:
                break
            yield orjson.loads(memoryview(self._buffer)[start + 4 : start + 4 + length])
            start += 4 + length
        if start:
            del self._buffer[:start]
