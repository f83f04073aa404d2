"""A process that was forked for a test is as one that was started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import forking

TELL = """
import json, os, signal, sys, threading
told = {
    "arguments": sys.argv[1:], "name": __name__, "folder": os.getcwd(), "first": sys.path[0], "pid": os.getpid(),
    "variables": dict(os.environ), "files": sorted(int(n) for n in os.listdir("/dev/fd")),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "others": [str(signal.getsignal(n)) for n in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGUSR1)],
    "threads": threading.active_count(), "encodings": [s.encoding for s in (sys.stdin, sys.stdout, sys.stderr)],
    "streams": [[s.line_buffering, s.write_through, s.errors, s.seekable(), s.mode] for s in (sys.stdout, sys.stderr)],
    "again": sys.stdout.reconfigure(errors="replace"), "same": sys.stdout is sys.__stdout__, "read": sys.stdin.read(),
    "main": sys.modules["__main__"].__dict__ is globals(), "group": os.getpgid(0), "session": os.getsid(0),
}
print(json.dumps(told))
print("that is all", file=sys.stderr)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "teller.py").write_text(text)
        return tmp_path

    return write


def test_it_is_as_one_that_was_started(program: Callable[[str], Path]) -> None:
    folder = program(TELL)
    environment = {**os.environ, "GRISTMILL_SAID": "é \udcff"}
    command = [sys.executable, "-m", "teller", "a", "b c"]
    usual = subprocess.run(command, cwd=folder, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=True)
    with forking.start(
        "teller", "a", "b c", cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = process.communicate(timeout=60)
    expected, told = json.loads(usual.stdout), json.loads(out)
    assert told.pop("pid") == process.pid != expected.pop("pid")
    assert told == expected
    assert (err, process.wait()) == ("that is all\n", 0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import atexit, os; atexit.register(os._exit, 7)", 7),
        ("import threading, os; threading.Thread(target=lambda: os._exit(9)).start()", 9),
    ],
)
def test_its_end_is_told(program: Callable[[str], Path], text: str, code: int) -> None:
    with forking.start("teller", cwd=program(text), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.communicate(timeout=60)
    assert process.wait() == process.poll() == code


def test_it_is_waited_for_only_so_long_and_can_be_stopped(program: Callable[[str], Path]) -> None:
    folder = program("import signal\nprint('here', flush=True)\nsignal.pause()")
    with forking.start("teller", cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert process.poll() is None
        for wait in (lambda: process.wait(0.01), lambda: process.communicate(timeout=0.01)):
            with pytest.raises(subprocess.TimeoutExpired):
                wait()
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
        process.kill()  # it is gone, and nobody else is meant


def test_two_do_not_hold_each_others_pipes(program: Callable[[str], Path]) -> None:
    folder = program("import signal, sys\nprint('here', flush=True)\nsignal.pause() if sys.argv[1:] else None")
    with (
        forking.start("teller", cwd=folder, stdout=subprocess.PIPE) as first,
        forking.start("teller", "stay", cwd=folder, stdout=subprocess.PIPE) as second,
    ):
        assert second.stdout is not None
        assert second.stdout.readline() == "here\n"
        assert first.communicate(timeout=60)[0] == "here\n"
        second.kill()


def test_who_forks_goes_with_the_test_process(program: Callable[[str], Path]) -> None:
    code = (
        "import os, sys; from tests import forking; print(forking.start('teller', cwd=sys.argv[1]).wait(), flush=True);"
        " print(forking._started[1].pid, flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(program(""))]
    done = subprocess.run(command, cwd=forking.ROOT, capture_output=True, text=True)
    ended, parent = map(int, done.stdout.split())
    assert ended == 0
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(parent).wait(60)
