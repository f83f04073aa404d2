"""SIGSTOP of supervisors, alone and with their children, for longer than their lease; then SIGCONT.

Who wakes up finds that its jobs are others' by now. What its children had finished meanwhile, and what those do that were
frozen with it, must not reach the ledger.
"""

from __future__ import annotations

import contextlib
import time
from threading import Timer

import psutil

from chaos import oracle
from chaos.play import SWEEP, Crew, Play, Violation, Worker
from chaos.record import note, noted

TITLE = "SIGSTOP for longer than the lease, then SIGCONT"
DATABASES = ("SQLite", "PostgreSQL")
LEASE, POLL = 1.0, 0.2
WORKERS, FROZEN = 6, 3  # at most so many at once
LATE = 8  # freezes for each attempt that must come to its end too late, or the row has shown nothing
ITEMS, BUSY = 6, 16  # of a run; jobs that are not over, about one for each slot: what is rescued soon runs again


def play(play: Play) -> str:
    oracle.watch(play.mill)
    freezes = play.pick(24, 500)
    play.start(ITEMS, runs=2, seconds=0.1)
    crew = play.crew(WORKERS, queues=(), lease=LEASE, poll=POLL)
    crew.ready()
    _freeze_often(play, crew, freezes)
    longest = oracle.settle(play, pause=2 * LEASE + SWEEP)
    oracle.check(play)
    if dead := [worker.pid for worker in crew.workers if not worker.alive]:
        raise Violation(f"workers {dead} ended, and nobody told them to")
    lost = oracle.rows(play.mill, "SELECT count(*) FROM gm_worker WHERE state = 2")[0][0]
    late = _late_ends(play)
    if late < freezes // LATE:
        raise Violation(f"only {late} attempts came late after {freezes} freezes: that shows nothing")
    return (
        f"{freezes} freezes, {lost} workers declared lost, {late} attempts came to their end too late: 0 of them were"
        f" written; longest pause {longest:.1f} s"
    )


def _freeze_often(play: Play, crew: Crew, freezes: int) -> None:
    done, frozen = 0, dict[Worker, Timer]()
    while done < freezes or frozen:
        _provide(play)
        if done < freezes and len(frozen) < FROZEN:
            worker = play.dice.choice([worker for worker in crew.workers if worker not in frozen])
            frozen[worker] = _freeze(play, worker)
            done += 1
        time.sleep(play.dice.uniform(0.02, 0.2))
        frozen = {worker: thaw for worker, thaw in frozen.items() if thaw.is_alive()}


def _provide(play: Play) -> None:
    """Jobs that end within the lease of a worker that was frozen, and whose next attempt is under way when it wakes up."""
    if oracle.left(play)[0] < BUSY:
        seconds = play.dice.uniform(0.2, 0.9) * LEASE
        play.start(ITEMS, seconds=seconds)
        play.enqueue(ITEMS, seconds=seconds)


def _freeze(play: Play, worker: Worker) -> Timer:
    """The supervisor first: it must not see that its children stand still. What wakes it up is a thread of its own: frozen
    in a transaction, it may have what the player himself waits for."""
    with_children = play.dice.random() < 0.5
    frozen = [psutil.Process(worker.pid)]
    thaw = Timer(play.dice.uniform(1.25, 2.0) * LEASE, _thaw, [frozen])
    thaw.start()
    frozen[0].suspend()
    note(play.folder, "frozen", worker.pid, True, time.monotonic())
    for child in worker.children() if with_children else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            child.suspend()
            frozen.append(child)
            note(play.folder, "frozen", child.pid, False, time.monotonic())
    return thaw


def _thaw(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _late_ends(play: Play) -> int:
    """How many attempts came to their end when the job was already another's. Only a frozen process may do that."""
    frozen = {pid for pid, supervisor, _ in noted(play.folder, "frozen") if not supervisor}
    began = {(job, attempt): at for job, attempt, _, _, at in noted(play.folder, "began")}
    last = dict(oracle.rows(play.mill, "SELECT id, attempt FROM gm_job"))
    late = 0
    for job, attempt, pid, _, at in noted(play.folder, "ended"):
        late += attempt < last[job]
        if at > began.get((job, attempt + 1), at) and pid not in frozen:
            raise Violation(
                f"job {job}: attempt {attempt} was still at work when the next one had begun, and was not frozen"
            )
    return late
