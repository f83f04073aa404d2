"""Gives the orders: servers, a fresh database for each, a program's process, and its line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from bench import environments
from bench.peers.common import Order
from bench.peers.scenarios import family
from bench.plan import Step
from bench.systems import System
from tests.servers import create_database, drop_database, postgres_server
from tests.valkey import running_valkey

ROOT = Path(__file__).parent.parent
TOGETHER = 11  # orders at once, where time is not what is measured
OVERHEAD = 60.0  # seconds beside those that an order may measure for: starting, filling, waiting for the first job
PER_JOB = 150e-6  # and for each job, since they must be added
LATEST = 90.0  # seconds after the time is over, nothing goes on any more
Result = dict[str, Any]


@dataclass
class Servers:
    postgres: str
    redis: str  # without the number of a database
    numbers: queue.SimpleQueue[int]  # databases of Redis that nobody has

    @contextlib.contextmanager
    def databases(self, system: System) -> Iterator[dict[str, str]]:
        """Fresh ones, nobody else's; only what the system uses."""
        if system.store == "postgres":
            url = create_database(self.postgres, prefix="gristmill_bench_")
            try:
                yield {"postgres": url}
            finally:
                drop_database(url)
        elif system.store == "redis":
            with self._redis() as url:
                yield {"redis": url}
        else:
            yield {}

    @contextlib.contextmanager
    def _redis(self) -> Iterator[str]:
        number = self.numbers.get()
        url = f"{self.redis}/{number}"
        try:
            yield url
        finally:
            with redis.Redis.from_url(url) as client:
                client.flushdb()
            self.numbers.put(number)


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """PostgreSQL with fsync and synchronous_commit on, Valkey with an append-only file written out every second."""
    with postgres_server() as postgres, running_valkey() as valkey:
        valkey.client.config_set("appendfsync", "everysec")
        valkey.client.config_set("appendonly", "yes")
        numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(16):  # as many as a server has, unless it is told otherwise
            numbers.put(number)
        yield Servers(postgres, valkey.url.rpartition("/")[0], numbers)


def play(step: Step, given: Servers, until: float, rate: float = 0.0) -> Result:
    """One order. Whatever goes wrong is a result too: the others go on."""
    settings: dict[str, Any] = {**step.settings, "rate": rate} if step.measure.scenario == "load" else step.settings
    scratch = tempfile.TemporaryDirectory(prefix="gristmill-bench-", ignore_cleanup_errors=True)
    try:
        with scratch as folder, given.databases(step.system) as urls:
            order = Order(step.measure.scenario, folder, variant=step.system.variant, **{**settings, **urls})
            most = min(order.seconds + OVERHEAD + PER_JOB * order.count, until + LATEST - time.monotonic())
            return ask(step.system, order, most)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def ask(system: System, order: Order, most: float) -> Result:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONWARNINGS": "ignore"}
    command = [environments.python(system.program), "-m", f"bench.peers.{system.program}", order.text()]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=complained, text=True
        )
        try:
            process.wait(most)
        except subprocess.TimeoutExpired:
            return {"error": f"was not done after {most:.0f} s"}
        finally:
            end(process)
        said.seek(0)
        complained.seek(0)
        return read(process.returncode, said.read(), complained.read())


def end(process: subprocess.Popen[str]) -> None:
    """Its workers too, if it has not come to that: they are in sessions of their own."""
    if process.poll() is None:
        for number in family([process.pid]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()


def read(code: int, said: str, complained: str) -> Result:
    lines = said.strip().splitlines()
    if code or not lines:
        return {"error": complained.strip()[-1500:] or f"ended with {code}"}
    result: Result = json.loads(lines[-1])
    return result


def about(systems: list[System]) -> dict[str, Result]:
    """What each says of itself; also makes the environments, one after the other."""
    for system in systems:
        environments.python(system.program)
    # Some make their client when they are imported: they get addresses, where nobody listens.
    nowhere: Any = {"redis": "redis://127.0.0.1:1/0", "postgres": "postgresql://nobody@127.0.0.1:1/none"}
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as folder, ThreadPoolExecutor(TOGETHER) as pool:
        told = pool.map(lambda s: ask(s, Order("about", folder, variant=s.variant, **nowhere), OVERHEAD), systems)
        return {system.name: result for system, result in zip(systems, told, strict=True)}


def play_together(steps: list[Step], given: Servers, until: float) -> Iterator[tuple[Step, Result]]:
    """Several at once; none is begun when the time is over."""

    def one(step: Step) -> Result:
        return play(step, given, until) if time.monotonic() < until else {"skipped": "no time was left"}

    with ThreadPoolExecutor(TOGETHER) as pool:
        yield from zip(steps, pool.map(one, steps), strict=True)
