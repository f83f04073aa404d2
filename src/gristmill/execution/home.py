"""What a job may have changed in its process, and the next one must find as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from gristmill.execution.run import clean

LOG_LIMIT = 16 * 1024  # bytes of captured output kept with a failed attempt
_SIGNALS = [getattr(signal, f"SIG{name}") for name in ("INT", "TERM", "HUP", "QUIT", "ALRM", "CHLD", "PIPE", "USR1", "USR2")]
_LIMITS = [
    getattr(resource, name)
    for name in ("RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_NPROC")
    if hasattr(resource, name)
]

_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}  # no locale makes printing an error


class Home:
    """Its output, its folder and its umask are put back after every job, signals and timers before others run.

    What cannot be put back is told (`changed`). Environment, locale and modules are the application's: many set them up
    once, for all that runs in a process.

    stdout and stderr are one file, emptied between jobs. A private descriptor of it outlives whatever a job does to 1 and 2.
    """

    def __init__(self) -> None:
        self.forked = False
        os.register_at_fork(after_in_child=self._set_forked)
        self.output = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _out_of_the_way())
        self.folder = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        self.umask = os.umask(0o077)
        os.umask(self.umask)
        self.stdout: Any
        self.stderr: Any
        self.stdout, self.stderr = sys.stdout, sys.stderr
        self.stdout.reconfigure(line_buffering=True)  # what was printed before a kill must not be lost with a buffer
        for stream in (self.stdout, self.stderr):
            stream.reconfigure(**_TEXT)
        self._handlers, self._mask = _handlers(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._process = _process()

    def _set_forked(self) -> None:
        self.forked = True

    def captured(self) -> str | None:
        """The end of what the job printed."""
        for stream in (self.stdout, self.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        size = os.lseek(self.output, 0, os.SEEK_END)
        data = os.pread(self.output, LOG_LIMIT, max(0, size - LOG_LIMIT))
        return clean(data.decode("utf-8", "replace"), LOG_LIMIT) or None

    def restore(self) -> None:
        """Called after every job, so it looks at as little as it can."""
        if self.forked:
            os._exit(0)  # it came back from the job's function
        os.fchdir(self.folder)
        os.umask(self.umask)
        if sys.stdout is not self.stdout or sys.stderr is not self.stderr:
            sys.stdout, sys.stderr = self.stdout, self.stderr
        try:
            self.stdout.flush()
            if os.lseek(1, 0, os.SEEK_END):
                self._empty()
        except (OSError, ValueError):
            self._reopen()

    def changed(self) -> str | None:
        """Puts signals and timers back. Says in words what cannot be: asked some hundred times a second."""
        if any(signal.getitimer(signal.ITIMER_REAL)):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in _handlers().items():
            if handler is not self._handlers[number]:
                signal.signal(number, self._handlers[number])
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        now = _process()
        return None if now == self._process else ", ".join(name for name in now if now[name] != self._process[name])

    def _empty(self) -> None:
        if os.path.sameopenfile(1, self.output):
            os.ftruncate(self.output, 0)
        else:
            self._reopen()  # 1 is a file of the job's: not ours to touch

    def _reopen(self) -> None:
        """New streams on the private descriptor; 1 and 2 too, where the job left them closed."""
        for number in (1, 2):
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            os.dup2(self.output, number)
        os.ftruncate(self.output, 0)
        self.stdout = sys.stdout = open(self.output, "w", buffering=1, closefd=False, **_TEXT)  # noqa: SIM115
        self.stderr = sys.stderr = open(self.output, "w", buffering=1, closefd=False, **_TEXT)  # noqa: SIM115


def _out_of_the_way() -> int:
    """The lowest number for a descriptor of our own: not one that jobs count on, nor beyond the limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 100 if most == resource.RLIM_INFINITY else min(100, most // 2)


def _handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _process() -> dict[str, Any]:
    root = Path("/").stat()
    return {
        "limits": [resource.getrlimit(limit) for limit in _LIMITS],
        "open files": _nearly_all_used(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "user": (os.getuid(), os.geteuid(), os.getgid(), os.getegid()),
        "root folder": (root.st_dev, root.st_ino),
    }


def _nearly_all_used() -> bool:
    """The next descriptor is the lowest that is free: a number near the limit says that few are left."""
    try:
        number = os.dup(0)
    except OSError:
        return True
    os.close(number)
    return number > resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 / 4
