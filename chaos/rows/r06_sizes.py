"""Fan-outs of no item, of one, and of very many, the small ones alone and in the middle of the great one."""

from __future__ import annotations

import time
from collections import Counter

from chaos import oracle
from chaos.play import Play, Violation
from chaos.record import noted
from gristmill.clock import SECOND

TITLE = "fan-outs of 0, 1 and very many items"
DATABASES = ("SQLite", "PostgreSQL")
WITHIN = 1.0  # seconds in which a fan-out of nothing closes

_CLOSED = (
    "SELECT i.run_id, i.closed_at - f.closed_at, r.finished_at - r.created_at FROM gm_stage i"
    " JOIN gm_stage f ON f.run_id = i.run_id AND f.name = 'find' JOIN gm_run r ON r.id = i.run_id"
    " WHERE i.name = 'item' AND i.total = 0"
)


def play(play: Play) -> str:
    oracle.watch(play.mill)
    small, many = play.pick(20, 200), play.pick(20_000, 100_000)
    play.crew(2, queues=()).ready()
    play.start(1)
    oracle.settle(play)  # both have their first child by now
    alone: list[int] = []
    for _ in range(small):
        alone += play.start(play.dice.choice([0, 0, 1]))
        oracle.settle(play)
    began = time.monotonic()
    play.start(many)
    while oracle.left(play)[0] > 1 or oracle.left(play)[1]:
        play.start(play.dice.choice([0, 1]))
        time.sleep(play.dice.uniform(0.1, 0.5))
    took = time.monotonic() - began
    oracle.settle(play)
    oracle.check(play)
    fired = Counter(run for run, *_ in noted(play.folder, "fanned_in"))
    if twice := [run for run, times in fired.items() if times != 1]:
        raise Violation(f"the fan-ins of runs {twice[:5]} ran more than once, and nobody was killed")
    empty, closing, whole = _empty(play, set(alone))
    return (
        f"{len(fired)} fan-ins, each once; {empty} of nothing: closed {closing * 1000:.0f} ms after their producer, the"
        f" whole run in {whole * 1000:.0f} ms at most on idle workers; {many} items in {took:.0f} s"
    )


def _empty(play: Play, alone: set[int]) -> tuple[int, float, float]:
    """How many fan-outs had no item, how long after its producer one closed, and how long a run took with nothing else."""
    rows = [(run, closing / SECOND, whole / SECOND) for run, closing, whole in oracle.rows(play.mill, _CLOSED)]
    closing = max(closing for _, closing, _ in rows)
    whole = max(whole for run, _, whole in rows if run in alone)
    if closing > WITHIN:
        raise Violation(f"a fan-out of nothing closed {closing:.2f} s after its producer")
    play.reach(whole <= WITHIN, f"a run of nothing took {whole:.2f} s on idle workers")
    return len(rows), closing, whole
