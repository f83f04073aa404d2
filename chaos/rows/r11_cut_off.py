"""Workers that are cut off from PostgreSQL for several leases, each by a cable of its own: torn, or silent.

Their jobs write down when they are at work: they must stop before the lease ends, and no attempt may be at work when the
next one has begun. Healed, each worker has to be at work again soon. One worker is never cut off: it takes over.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from chaos import oracle
from chaos.play import SWEEP, Play, Violation, Worker
from chaos.record import noted
from tests.worker.cables import Cable, cable

TITLE = "workers cut off from the database"
DATABASES = ("PostgreSQL",)
LONGEST = 1.5  # leases that a job takes
BACK = 15.0  # seconds in which a healed worker has to be at work again


@dataclass
class Host:
    """A worker behind a cable, and when that was cut."""

    cable: Cable
    worker: Worker
    silent: bool = False  # or else torn
    cuts: list[tuple[float, float]] = field(default_factory=list)  # nothing came through from … to …

    def cut(self) -> None:
        (self.cable.hold if self.silent else self.cable.cut)()
        self.cuts.append((time.monotonic(), 0.0))

    def heal(self) -> None:
        self.cuts[-1] = (self.cuts[-1][0], time.monotonic())
        (self.cable.release if self.silent else self.cable.mend)()


def play(play: Play) -> str:
    """In the full form a hundred cuts of 120 s in two rounds, with the lease that a worker has unless told otherwise."""
    play.apps = ("chaos.apps", "chaos.ticking_app")
    oracle.watch(play.mill)
    lease, away, over = (30.0, 120.0, 60.0) if play.full else (2.0, 6.0, 1.0)
    settings: dict[str, Any] = {"queues": (), "slots": play.pick(2, 1), "lease": lease}
    hosts = [_host(play, settings) for _ in range(play.pick(4, 50))]
    play.crew(1, **settings)
    _all_at_work(play, hosts, lease, within=180)
    back = []
    for _ in range(play.pick(1, 2)):
        _cut_and_heal(play, hosts, lease, away, over)
        back.append(_all_at_work(play, hosts, lease, within=BACK))
    oracle.settle(play, pause=2 * lease + SWEEP + LONGEST * lease)
    oracle.check(play)
    went_on = [_went_on(play, host.worker, *cut, lease) for host in hosts for cut in host.cuts]
    if jobs := oracle.overlapping(play):
        raise Violation(f"jobs {jobs[:5]}: an attempt was still at work when the next one had begun")
    silent = sum(len(host.cuts) for host in hosts if host.silent)
    return (
        f"{len(went_on)} times cut off for {away:g} s ({silent} silently) with a lease of {lease:g} s: jobs went on for"
        f" {max(went_on):.2f} s at most, 0 overlapped; at work again within {max(back):.1f} s of healing"
    )


def _host(play: Play, settings: dict[str, Any]) -> Host:
    made, url = play.stack.enter_context(cable(play.url))
    (worker,) = play.crew(1, url=url, **settings).workers
    return Host(made, worker, silent=play.dice.random() < 0.5)


def _provide(play: Play, hosts: list[Host], lease: float) -> None:
    """More jobs, if there are not enough for everyone to have one and to find the next."""
    wanted = 3 * sum(host.worker.slots for host in hosts)
    for _ in range(wanted - oracle.left(play)[0]):
        play.enqueue(1, "tick", seconds=play.dice.uniform(0.5, LONGEST) * lease)


def _cut_and_heal(play: Play, hosts: list[Host], lease: float, away: float, over: float) -> None:
    """Each at a time of its own, all within `over` seconds: two cores cannot start all their children at once."""
    cuts = sorted(((play.dice.uniform(0, over), host) for host in hosts), key=lambda cut: cut[0])
    began = time.monotonic()
    todo = sorted(
        [(at, host.cut) for at, host in cuts] + [(at + away, host.heal) for at, host in cuts], key=lambda do: do[0]
    )
    for at, do in todo:
        while time.monotonic() < began + at:
            _provide(play, hosts, lease)
            time.sleep(0.05)
        do()


def _all_at_work(play: Play, hosts: list[Host], lease: float, within: float) -> float:
    """Waits until each has begun a job since it was healed; says how long that took at most."""
    healed = {host.worker.pid: host.cuts[-1][1] if host.cuts else 0.0 for host in hosts}
    back: dict[int, float] = {}

    def all_back() -> bool:
        _provide(play, hosts, lease)
        for _, _, _, worker, at in noted(play.folder, "began"):
            if at > healed.get(worker, math.inf):
                back.setdefault(worker, at - healed[worker])
        return len(back) == len(hosts)

    play.eventually(all_back, "all workers are at work", within)
    if (longest := max(back.values())) > within and max(healed.values()):
        raise Violation(f"a worker was at work again {longest:.1f} s after it was healed")
    return longest


def _went_on(play: Play, worker: Worker, cut: float, healed: float, lease: float) -> float:
    """For how long its jobs were at work after it was cut off."""
    ticks = [at for _, _, _, pid, at in noted(play.folder, "ticked") if pid == worker.pid and cut < at < healed]
    longest = max(ticks, default=cut) - cut
    if longest >= lease:
        raise Violation(
            f"worker {worker.pid} was cut off, and its jobs went on for {longest:.2f} s; its lease is {lease:g} s"
        )
    return longest
