"""The dashboard that `up` has beside its worker: real processes, as a person starts, stops and kills them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.conftest import APP, Cli, clean_environment
from tests.forking import Process
from tests.worker.helpers import eventually

_ADDRESS = re.compile(r"\d\d:\d\d:\d\d dashboard: (http://127\.0\.0\.1:\d+/)\n")


class Up:
    """`gristmill up` as a process, and what it said."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.said: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(iter(self.process.stderr.readline, ""))

    def says(self, words: str) -> str:
        return eventually(lambda: next((line for line in list(self.said) if words in line), None), f"{words!r} is said")

    @property
    def address(self) -> str:
        found = _ADDRESS.fullmatch(self.says("dashboard: "))
        assert found is not None, self.said
        return found[1]

    def dashboard(self) -> psutil.Process:
        """The process that serves."""

        def found() -> psutil.Process | None:
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(self.process.pid).children()
                return next((child for child in children if "--beside" in child.cmdline()), None)
            return None

        return eventually(found, "there is a process of the dashboard")

    def ends(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.listener.join(60)
        return code


@contextmanager
def up(cli: Cli, *options: object) -> Iterator[Up]:
    with cli.spawn("-A", APP, "up", "-n", 1, *options) as process:
        try:
            yield Up(process)
        finally:
            process.kill()


def get(address: str) -> httpx.Response:
    return httpx.get(address, trust_env=False, timeout=60)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def works(cli: Cli) -> None:
    """A job that is asked for now is done."""
    number = int(cli.call("-A", APP, "enqueue", "greet", "--arg", "name=x").out)

    def done() -> bool:
        job: dict[str, object] = cli.call("job", "show", number, "--json").json
        return job["state"] == "completed"

    eventually(done, f"job {number} is done")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_says_where_the_dashboard_is_and_serves_it_until_it_stops(made: Cli, number: signal.Signals) -> None:
    with up(made, "--port", 0) as running:
        assert "worker for all queues" in running.says("Ctrl-C stops it")
        assert get(running.address).status_code == 200
        [worker] = get(f"{running.address}api/workers").json()["items"]
        assert worker["pid"] == running.process.pid
        server = running.dashboard()
        assert running.ends(number) == 0
    assert gone(server)
    with pytest.raises(httpx.ConnectError):
        get(running.address)
    assert [line.split()[1] for line in running.said] == ["dashboard:", "worker", "stopped"]


def test_a_file_of_ones_own_is_not_taken_for_what_the_dashboard_needs(made: Cli) -> None:
    (made.folder / "jinja2.py").write_text("raise RuntimeError('not this one')")
    with up(made, "--port", 0) as running:
        assert get(running.address).status_code == 200


def test_ctrl_c_in_a_terminal_leaves_the_dashboard_until_the_last_job_is_done(made: Cli) -> None:
    started, release = made.fifo("started"), made.fifo("release")
    assert made.call("-A", APP, "start", "held", "s", "--arg", f"started={started}", "--arg", f"release={release}").code == 0
    with up(made, "--port", 0) as running:
        assert started.read_text() == "running"
        assert get(running.address).status_code == 200
        assert os.getpgid(running.dashboard().pid) != os.getpgid(running.process.pid)  # who a terminal sends it to
        running.process.send_signal(signal.SIGINT)
        assert get(f"{running.address}api/runs/1").json()["state"] == "in_progress"
        release.write_text("done")
        assert running.process.wait(60) == 0


def test_who_only_looks_makes_no_database(made: Cli, tmp_path: Path) -> None:
    said = made.call("-A", APP, "--database", f"sqlite:///{tmp_path}/typo.db", "serve", "--read-only", "--port", 0)
    assert (said.code, "there is no database" in said.err) == (69, True)
    assert list(tmp_path.glob("typo.db*")) == []


def test_a_port_that_is_taken_is_said_and_work_goes_on(made: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with up(made, "--port", port) as running:
            said = running.says("no dashboard: ")
            works(made)
            assert running.ends(signal.SIGTERM) == 0
    assert said[9:] == (
        f"no dashboard: cannot listen on 127.0.0.1 port {port}: Address already in use; --port N takes another\n"
    )


def test_without_the_extra_that_is_said_and_work_goes_on(made: Cli) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from gristmill.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "-A", str(APP), "up", "-n", "1"],
        cwd=made.folder,
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        running = Up(process)
        assert running.says("no dashboard: ")[9:] == "no dashboard: it needs uvicorn; run: pip install 'gristmill[serve]'\n"
        works(made)
        assert running.ends(signal.SIGTERM) == 0


def test_it_can_be_left_out(made: Cli) -> None:
    with up(made, "--no-dashboard") as running:
        works(made)
        assert running.ends(signal.SIGTERM) == 0
    assert [line.split()[1] for line in running.said] == ["worker", "stopped"]
    both = made.call("-A", APP, "up", "--no-dashboard", "--port", 8080)
    assert (both.code, both.err.count("\n")) == (64, 1)


def test_a_dashboard_that_dies_is_started_again_at_the_same_address_and_work_goes_on(made: Cli) -> None:
    with up(made, "--port", 0) as running:
        assert get(running.address).status_code == 200
        first = running.dashboard()
        first.kill()
        said = running.says("the dashboard ended")
        works(made)
        assert get(running.address).status_code == 200
        assert running.dashboard().pid != first.pid
        assert running.ends(signal.SIGTERM) == 0
    assert said[9:] == ("warning: the dashboard ended (killed by SIGKILL); work goes on, and it is started again in 1 s\n")


def test_a_worker_that_is_killed_takes_its_dashboard_along(made: Cli) -> None:
    with up(made, "--port", 0) as running:
        assert get(running.address).status_code == 200
        server = running.dashboard()
        running.process.kill()
        running.process.wait()
        eventually(lambda: gone(server), "the dashboard ends")


def test_the_worker_itself_loads_nothing_of_the_server(made: Cli) -> None:
    code = "import sys; from gristmill.cli.exits import run; run(); print(*sys.modules)"
    with subprocess.Popen(
        [sys.executable, "-c", code, "-A", str(APP), "up", "-n", "1", "--port", "0"],
        cwd=made.folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        running = Up(process)
        assert get(running.address).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        loaded = set(process.stdout.read().split())
    assert "gristmill.worker" in loaded
    assert not loaded & {"fastapi", "uvicorn", "starlette", "jinja2", "gristmill.api", "gristmill.web"}
