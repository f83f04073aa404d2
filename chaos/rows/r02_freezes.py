"""SIGSTOP of supervisors, alone and with their children, for longer than their lease; then SIGCONT.

Who wakes up finds that its jobs are others' by now. What its children had finished meanwhile, and what those do that were
frozen with it, must not reach the ledger.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import psutil

from chaos import oracle
from chaos.play import SWEEP, Crew, Play, Violation, Worker
from chaos.record import note, noted

TITLE = "SIGSTOP for longer than the lease, then SIGCONT"
DATABASES = ("SQLite", "PostgreSQL")
LEASE, POLL = 1.0, 0.2
WORKERS, FROZEN = 6, 4  # at most so many at once
ITEMS, RUNS = 20, 10  # many small runs: who is frozen in a transaction keeps others from the runs that it has locked


@dataclass
class Frozen:
    """A worker that is frozen, which of its processes are, and until when."""

    worker: Worker
    processes: list[psutil.Process]
    until: float


def play(play: Play) -> str:
    oracle.watch(play.mill)
    freezes = play.pick(16, 500)
    play.start(ITEMS, runs=RUNS, seconds=0.1)
    crew = play.crew(WORKERS, queues=(), lease=LEASE, poll=POLL)
    crew.ready()
    _freeze_often(play, crew, freezes)
    longest = oracle.settle(play, pause=2 * LEASE + SWEEP)
    oracle.check(play)
    if dead := [worker.pid for worker in crew.workers if not worker.alive]:
        raise Violation(f"workers {dead} ended, and nobody told them to")
    lost = oracle.rows(play.mill, "SELECT count(*) FROM gm_worker WHERE state = 2")[0][0]
    late = _late_ends(play)
    return (
        f"{freezes} freezes, {lost} workers declared lost, {late} attempts came to their end too late: 0 of them were"
        f" written; longest pause {longest:.1f} s"
    )


def _freeze_often(play: Play, crew: Crew, freezes: int) -> None:
    done, frozen = 0, list[Frozen]()
    while done < freezes or frozen:
        if oracle.left(play)[1] < RUNS:
            play.start(ITEMS, seconds=play.dice.uniform(0.02, 0.6))
            play.enqueue(ITEMS, seconds=play.dice.uniform(0.02, 0.6))
        if done < freezes and len(frozen) < FROZEN:
            awake = [worker for worker in crew.workers if worker not in [each.worker for each in frozen]]
            frozen.append(_freeze(play, play.dice.choice(awake)))
            done += 1
        time.sleep(play.dice.uniform(0.02, 0.2))
        for each in [each for each in frozen if time.monotonic() > each.until]:
            frozen.remove(each)
            for process in each.processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()


def _freeze(play: Play, worker: Worker) -> Frozen:
    """The supervisor first: it must not see that its children stand still."""
    with_children = play.dice.random() < 0.5
    until = time.monotonic() + play.dice.uniform(1.3, 2.5) * LEASE
    frozen = []
    for process in (psutil.Process(worker.pid), *(worker.children() if with_children else ())):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            frozen.append(process)
            note(play.folder, "frozen", process.pid, process.pid == worker.pid, time.monotonic())
    return Frozen(worker, frozen, until)


def _late_ends(play: Play) -> int:
    """How many attempts came to their end when the job was already another's. Only a frozen process may do that."""
    frozen = {pid for pid, supervisor, _ in noted(play.folder, "frozen") if not supervisor}
    began = {(job, attempt): at for job, attempt, _, _, at in noted(play.folder, "began")}
    last = dict(map(tuple, oracle.rows(play.mill, "SELECT id, attempt FROM gm_job")))  # type: ignore[arg-type]
    late = 0
    for job, attempt, pid, _, at in noted(play.folder, "ended"):
        late += attempt < last[job]
        if at > began.get((job, attempt + 1), at) and pid not in frozen:
            raise Violation(
                f"job {job}: attempt {attempt} was still at work when the next one had begun, and was not frozen"
            )
    return late
