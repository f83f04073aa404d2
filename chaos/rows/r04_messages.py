"""Every message comes twice, one in a hundred ten times, with each delivery."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chaos import oracle
from chaos.doubling import Doubled
from chaos.play import Play, Violation, open_mill
from chaos.record import noted
from tests.valkey import running_valkey

TITLE = "every message twice, some ten times"
DATABASES = ("SQLite", "PostgreSQL")
DELIVERIES = ("database", "redis", "rq", "arq")


def play(play: Play) -> str:
    oracle.watch(play.mill)
    server = play.stack.enter_context(running_valkey())
    runs, items, jobs = play.pick(3, 20), play.pick(40, 1000), play.pick(50, 1000)
    for n, delivery in enumerate(DELIVERIES):
        how: dict[str, Any] = {"delivery": delivery, "redis_url": server.url}
        with open_mill(play.url, *play.apps, **how) as mill:
            Doubled(mill, play.folder, play.seed + n)
            crew = play.crew(2, **how, doubled=[str(play.folder), play.dice.randrange(1 << 30)])
            crew.ready()
            given: dict[str, Any] = {"folder": str(play.folder), "seconds": 0.01}
            for run in range(runs):
                started = mill.start("fan", f"{delivery}-{run}", args={**given, "items": items})
                play.acknowledge("run", started.id, items)
            for _ in range(jobs):  # one by one: a message for each, and copies come before, while and after it runs
                given["seconds"] = play.dice.choice([0.0, 0.05, 0.2])
                play.acknowledge("job", mill.enqueue("one", args=given).id)
            oracle.settle(play)
            crew.end()
    oracle.check(play)
    _each_once(play)
    times = Counter(count for (count,) in noted(play.folder, "messages"))
    return (
        f"{times.total()} messages, {times[10]} of them ten times, by {', '.join(DELIVERIES)}:"
        f" {len(DELIVERIES) * runs * items} items counted once in {len(DELIVERIES) * runs} fan-ins, which fired once each;"
        f" {len(oracle.executions(play))} jobs, each run once"
    )


def _each_once(play: Play) -> None:
    """Nobody is killed here, so nothing runs twice."""
    fired = Counter(run for run, *_ in noted(play.folder, "fanned_in"))
    wrong = [f"the fan-in of run {run} fired {times} times" for run, times in fired.items() if times > 1]
    wrong += [f"job {job} ran {times} times" for job, times in oracle.executions(play).items() if times > 1]
    if wrong:
        raise Violation("; ".join(wrong[:5]))
