"""The dashboard that `up` has beside its worker: `serve` in a process of its own, so that neither waits for the other.

The worker's process keeps the port, and starts the server again if that dies; the server ends with the worker's process,
however that ends.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from gristmill.cli.app import Place
from gristmill.errors import Invalid
from gristmill.listening import bind

log = logging.getLogger("gristmill.cli")

HOST = "127.0.0.1"  # for this machine only: another place is for `serve`, where somebody thinks of tokens
PORT = 8080
_NEEDS = ("fastapi", "jinja2", "uvicorn")  # looked for, not loaded: that would take the worker a second
_LOOK_EVERY = 1.0  # seconds between two looks whether it is alive
_PAUSES = (1.0, 5.0, 60.0)  # seconds before it is started again, by how often it has died at once
_LIVED = 60.0  # seconds after which a death is no longer one of a row
_GRACE = 10.0  # seconds that it has to end; requests may take half of that


class Dashboard:
    """A server on a port that is open already. `tick` looks after it."""

    def __init__(self, place: Place, listening: socket.socket, log_json: bool) -> None:
        self._place, self._listening, self._log_json = place, listening, log_json
        self._deaths = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = self._again_at = 0.0

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._listening.getsockname()[1]}/"

    def tick(self, now: float) -> float:
        """Starts it if it does not run; says in how many seconds to look again. A worker calls it: it never raises."""
        if self._process is not None and self._process.poll() is not None:
            self._deaths = 1 if now - self._started_at > _LIVED else self._deaths + 1
            self._rest(now, f"ended ({_how(self._process.returncode)})")
        if self._process is None and now >= self._again_at:
            try:
                self._process, self._started_at = self._start(), now
            except OSError as error:
                self._deaths += 1
                self._rest(now, f"cannot be started: {error}")
        return _LOOK_EVERY

    def _rest(self, now: float, what: str) -> None:
        pause = _PAUSES[min(self._deaths, len(_PAUSES)) - 1]
        log.warning("the dashboard %s; work goes on, and it is started again in %g s", what, pause)
        self._process, self._again_at = None, now + pause

    def _start(self) -> subprocess.Popen[bytes]:
        app = ["-A", self._place.app] if self._place.app else []
        opened = self._listening.fileno()
        return subprocess.Popen(
            # -P: as the command itself, it has its modules from where they are installed, not a `click.py` that is here.
            [sys.executable, "-P", "-m", "gristmill", *app, "serve", "--beside", str(opened)],
            env=os.environ | self._environment(),
            pass_fds=[opened],
            stdin=subprocess.PIPE,  # at its end, this process is gone
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the worker, whose last jobs one may want to watch
        )

    def _environment(self) -> dict[str, str]:
        """What was given on the command line; not on the other's, which everybody on this machine may read."""
        given = {
            "GRISTMILL_DATABASE_URL": self._place.url,
            "GRISTMILL_DELIVERY": self._place.delivery,
            "GRISTMILL_LOG_JSON": "1" if self._log_json else None,
        }
        return {name: value for name, value in given.items() if value}

    def stop(self) -> None:
        self._listening.close()
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def beside(place: Place, port: int | None, log_json: bool) -> Iterator[Dashboard | None]:
    """The dashboard, or None where there cannot be one, which is said."""
    try:
        made = Dashboard(place, _open(PORT if port is None else port), log_json)
    except Invalid as error:
        log.info("no dashboard: %s", error)
        yield None
        return
    try:
        yield made
    finally:
        made.stop()


def _open(port: int) -> socket.socket:
    if missing := [name for name in _NEEDS if find_spec(name) is None]:
        raise Invalid(f"it needs {' and '.join(missing)}; run: pip install 'gristmill[serve]'")
    return bind(HOST, port)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


# ---- in the process of the dashboard


def end_with_parent() -> None:
    """Ends this process when the one that started it is gone: its end of our standard input is closed then. The other
    has said where the dashboard is; only what goes wrong is said here."""
    logging.getLogger("gristmill").setLevel(logging.WARNING)
    threading.Thread(target=_wait_for_end, daemon=True, name="gristmill-parent").start()


def _wait_for_end() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)
