"""Asking an application's probes and checks, from the reconciler's side: one question at a time, each with a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from gristmill.errors import AppError
from gristmill.execution.frames import Unpacker, heard, pack

_TO_LOAD = 60.0  # seconds for the application


class Inquiry:
    """A process that has the application. One that dies or takes too long is replaced; the question counts as failed."""

    def __init__(self, sources: Sequence[str], database: str, patience: float = 60.0) -> None:
        self.probes: set[str] = set()  # tasks that have one
        self.checks: list[str] = []
        self.patience = patience  # seconds for one answer
        self._setup = {"sources": list(sources), "path": sys.path, "database": database}
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def ask(self, *question: Any) -> list[Any]:
        """The answer: `["error", text]` if there was none."""
        try:
            if self._process is None:
                self._start()
            return self._exchange(list(question), self.patience)
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            code = self.close()
            if isinstance(error, TimeoutError):
                return ["error", f"no answer within {self.patience:g} s"]
            return ["error", f"the process that was asked died ({_cause(code)})"]

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._link, self._unpacker = ours, Unpacker()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gristmill.execution.answering", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what the application prints is no answer of the command
                start_new_session=True,
            )
        try:
            hello = self._exchange(["setup", self._setup], _TO_LOAD)
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            raise AppError(f"the application could not be loaded to ask its probes and checks: {error}") from None
        if hello[0] == "broken":
            raise AppError(f"a child cannot load the application:\n{hello[1]}")
        self.probes, self.checks = set(hello[1]), hello[2]

    def _exchange(self, question: list[Any], patience: float) -> list[Any]:
        assert self._link is not None
        self._link.sendall(pack(question))
        until = time.monotonic() + patience
        while True:
            left = until - time.monotonic()
            if left <= 0 or not heard(self._link, left):
                raise TimeoutError("it took too long")
            data = self._link.recv(1 << 20)
            if not data:
                raise EOFError("it ended")
            if messages := list(self._unpacker.feed(data)):
                return messages[0]

    def close(self) -> int | None:
        """Ends the process, and what it started; says how it had ended by itself, if it had."""
        code = None
        if self._process is not None:
            died = self._has_died(within=0.2 if self._hung_up() else 0.0)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # before it is reaped: its number is still its own
            ended = self._process.wait()
            code = ended if died else None
        if self._link is not None:
            self._link.close()
        self._process = self._link = None
        return code

    def _hung_up(self) -> bool:
        """Its end of the line is closed: it is about to be gone, if it is not yet."""
        assert self._link is not None
        with contextlib.suppress(OSError):
            return heard(self._link, 0)
        return True

    def _has_died(self, within: float) -> bool:
        """Looked at without reaping, where that can be done."""
        assert self._process is not None
        until = time.monotonic() + within
        while True:
            if hasattr(os, "waitid"):
                died = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            else:
                died = self._process.poll() is not None
            if died or time.monotonic() >= until:
                return died
            time.sleep(0.01)


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return "it was killed" if code is None else f"exit code {code}"
