"""A few bytes that a child and its supervisor share: which job the child is on, since when, and until when it may live; of
an event loop, how many it has begun.

Shared memory instead of messages: saying "I am on the next job" must cost nothing, since most jobs are short.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import sys
import tempfile
import time

_CURRENT = struct.Struct("=qd")  # job id (0: none), its start on the monotonic clock
_LEASE = struct.Struct("=d")  # the monotonic time at which the child must be gone, unless it is renewed
_LEASE_AT = 16
_BEGUN = struct.Struct("=q")  # jobs that an event loop has begun since it was made
_BEGUN_AT = 24
_SIZE = 64
_FAR = 1 << 20  # where a job that writes to every descriptor that it finds does no harm


def make_file() -> int:
    """On Linux one that nobody can cut: reading what is no longer there would end both processes."""
    if sys.platform == "linux":
        file = os.memfd_create("gristmill", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile(prefix="gristmill-") as opened:
            file = os.dup(opened.fileno())
    os.ftruncate(file, _SIZE)
    os.lseek(file, _FAR, os.SEEK_SET)
    if sys.platform == "linux":
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return file


class Status:
    """One child's shared bytes. The monotonic clock is the same for all processes of a machine."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _SIZE)
        self._counted = 0

    def begin(self, job: int) -> float:
        started = time.monotonic()
        _CURRENT.pack_into(self._map, 0, job, started)
        return started

    def pause(self) -> None:
        """The job has ended, and is being told of: should the process die of that it is still to blame, but not late."""
        _CURRENT.pack_into(self._map, 0, self.current()[0], math.inf)

    def end(self) -> None:
        _CURRENT.pack_into(self._map, 0, 0, 0.0)

    def current(self) -> tuple[int, float]:
        """The job that the child is on and its start, read twice: the other side may be just writing."""
        while True:
            first = self._map[: _CURRENT.size]
            if first == self._map[: _CURRENT.size]:
                job, started = _CURRENT.unpack(first)
                return job, started

    def count(self) -> None:
        """One more has begun."""
        self._counted += 1
        _BEGUN.pack_into(self._map, _BEGUN_AT, self._counted)

    def begun(self) -> int:
        value: int = _BEGUN.unpack_from(self._map, _BEGUN_AT)[0]
        return value

    def live_until(self, deadline: float) -> None:
        _LEASE.pack_into(self._map, _LEASE_AT, deadline)

    def deadline(self) -> float:
        value: float = _LEASE.unpack_from(self._map, _LEASE_AT)[0]
        return value

    def close(self) -> None:
        self._map.close()
