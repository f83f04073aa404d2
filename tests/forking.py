"""Processes that are spared their start: forked from one per test process that has imported what they need.

To import SQLAlchemy, and FastAPI for a server, takes 0.3 s to 1 s of a processor; a fork takes 10 ms. What is forked is a
process like another: its own pid, signals, files, environment and folder, and `python -m MODULE …` from its first line on.
A test that is about the start itself (what is imported, Python's own switches) uses `subprocess`.

The parent of all never opens a database, and has no threads. Where fork is not safe, `start` starts a Python each time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
_PRELOADED = (
    "gristmill.cli.commands",
    "gristmill.cli.exits",
    "gristmill.ledger.migrate",
    "gristmill.mill",
    "gristmill.worker",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "tests.worker.program",
)
_TO_SERVE = ("gristmill.api", "gristmill.api.serving", "gristmill.cli.serving", "gristmill.web", "uvicorn")
_OF_PYTHON = ("PYTHON", "LANG", "LC_", "MALLOC_", "LD_")  # variables that are read while Python itself starts
_STREAMS, _OPENED = (0, 1, 2), (sys.stdin, sys.stdout, sys.stderr)


# ---- the one who asks


class Forked:
    """What `subprocess.Popen` is, as far as tests use it. `stdout`, `stderr`: a file descriptor, PIPE, DEVNULL or None."""

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path | str | None,
        env: Mapping[str, str],
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._asking = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # one message: one answer
        with contextlib.ExitStack() as given:
            given.enter_context(theirs)
            nothing = given.enter_context(Path(os.devnull).open("r+b", buffering=0)).fileno()
            self.stdout, out = _end(given, stdout, 1, nothing)
            self.stderr, err = (None, out) if stderr == subprocess.STDOUT else _end(given, stderr, 2, nothing)
            order = given.enter_context(os.fdopen(os.memfd_create("order"), "wb"))
            order.write(json.dumps([self.args, str(cwd or Path.cwd()), dict(env)]).encode(errors="surrogateescape"))
            order.flush()
            socket.send_fds(_parent(), [b"."], [order.fileno(), theirs.fileno(), nothing, out, err])
        self.pid = int(self._heard(None))

    def _heard(self, timeout: float | None) -> str:
        self._link.settimeout(timeout)
        said = self._link.recv(20)
        if not said:
            raise RuntimeError("the process that forks for tests is gone; see its output above")
        return said.decode().strip()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._asking:
            if self.returncode is None:
                try:
                    self.returncode = int(self._heard(timeout))
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
                self._link.close()
            return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it says, until it ends."""
        said: dict[int, str] = {}
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        readers = [threading.Thread(target=lambda p=pipe: said.update({id(p): p.read()}), daemon=True) for pipe in pipes]
        until = time.monotonic() + timeout if timeout is not None else None
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if until is None else max(0.0, until - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        return said.get(id(self.stdout), ""), said.get(id(self.stderr), "")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since, or that is not told yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


Process = Forked | subprocess.Popen[str]


def start(
    *words: str,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    fresh: bool = False,
) -> Process:
    """`python -m …`, with nothing to read; what it says is text. `fresh`: a Python of its own, for who measures it."""
    env = os.environ if env is None else env
    if sys.platform == "linux" and _plain(env) and not fresh:
        return Forked(words, cwd, env, stdout, stderr)
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True)


def _plain(env: Mapping[str, str]) -> bool:
    """Would Python itself start as the process did that forks?"""
    names = {name for name in env.keys() | os.environ.keys() if name.startswith(_OF_PYTHON)}
    return all(env.get(name) == os.environ.get(name) for name in names)


def _end(given: contextlib.ExitStack, wanted: int | None, usual: int, nothing: int) -> tuple[IO[str] | None, int]:
    """Our end of a pipe, if one is wanted, and theirs."""
    if wanted == subprocess.PIPE:
        ours, theirs = os.pipe()
        given.callback(os.close, theirs)
        return os.fdopen(ours), theirs
    return None, {None: usual, subprocess.DEVNULL: nothing}.get(wanted, wanted or usual)


_started: list[Any] = []  # the link to the process that forks, and the process
_starting = threading.Lock()


def _parent() -> socket.socket:
    with _starting:
        link: socket.socket = _started[0] if _started else _start_parent()
        return link


def _start_parent() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.forking", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    _started[:] = [ours, process]
    atexit.register(stop)
    return ours


def stop() -> None:
    """The process that forks ends. Without this it would when ours does."""
    if _started:
        link, process = _started
        _started.clear()
        link.close()
        process.terminate()  # it has nothing to put away, and somebody else may hold the link
        process.wait(60)


# ---- the one that forks


class _Parent:
    """Forks for each order, and tells whoever gave it how that ended."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, socket.socket] = {}
        self._rung, bell = os.pipe()
        self._bell = bell
        os.set_blocking(bell, False)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then lets us go
        self._selector.register(orders, selectors.EVENT_READ)
        self._selector.register(self._rung, selectors.EVENT_READ)

    def next_child(self) -> list[Any] | None:
        """Returns in every process that is forked, with its order; in this one with None when there will be no more."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._orders:
                    said, given, _, _ = socket.recv_fds(self._orders, 1, 5)
                    if not said:
                        return None
                    if order := self._fork(given):
                        return order
                else:
                    os.read(self._rung, 1000)
                    self._tell()

    def _fork(self, given: list[int]) -> list[Any] | None:
        number, link, *streams = given
        with os.fdopen(number, "rb") as file:
            file.seek(0)
            order: list[Any] = json.loads(file.read().decode(errors="surrogateescape"))
        if "serve" in order[0]:
            preload(_TO_SERVE)
        teller = socket.socket(fileno=link)
        child = os.fork()
        if child == 0:
            self._close(teller)
            for ours, theirs in zip(_STREAMS, streams, strict=True):
                os.dup2(theirs, ours)
            os.closerange(3, 1024)
            return order
        for stream in streams:
            os.close(stream)
        self._children[child] = teller
        teller.sendall(f"{child}\n".encode())
        return None

    def _close(self, teller: socket.socket) -> None:
        """In a child: nothing of its parent's stays open, and signals are as they are when Python starts."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        for link in (self._orders, teller, *self._children.values()):
            link.close()
        os.close(self._rung)
        os.close(self._bell)

    def _tell(self) -> None:
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            with contextlib.suppress(BrokenPipeError), self._children.pop(child) as link:
                link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _opened(number: int, old: Any) -> Any:
    """As Python opens it when it starts: it looks at what kind of file it is."""
    stream: Any = open(number, old.mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
    by_line = not old.write_through and (number == 2 or os.isatty(number))
    stream.reconfigure(line_buffering=by_line, write_through=old.write_through)
    return stream


def _become(words: list[str], folder: str, env: dict[str, str]) -> None:
    """This process as it would be had it been started so."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.path[0] = folder
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = (_opened(n, old) for n, old in zip(_STREAMS, _OPENED, strict=True))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.argv = list(words)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def preload(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)
    gc.freeze()  # else to look for garbage in a fork would copy all of it


def main(number: int) -> None:
    preload(_PRELOADED)
    parent = _Parent(socket.socket(fileno=number))
    if order := parent.next_child():
        _become(*order)


if __name__ == "__main__":
    main(int(sys.argv[1]))
