"""Poison among good jobs: segfaults, exits, memory and forks without end."""

from __future__ import annotations

import contextlib
from collections import Counter

import psutil

from chaos import oracle, poison
from chaos.play import Play, Violation
from chaos.record import noted

TITLE = "poison jobs among good ones"
DATABASES = ("SQLite", "PostgreSQL")
RUNS = 3  # after as many a poison job is parked
_CLASSES = {"segfault": "crash", "leave": "crash", "eat": "memory", "multiply": "timeout"}


def play(play: Play) -> str:
    play.apps = ("chaos.apps", "chaos.poison")
    oracle.watch(play.mill)
    total, bad = play.pick(1200, 10_000), play.pick(12, 100)
    kinds = [poison.KINDS[n % len(poison.KINDS)] for n in range(bad)]
    play.dice.shuffle(kinds)
    good: list[int] = []
    poisoned: dict[int, str] = {}
    for left, kind in zip(range(bad, 0, -1), kinds, strict=True):
        good += play.enqueue((total - bad - len(good)) // left, seconds=0.001)
        number = play.mill.enqueue(kind, args={"folder": str(play.folder)}).id
        poisoned[play.acknowledge("job", number)] = kind
    crew = play.crew(2)
    crew.ready()
    longest = oracle.settle(play)
    oracle.check(play, failing=True)
    most = _parked(play, poisoned)
    undone = [job for job in good if play.mill.job(job).state != "completed"]
    if undone:
        raise Violation(f"{len(undone)} good jobs are not completed: {play.mill.job(undone[0])}")
    _gone(play)
    if dead := [worker.pid for worker in crew.workers if not worker.alive]:
        raise Violation(f"{len(dead)} workers died")
    return (
        f"{bad} poison jobs each parked after at most {most} runs, the other {len(good)} completed, no worker died;"
        f" longest pause {longest:.1f} s"
    )


def _parked(play: Play, poisoned: dict[int, str]) -> int:
    """All of them are, with the right reason and in time; the most runs of one."""
    runs = oracle.executions(play)
    wrong: Counter[str] = Counter()
    for number, kind in poisoned.items():
        job = play.mill.job(number)
        if job.state != "failed" or job.error_class != _CLASSES[kind]:
            wrong[f"{kind} ended {job.state}, {job.error_class}: {job.error}"] += 1
        if not 1 <= runs[number] <= RUNS:
            wrong[f"{kind} ran {runs[number]} times"] += 1
    if wrong:
        raise Violation(f"poison: {dict(wrong)}")
    return max(runs[number] for number in poisoned)


def _gone(play: Play) -> None:
    """What a fork bomb leaves is killed with it."""

    def left() -> list[int]:
        found = []
        for pid, since in noted(play.folder, "forked"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.create_time() == since and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(pid)
        return found

    play.eventually(lambda: not left(), "the processes that a job forked are gone", 5.0)
