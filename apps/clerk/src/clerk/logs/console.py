"""Lines on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys


class Console(logging.Handler):
    """Asks for stderr each time: a job's process gets a new one whenever a job broke the old."""

    def emit(self, record: logging.LogRecord) -> None:
        self.write(self.format(record))

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
