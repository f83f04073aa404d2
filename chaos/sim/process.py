"""A child's process that is none: it says over its socket what a real one would, when the dice let it.

Its supervisor's side is the real `Child`, with a real socket and a real status; only the process at the other end is played.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.sim import functions
from chaos.sim.world import Killed
from gristmill.execution.child import LEASE_OVER
from gristmill.execution.children import Child
from gristmill.execution.frames import SPOKEN, Unpacker, pack
from gristmill.execution.run import Report
from gristmill.execution.status import Status

if TYPE_CHECKING:
    from chaos.sim.cast import Cast, Post


@dataclass
class Work:
    """A job in the hands of a process, and what will become of it."""

    job: int
    attempt: int
    key: str | None
    task: str
    timeout: float | None
    run: int | None
    stage: int | None
    part_of: int | None
    started: float
    until: float = 0.0  # when it goes on; never, if it hangs
    verdict: str = "completed"
    batches: list[list[Any]] = field(default_factory=list)  # items that it will emit
    sent: int = 0
    asked: bool = False  # to stop


class SimProcess:
    """Stands in for `subprocess.Popen`."""

    def __init__(self, cast: Cast, link: int, status: int) -> None:
        self.cast, self.world = cast, cast.world
        assert cast.active is not None
        self.post: Post = cast.active
        self.pid = cast.next_pid()
        self.name = f"{self.post.name}.{self.pid}"
        self.returncode: int | None = None
        self.suspended = False
        self.link = socket.socket(fileno=os.dup(link))
        self.link.setblocking(False)
        self.status = Status(status)
        self.stages: dict[int, list[Any]] = {}
        self.inbox: deque[Work] = deque()
        self.works: list[Work] = []  # that it is on: one, or for an event loop many
        self.done: list[tuple[Work, Report]] = []
        self.setup: dict[str, Any] = {}
        self.ready = self.stopping = False
        self.starts_at = self.world.now + self.world.dice.random() * 0.3
        self._unpacker = Unpacker()
        cast.processes.append(self)

    # ---- what its supervisor asks of it

    @property
    def dead(self) -> bool:
        return self.returncode is not None

    def wait(self) -> int:
        assert self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def die(self, code: int) -> None:
        if not self.dead:
            self.world.trace(self.name, "dies", code)
            self.returncode = code
            self.link.close()
            self.status.close()
            self.cast.processes.remove(self)

    # ---- its time

    def next_at(self) -> float:
        """When there is something for it to do."""
        if self._has_mail() or (self.ready and self.inbox and (self.is_async or not self.works)):
            return self.world.now
        if not self.ready:
            return self.starts_at
        return min([self.status.deadline(), *(work.until for work in self.works)])

    def _has_mail(self) -> bool:
        try:
            return bool(self.link.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    @property
    def is_async(self) -> bool:
        return bool(self.setup.get("async"))

    def step(self) -> None:
        self._listen()
        if self.dead:
            return
        if self.world.now >= self.status.deadline() and not self.world.chance(0.3):  # it may be just on its way out
            self.die(LEASE_OVER)
        elif not self.ready:
            if self.world.now >= self.starts_at:
                self.ready = True
                tasks = self.cast.registry.tasks
                self._say("hello", sorted(tasks), any(task.is_async for task in tasks.values()), SPOKEN)
        else:
            try:
                self._work()
            except Killed:
                self.world.trace(self.name, "was killed on its way")

    def _work(self) -> None:
        while self.inbox and (self.is_async or not self.works):
            self._begin(self.inbox.popleft())
        due = [work for work in self.works if self.world.now >= work.until]
        if due:
            functions.go_on(self, self.world.dice.choice(due))
        if self.stopping and not self.works and not self.inbox and not self.dead:
            self.die(0)

    def _begin(self, work: Work) -> None:
        work.started = self.world.now
        if not self.is_async:
            self.status.begin(work.job)
        self.works.append(work)
        functions.begin(self, work)

    def end(self, work: Work, report: Report) -> None:
        """Its function has ended. What is finished is said at once, or with the next one."""
        self.works.remove(work)
        self.done.append((work, report))
        if not self.inbox or self.is_async or self.world.dice.random() < 0.5:
            self._report()
        if not self.is_async and not self.inbox:
            self.status.end()

    def _report(self) -> None:
        plain = [report for _, report in self.done if functions.is_plain(report)]
        others = [tuple(report) for _, report in self.done if not functions.is_plain(report)]
        rows = [(report.job, report.attempt, report.result, report.ran) for report in plain]
        seconds = self.world.now - min((work.started for work, _ in self.done), default=self.world.now)
        if self.done:
            self._say("done", list(zip(*rows, strict=True)), others, seconds)
        self.done = []

    def emit(self, work: Work, items: list[Any]) -> None:
        work.sent += 1
        self._say("emit", work.job, work.attempt, work.sent, items)

    # ---- messages

    def _say(self, *message: Any) -> None:
        self.world.trace(self.name, "says", *message)
        self.link.sendall(pack(list(message)))

    def _listen(self) -> None:
        try:
            while data := self.link.recv(1 << 20):
                for message in self._unpacker.feed(data):
                    self._hear(message)
            self.die(0)  # its supervisor has let go of it
        except BlockingIOError:
            pass

    def _hear(self, message: list[Any]) -> None:
        match message:
            case ["setup", setup]:
                self.setup = setup
            case ["jobs", _, stages, kinds, [numbers, *columns]]:
                self.stages.update({number: info for number, *info in stages})
                self.inbox.extend(
                    self._given(kinds[number], *row) for number, *row in zip(numbers, *columns[:3], strict=True)
                )
            case ["ack", job, str()]:
                for work in self.works:
                    if work.job == job:
                        work.verdict, work.batches = "permanent", []
            case ["recall"]:
                self._say("returned", [work.job for work in self.inbox])
                self.inbox.clear()
                self._report()
            case ["cancel", job, attempt]:
                for work in (*self.works, *self.inbox):
                    if (work.job, work.attempt) == (job, attempt):
                        functions.ask(self, work)
            case ["stop"]:
                self.stopping = True

    def _given(self, kind: list[Any], job: int, attempt: int, key: str | None) -> Work:
        task, timeout, _, run, stage, part_of = kind
        return Work(job, attempt, key, task, timeout, run, stage, part_of, self.world.now)


class SimChild(Child):
    """The real thing, but for what it asks the kernel."""

    process: SimProcess  # type: ignore[assignment]

    @property
    def alive(self) -> bool:
        return not self.process.dead

    def kill(self) -> None:
        self.process.die(-signal.SIGKILL)

    def mib(self) -> int:
        return 1

    def abandon(self) -> None:
        """Its supervisor was killed: only what this program holds is closed."""
        self._link.close()
        self.status.close()
        os.close(self._output)
