"""kill -9 of supervisors and of their children, in the middle of fan-outs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from chaos import oracle
from chaos.play import Crew, Play, Violation
from chaos.record import noted

TITLE = "kill -9 of supervisors and children"
DATABASES = ("SQLite", "PostgreSQL")
WORKERS = 3


def play(play: Play) -> str:
    oracle.watch(play.mill)
    runs, items, kills = play.pick(50, 1000), 100, play.pick(20, 1000)
    play.start(items, runs=runs, seconds=0.004)
    crew = play.crew(WORKERS, queues=())
    crew.ready()
    done = 0
    while done < kills:
        if len(_unfinished(play)) < 5:  # a fast machine is through before the last kill
            runs += len(play.start(items, runs=10, seconds=0.004))
        time.sleep(play.dice.uniform(0.05, 0.4))
        done += _kill_someone(play, crew)
    crew.keep(WORKERS)
    # What follows is about jobs that come back, not about how soon a busy machine starts a process.
    crew.ready(unless=lambda: not _unfinished(play))
    longest = oracle.settle(play)
    oracle.check(play)
    cut, unwritten = _begun_again(play)
    if cut + unwritten < kills // 20:
        raise Violation(
            f"only {cut + unwritten} executions were hit by {kills} kills: this machine is too busy to show much"
        )
    return (
        f"{done} kills over {runs * items} jobs and {runs} fan-ins: 0 lost, missed, early or double;"
        f" {cut + unwritten} ran again ({cut} cut, {unwritten} whose end was not written yet); longest pause {longest:.1f} s"
    )


def _unfinished(play: Play) -> list[Any]:
    return oracle.rows(play.mill, "SELECT id FROM gm_run WHERE finished_at IS NULL LIMIT 5")


def _kill_someone(play: Play, crew: Crew) -> int:
    """Mostly those that have begun: on a slow machine nobody else would ever get to work."""
    crew.keep(WORKERS)
    begun = [worker for worker in crew.workers if worker.children()]
    worker = play.dice.choice(begun if begun and play.dice.random() < 0.9 else crew.workers)
    if play.dice.random() < 0.3:
        crew.kill(worker)
        crew.keep(WORKERS)
        return 1
    return int(crew.kill_child(worker))


def _begun_again(play: Play) -> tuple[int, int]:
    """Executions before a job's last: each was cut by a kill, one per slot, or ended unwritten in a killed worker."""
    slots = sum(slots for _, slots, *_ in noted(play.folder, "killed"))
    dead = {pid for pid, *_ in noted(play.folder, "killed")}
    last = {job: attempt for job, attempt, *_ in noted(play.folder, "began")}
    ended = {(job, attempt) for job, attempt, *_ in noted(play.folder, "ended")}
    cut, unwritten = 0, 0
    innocent: Counter[str] = Counter()
    for job, attempt, pid, parent, _ in noted(play.folder, "began"):
        if attempt == last[job]:
            continue
        if pid not in dead and parent not in dead:
            innocent[f"job {job} ran again though attempt {attempt} was in a worker that nobody killed"] += 1
        if (job, attempt) in ended:
            unwritten += 1
        else:
            cut += 1
    if innocent:
        raise Violation("; ".join(list(innocent)[:5]))
    if cut > slots:
        raise Violation(f"{cut} executions were cut, and only {slots} slots were killed")
    return cut, unwritten
