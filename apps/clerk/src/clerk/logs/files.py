"""A file that several processes append to, whole line by whole line, and that any of them may turn over."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
from pathlib import Path


class AppendingFile(logging.Handler):
    """Every process has its own handle. Who finds the file too long renames it; the others notice and open the new one."""

    def __init__(self, path: Path, limit: int = 20 << 20, keep: int = 5) -> None:
        super().__init__()
        self.path = path.absolute()  # a job may change its folder
        self.limit = limit
        self.keep = keep
        self._handle: int | None = None
        self._complained = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._current(), f"{self.format(record)}\n".encode("utf-8", "replace"))
        except OSError as error:  # a log that cannot be written is no reason to stop the work
            if not self._complained:
                self._complained = True
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    sys.stderr.write(f"{self.path} cannot be written, so lines are missing in it: {error.strerror}\n")

    def close(self) -> None:
        self._forget()
        super().close()

    def _current(self) -> int:
        handle = self._handle
        if handle is not None and not self._is_current(handle):
            self._forget()
            handle = None
        if handle is None:
            handle = self._open()
        if os.fstat(handle).st_size >= self.limit and self._turn_over(handle):
            self._forget()
            handle = self._open()
        return handle

    def _open(self) -> int:
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return self._handle

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def _turn_over(self, handle: int) -> bool:
        """The lock is on the file that is renamed, so it is renamed once. Who does not get it writes on for a moment."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            if self._is_current(handle):
                for number in range(self.keep, 0, -1):
                    older = self.path.with_name(f"{self.path.name}.{number}")
                    newer = self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
                    with contextlib.suppress(FileNotFoundError):
                        newer.replace(older)
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
        return True

    def _forget(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None
