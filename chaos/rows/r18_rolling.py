"""Rolling restarts while jobs run that ignore SIGTERM, and so do the programs that they have started.

One worker after the other is told to stop, half of them with all their processes, as systemd does it. It ends soon after
its grace, leaves no process behind, and what it held goes back as if it had never been taken.
"""

from __future__ import annotations

import signal
import time
from typing import Any

import psutil

from chaos import oracle
from chaos.play import Crew, Play, Violation, Worker
from chaos.record import noted
from gristmill.states import State, WorkerState

TITLE = "rolling restarts with jobs that ignore SIGTERM"
DATABASES = ("SQLite", "PostgreSQL")
WORKERS, GRACE, SLACK = 3, 1.0, 5.0


def play(play: Play) -> str:
    play.apps = ("chaos.apps", "chaos.ticking_app")
    oracle.watch(play.mill)
    restarts = play.pick(6, 50)
    crew = play.crew(WORKERS, queues=(), grace=GRACE)
    crew.ready()
    took = [_restart(play, crew) for _ in range(restarts)]
    oracle.settle(play)
    oracle.check(play)
    if jobs := oracle.overlapping(play):
        raise Violation(f"jobs {jobs[:5]}: an attempt was still at work when the next one had begun")
    spent = oracle.rows(play.mill, "SELECT id FROM gm_job WHERE errors + crashes + timeouts + losses > 0")
    if spent:
        raise Violation(f"{len(spent)} jobs paid for a restart, job {spent[0][0]} among them")
    again = sum(times - 1 for times in oracle.executions(play).values())
    return (
        f"{restarts} restarts with a grace of {GRACE:g} s: 0 lost, gone after {max(took):.1f} s at the latest,"
        f" {again} jobs went back and none of them paid for it"
    )


def _provide(play: Play) -> None:
    """Jobs that take longer than the grace, and short ones behind them."""
    if oracle.left(play)[0] < 8 * WORKERS:
        for _ in range(4):
            play.enqueue(1, "deaf", seconds=play.dice.uniform(1.5, 2.5) * GRACE, helper=play.dice.random() < 0.3)
            play.enqueue(4, seconds=0.05)


def _restart(play: Play, crew: Crew) -> float:
    """Stops the oldest in the middle of a deaf job and starts another in its place; says how long it took to go."""
    _provide(play)
    worker = crew.workers[0]
    play.eventually(lambda: _holds_a_deaf_one(play, worker), "it is in the middle of a job that ignores SIGTERM")
    everyone = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    told = time.monotonic()
    for process in everyone if play.dice.random() < 0.5 else everyone[:1]:
        process.send_signal(signal.SIGTERM)
    crew.keep(WORKERS + 1)
    play.eventually(lambda: not worker.alive, f"worker {worker.pid} ends", GRACE + SLACK)
    took = time.monotonic() - told
    crew.keep(WORKERS)
    if left := [process.pid for process in everyone if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]:
        raise Violation(f"worker {worker.pid} ended and left processes {left} behind")
    if worker.process.returncode:
        raise Violation(f"worker {worker.pid} ended with exit code {worker.process.returncode}")
    _left_nothing(play, worker.pid)
    return took


def _holds_a_deaf_one(play: Play, worker: Worker) -> bool:
    _provide(play)
    last: dict[int, Any] = {}
    for *_, parent, at in noted(play.folder, "ticked"):
        last[parent] = at
    return bool(time.monotonic() - last.get(worker.pid, 0.0) < 0.1)


def _left_nothing(play: Play, pid: int) -> None:
    """It signed off, and nothing is in progress under its name."""
    sql = f"SELECT w.state, (SELECT count(*) FROM gm_job j WHERE j.worker_id = w.id AND j.state = {State.IN_PROGRESS:d})"
    for state, held in oracle.rows(play.mill, f"{sql} FROM gm_worker w WHERE w.pid = {pid}"):
        if state != WorkerState.STOPPED or held:
            raise Violation(f"worker {pid} is {WorkerState(state).word}, and {held} jobs are in progress under its name")
