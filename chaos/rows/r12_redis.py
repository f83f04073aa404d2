"""Redis forgets all, again and again; is killed; stays away. With each delivery that uses it."""

from __future__ import annotations

import time
from typing import Any

from chaos import oracle
from chaos.play import Play, Violation, open_mill
from chaos.record import note
from gristmill import Mill
from tests.valkey import Valkey, running_valkey

TITLE = "Redis flushed, killed and away"
DATABASES = ("PostgreSQL",)
DELIVERIES = ("redis", "rq", "arq")
DRAINED = 30.0  # seconds after its return
SHARE = 0.8  # of the throughput, by polling
WORK = 0.02  # seconds of a job whose throughput is measured


def play(play: Play) -> str:
    oracle.watch(play.mill)
    server = play.stack.enter_context(running_valkey())
    said = [_with(play, delivery, server) for delivery in DELIVERIES]
    oracle.check(play)
    return "0 lost; " + "; ".join(said)


def _with(play: Play, delivery: str, server: Valkey) -> str:
    how: dict[str, Any] = {"delivery": delivery, "redis_url": server.url}
    with open_mill(play.url, *play.apps, **how) as mill:
        crew = play.crew(2, **how)
        crew.ready()
        _load(play, mill, 20)
        oracle.settle(play)  # all children are there
        before = _throughput(play, mill, play.pick(0, 30))
        flushes = _flush(play, mill, server)
        _load(play, mill, 200, 0.005)
        server.kill()  # what it was told of is under way, and found by polling
        note(play.folder, "redis", delivery, "killed", time.monotonic())
        oracle.settle(play)
        away = _throughput(play, mill, play.pick(2, 600))
        _load(play, mill, 400, 0.005)
        server.start()
        back = time.monotonic()
        oracle.settle(play)
        drained = time.monotonic() - back
        present = (before + _throughput(play, mill, play.pick(0, 30))) / 2  # a machine may become slower in ten minutes
        crew.end()
    if drained > DRAINED:
        raise Violation(f"{delivery}: drained {drained:.1f} s after Redis was back")
    slow = f"{delivery}: {away:.0f} jobs/s without Redis, {present:.0f} with it: less than {SHARE:.0%}"
    play.reach(away >= SHARE * present, slow)
    return (
        f"{delivery}: {flushes} × FLUSHALL, {away:.0f} jobs/s while it was away against {present:.0f} with it"
        f" ({away / present:.0%}), drained {drained:.1f} s after its return"
    )


def _load(play: Play, mill: Mill, count: int, seconds: float = 0.0) -> None:
    given = {"folder": str(play.folder), "seconds": seconds}
    for number in mill.enqueue_many("one", [given] * count):
        play.acknowledge("job", number)


def _throughput(play: Play, mill: Mill, seconds: float) -> float:
    """Jobs a second, measured again and again for so long."""
    until = time.monotonic() + seconds
    rates = [_rate(play, mill)]
    while time.monotonic() < until:
        rates.append(_rate(play, mill))
    return sum(rates) / len(rates)


def _rate(play: Play, mill: Mill, count: int = 160) -> float:
    """Jobs a second that come in small batches, while their workers are awake and until the last has ended."""
    began = time.monotonic()
    for _ in range(count // 20):
        _load(play, mill, 20, WORK)
        time.sleep(play.dice.uniform(0.0, 0.05))
    oracle.settle(play)
    return count / (time.monotonic() - began)


def _flush(play: Play, mill: Mill, server: Valkey) -> int:
    """Redis forgets what it was told of, in the middle of load."""
    flushes = play.pick(10, 100)
    for _ in range(flushes):
        _load(play, mill, 10, 0.002)
        time.sleep(play.dice.uniform(0.0, 0.1))
        server.flush()
    oracle.settle(play)
    return flushes
