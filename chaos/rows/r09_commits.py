"""The answer to COMMIT gets lost, on enqueues, starts, claims and finishes: the work is done, and nobody is told so."""

from __future__ import annotations

import random
from collections import Counter

from chaos import oracle
from chaos.enqueuer import Asker
from chaos.play import Play, Violation, open_mill
from chaos.record import noted
from tests.worker.cables import Cable, cable

TITLE = "the answer to COMMIT gets lost"
DATABASES = ("PostgreSQL",)
ASKS = {"job": b"INSERT INTO gm_job", "many": b"INTO gm_job", "run": b"INSERT INTO gm_run"}
TURNS = {"finish": b"result = f.outcome", "claim": b"INSERT INTO gm_claim"}  # what a worker says in such a transaction


def play(play: Play) -> str:
    oracle.watch(play.mill)
    near, url = play.stack.enter_context(cable(play.url))
    far, workers_url = play.stack.enter_context(cable(play.url))
    mill = play.stack.enter_context(open_mill(url, *play.apps))
    asker = Asker(mill, play.folder, random.Random(play.seed), seconds=0.002)
    for kind in ASKS:  # names of tasks and queues are there from now on
        asker.ask(kind)
    play.crew(2, url=workers_url).ready()
    lost: Counter[str] = Counter()
    for _ in range(play.pick(30, 500)):
        turn, kind = play.dice.choice(list(TURNS)), play.dice.choice(list(ASKS))
        far.lose_next_commit(TURNS[turn])
        near.lose_next_commit(ASKS[kind])
        asker.ask(kind)
        if not near.lost_it:
            raise Violation(f"no COMMIT was seen of what asks for {kind}: {ASKS[kind]!r} is not said any more")
        play.eventually(lambda: _goes_on(asker, far), f"a worker commits a {turn}")
        lost.update([kind, turn])
    longest = oracle.settle(play)
    oracle.check(play)
    oracle.once(play)
    if told := [*noted(play.folder, "refused"), *noted(play.folder, "unclear")]:
        raise Violation(f"{len(told)} callers were told of it, such as {told[0]}")
    if again := [job for job, times in oracle.executions(play).items() if times > 1]:
        raise Violation(f"{len(again)} jobs ran twice, such as {again[:5]}")
    figures = ", ".join(f"{times} × {kind}" for kind, times in sorted(lost.items()))
    asked = sum(1 for _ in noted(play.folder, "named"))
    return (
        f"{lost.total()} answers lost ({figures}): {asked} asked for, each there once, counted once and run once,"
        f" nobody was told of it; longest pause {longest:.1f} s"
    )


def _goes_on(asker: Asker, far: Cable) -> bool:
    """There is always something to do, until the worker has lost an answer."""
    return far.lost_it or (asker.ask("many") and False)
