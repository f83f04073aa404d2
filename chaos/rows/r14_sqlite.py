"""SQLite under eight processes that are killed at any moment: workers, their children, and those who enqueue."""

from __future__ import annotations

import time

from chaos import oracle
from chaos.play import Crew, Play, Violation
from chaos.record import noted

TITLE = "SQLite, eight processes, kill -9"
DATABASES = ("SQLite",)
WORKERS, ENQUEUERS = 6, 2


def play(play: Play) -> str:
    oracle.watch(play.mill)
    kills = play.pick(20, 1000)
    crew = play.crew(WORKERS, slots=1)
    busy = play.crew(ENQUEUERS, "enqueuer", folder=str(play.folder), seed=play.seed, seconds=0.004, pause=0.02)
    crew.ready()
    play.eventually(lambda: any(noted(play.folder, "acknowledged")), "someone enqueues")
    for _ in range(kills):
        time.sleep(play.dice.uniform(0.02, 0.3))
        _kill_someone(play, crew, busy)
    busy.end()
    longest = oracle.settle(play)
    oracle.check(play)
    oracle.once(play)
    found = [text for (text,) in oracle.rows(play.mill, "PRAGMA integrity_check")]
    if found != ["ok"]:
        raise Violation(f"the file is damaged: {found[:3]}")
    heard = [why for kind in ("refused", "unclear") for _, why in noted(play.folder, kind)]
    for line in [*crew.logs(), *busy.logs(), *heard]:
        if "database is locked" in line:
            raise Violation(f"shown to someone: {line}")
    acknowledged = sum(1 for _ in noted(play.folder, "acknowledged"))
    return (
        f"{kills} kills among {WORKERS + ENQUEUERS} processes: integrity ok, {acknowledged} acknowledged and 0 of them lost,"
        f" 0 times 'database is locked'; longest pause {longest:.1f} s"
    )


def _kill_someone(play: Play, crew: Crew, busy: Crew) -> None:
    crew.keep(WORKERS)
    busy.keep(ENQUEUERS)
    kind = play.dice.random()
    if kind < 0.25:
        busy.kill(play.dice.choice(busy.workers))
    elif kind < 0.5 or not crew.kill_child(play.dice.choice(crew.workers)):
        crew.kill(play.dice.choice(crew.workers))
