"""What a row of the table is played with: a fresh database, workers that may be killed, and dice with a seed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from chaos.record import note
from gristmill import Mill
from gristmill.execution.load import load_sources

ROOT = Path(__file__).parent.parent
LEASE, POLL = 2.0, 0.25  # of the workers, unless a row says otherwise
SWEEP = 1.0  # seconds between two looks of a worker for lost ones


class Violation(Exception):
    """Something happened that must not."""


class Impossible(Exception):
    """This machine does not allow what the row needs."""


@dataclass
class Play:
    """One row on one database."""

    seed: int
    full: bool
    folder: Path  # of the record, and of everything else
    url: str
    database: str  # "SQLite" or "PostgreSQL"
    stack: contextlib.ExitStack
    apps: tuple[str, ...] = ("chaos.apps",)
    dice: random.Random = field(init=False)
    workers: int = 0  # so many were started
    missed: list[str] = field(default_factory=list)  # bounds that a short form did not reach
    _mill: Mill | None = None
    _subjects: int = 0  # so many have had a run

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    @property
    def mill(self) -> Mill:
        """The player's own, for looking and for enqueuing."""
        if self._mill is None:
            self._mill = self.stack.enter_context(open_mill(self.url, *self.apps))
        return self._mill

    def reach(self, reached: bool, what: str) -> None:
        """A bound on how fast something is. Only the full form fails by it: machines are noisy, and short forms short."""
        if not reached and self.full:
            raise Violation(what)
        if not reached:
            self.missed.append(what)

    def pick(self, short: int, full: int) -> int:
        """How many of something."""
        return full if self.full else short

    def start(self, items: int, runs: int = 1, **args: Any) -> list[int]:
        """Runs of the fan, one per subject that has had none, acknowledged once they are committed."""
        given = {"folder": str(self.folder), "items": items, **args}
        subjects = [f"{self.seed}-{n}" for n in range(self._subjects, self._subjects + runs)]
        self._subjects += runs
        return [self.acknowledge("run", self.mill.start("fan", name, args=given).id, items) for name in subjects]

    def enqueue(self, count: int, task: str = "one", **args: Any) -> list[int]:
        """Jobs on their own."""
        given = {"folder": str(self.folder), **args}
        ids = self.mill.enqueue_many(task, [given] * count)
        return [self.acknowledge("job", number) for number in ids]

    def acknowledge(self, what: str, number: int, *more: Any) -> int:
        note(self.folder, "acknowledged", what, number, *more)
        return number

    def crew(
        self, count: int, program: str = "worker", environment: Mapping[str, str] | None = None, **settings: Any
    ) -> Crew:
        """So many workers (or processes of another program of `chaos`), which are ended with the play.
        `environment`: variables that they have beside ours."""
        crew = Crew(self, settings, program, environment or {})
        self.stack.callback(crew.end)
        crew.keep(count)
        return crew

    def eventually(self, condition: Callable[[], Any], what: str, within: float = 60.0) -> Any:
        deadline = time.monotonic() + within
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise Violation(f"not within {within:g} s: {what}")
            time.sleep(0.02)
        return found


def open_mill(url: str, *apps: str, **how: Any) -> Mill:
    return Mill.open(url, load_sources(f"module:{app}" for app in apps), **how)


# ---- workers as processes


class Worker:
    """A worker in a process of its own. Only what it started itself is ever killed."""

    def __init__(
        self, play: Play, settings: dict[str, Any], log: Path, program: str, environment: Mapping[str, str]
    ) -> None:
        order = {"url": play.url, "apps": play.apps, "slots": 2, "lease": LEASE, "poll": POLL, **settings}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"chaos.{program}", json.dumps(order)],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.pid = self.process.pid
        self.slots = int(order["slots"])

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children()
        return []

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _has_begun(worker: Worker) -> bool:
    return not worker.alive or bool(worker.children())


class Crew:
    """Workers, and the record of whom was killed."""

    def __init__(self, play: Play, settings: dict[str, Any], program: str, environment: Mapping[str, str]) -> None:
        self.play, self.settings, self.program, self.environment = play, settings, program, environment
        self.workers: list[Worker] = []

    def keep(self, count: int) -> None:
        """Starts as many as are missing."""
        self.workers = [worker for worker in self.workers if worker.alive]
        while len(self.workers) < count:
            self.play.workers += 1
            log = self.play.folder / f"{self.program}{self.play.workers}.log"
            self.workers.append(Worker(self.play, self.settings, log, self.program, self.environment))

    def kill(self, worker: Worker) -> None:
        """kill -9 of a supervisor; its children notice and end."""
        note(self.play.folder, "killed", worker.pid, worker.slots, "supervisor", time.monotonic())
        worker.kill()

    def kill_child(self, worker: Worker) -> bool:
        """kill -9 of one of its children, by the dice; was there one?"""
        children = worker.children()
        if not children:
            return False
        child = self.play.dice.choice(children)
        note(self.play.folder, "killed", child.pid, 1, "child", time.monotonic())
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
        return True

    def ready(self, unless: Callable[[], bool] = lambda: False, within: float = 180.0) -> None:
        """Waits until each of them is registered and has its children. (Only who has something to do starts another one
        for a child that was killed: `unless` says that all is done.)"""
        self.play.eventually(lambda: all(map(_has_begun, self.workers)) or unless(), "every worker has begun", within)

    def end(self) -> None:
        orphans = [child for worker in self.workers for child in worker.children()]
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send(signal.SIGCONT)
            worker.kill()
        for child in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def logs(self) -> Iterator[str]:
        for path in sorted(self.play.folder.glob(f"{self.program}*.log")):
            yield from path.read_text(errors="replace").splitlines()
