"""Workers as threads and as processes, and waiting for conditions: what the tests of the worker share."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import pytest

from gristmill import Mill
from gristmill.model import Job, Run
from gristmill.worker import Worker
from tests import forking
from tests.servers import ROOT

T = TypeVar("T")
PATIENCE = 30.0  # a loaded machine; nothing that works takes nearly so long
ONE_BY_ONE = {"rq": 6, "arq": 6}  # deliveries that hand over each job by a message of its own: so much slower


def eventually(condition: Callable[[], T | Literal[False] | None], what: str = "", within: float = PATIENCE) -> T:
    """The first answer that is true. Real processes do not tell when they change something, so it is asked often."""
    within *= slowness()
    deadline = time.monotonic() + within
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within:g} s: {what or condition}")
        time.sleep(0.01)


def slowness() -> int:
    return ONE_BY_ONE.get(os.environ.get("GRISTMILL_DELIVERY", ""), 1)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def all_end(mill: Mill, *jobs: int) -> list[Job]:
    """Waits until these jobs are terminal, and says what became of them."""

    def ended() -> list[Job]:
        found = [mill.job(number) for number in jobs]
        return found if all(job.finished_at is not None for job in found) else []

    return eventually(ended, f"jobs {jobs} end")


def run_ends(mill: Mill, run: int) -> Run:
    return eventually(lambda: (now := mill.run(run)).terminal and now, f"run {run} ends")


# ---- workers in the test's own process


def drain(mill: Mill, until: Literal["idle", "drained"] = "drained", **settings: Any) -> None:
    """A worker, here and now, until nothing is left; fails if that takes too long."""
    deadline = time.monotonic() + PATIENCE * slowness()

    def patience(now: float) -> float:
        assert now < deadline, "the worker does not come to an end"
        return 1.0

    mill.work(until=until, tickers=[patience], **settings)


@contextlib.contextmanager
def working(mill: Mill, **settings: Any) -> Iterator[Worker]:
    """A worker in a thread; stopped at once at the end of the block."""
    worker = mill.worker(**settings)
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    try:
        yield worker
    finally:
        if thread.is_alive():
            worker.stop()
            worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the worker does not stop"


# ---- workers as processes


class WorkerProcess:
    """A worker in a process of its own, so that it can be killed."""

    def __init__(
        self,
        url: str,
        apps: tuple[str, ...],
        log: Path,
        python_path: Path | None = None,
        fresh: bool = False,
        **options: Any,
    ) -> None:
        self.log = log
        order = json.dumps({"url": url, "apps": apps, **options})
        with log.open("ab") as output:
            self.process = forking.start(
                "tests.worker.program",
                order,
                cwd=ROOT,
                env=None if python_path is None else {**os.environ, "PYTHONPATH": str(python_path)},
                stdout=output.fileno(),
                stderr=subprocess.STDOUT,
                fresh=fresh,
            )
        self.pid = self.process.pid

    @property
    def children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self, within: float = PATIENCE) -> int:
        """The exit code."""
        return self.process.wait(within)


@contextlib.contextmanager
def worker_process(url: str, *apps: str, log: Path, **options: Any) -> Iterator[WorkerProcess]:
    """`options`: `until`, `queues`, settings of the worker; `python_path`: another checkout; `fresh`: not forked."""
    worker = WorkerProcess(url, apps, log, **options)
    try:
        yield worker
    except BaseException:
        print(worker.log.read_text(), file=sys.stderr)
        raise
    finally:
        for child in worker.children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        worker.kill()


def freeze(worker: WorkerProcess, mill: Mill) -> None:
    """Stops a process while it holds nothing that others wait for: frozen inside a transaction is a test of its own."""

    def harmlessly() -> bool:
        worker.send(signal.SIGSTOP)
        eventually(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
        if harmless := not _is_writing(mill):
            return harmless
        worker.send(signal.SIGCONT)
        return False

    eventually(harmlessly, "it stops between two transactions")


def _is_writing(mill: Mill) -> bool:
    """Is anyone inside a transaction on this database?"""
    if not mill.ledger.is_sqlite:
        with mill.ledger.engine.connect() as connection:
            return bool(connection.exec_driver_sql(_IN_TRANSACTION).scalar())
    with Path(f"{mill.ledger.path}-turn").open() as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


_IN_TRANSACTION = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND (state = 'active' OR state LIKE 'idle in transaction%%')"
)


def is_running(pid: int) -> bool:
    """Is there such a process, and not just what is left of it until its parent asks?"""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_of(path: Path) -> list[int]:
    """The second word of each line: what `hold` writes when it starts."""
    return [int(line.split()[1]) for line in lines(path)]


def assert_attempts_do_not_overlap(folder: Path) -> None:
    """`tick_until_told` wrote down when each attempt ran."""
    ticks = [(int(attempt), float(at)) for attempt, at in (line.split() for line in lines(folder / "ticks"))]
    assert sorted(ticks, key=lambda tick: tick[1]) == sorted(ticks), "two attempts ran at the same time"


def rss_mib(pid: int) -> float:
    return psutil.Process(pid).memory_info().rss / (1 << 20)


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def environment() -> dict[str, str]:
    """For programs of the tests: ours without what would lead them to another database."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GRISTMILL_", "DATABASE_"))}
