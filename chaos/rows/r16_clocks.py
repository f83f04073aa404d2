"""Workers whose clocks are an hour slow, right, and an hour fast, supervisors and children, on PostgreSQL.

Its clock decides about leases and schedules: nobody is declared lost early (nor, when it really is frozen, an hour late),
and each fire time starts one thing. On SQLite the host's clock is the database's, and all its processes have the same one:
there are no workers with different clocks, so there is nothing to play.
"""

from __future__ import annotations

import os
import signal
import time

from chaos import oracle
from chaos.play import ROOT, SWEEP, Crew, Play, Violation, Worker
from chaos.record import noted
from gristmill import Schedule
from gristmill.states import WorkerState

TITLE = "workers' clocks wrong by an hour"
DATABASES = ("PostgreSQL",)
HOUR = 3600.0
SKEWS = (-HOUR, 0.0, HOUR)

LEASE = 6.0  # a worker that a busy machine keeps from its heartbeat for so long is lost by right
_NAME = "each-minute-{}"
_STARTED = "SELECT schedule_id, fire_at, count(*) FROM gm_fire WHERE outcome = 'started' GROUP BY schedule_id, fire_at"
_DOUBLE = f"{_STARTED} HAVING count(*) > 1"
_EARLY = "SELECT schedule_id FROM gm_fire WHERE fire_at > (extract(epoch FROM now()) * 1000000)::bigint"
_IN_TRANSACTION = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%%'"
)


def play(play: Play) -> str:
    play.apps = ("chaos.apps", "chaos.ticking_app")
    oracle.watch(play.mill)
    each, schedules = play.pick(1, 3), play.pick(50, 1000)
    crews = {skew: play.crew(each, environment=_wrong_by(play, skew), queues=(), lease=LEASE) for skew in SKEWS}
    for crew in crews.values():
        crew.ready()
    _schedule(play, schedules)
    until = time.monotonic() + play.pick(6, 180)
    while time.monotonic() < until:
        if oracle.left(play)[0] < 20:
            play.start(20, runs=2, seconds=0.05)
            play.enqueue(2, "tick", seconds=play.dice.uniform(0.5, 2.0) * LEASE)
        time.sleep(0.1)
    _nobody_is_lost(play)
    rescues = [_rescue_time(play, worker) for crew in crews.values() for worker in crew.workers]
    for n in range(schedules):
        play.mill.pause_schedule(_NAME.format(n))  # or jobs end while the record of ends is read
    oracle.settle(play, pause=2 * LEASE + SWEEP)
    oracle.check(play)
    if jobs := oracle.overlapping(play):
        raise Violation(f"jobs {jobs[:5]}: an attempt was still at work when the next one had begun")
    _really_skewed(play, crews)
    fired = _fired(play, schedules)
    return (
        f"{3 * each} workers wrong by -1, 0 and 1 h: 0 rescued early, frozen ones after {min(rescues):.1f} to"
        f" {max(rescues):.1f} s (lease {LEASE:g} s); {fired} fire times of {schedules} schedules, each started one job"
    )


def _wrong_by(play: Play, skew: float) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "chaos" / "skewed"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "CHAOS_SKEW": str(skew),
        "CHAOS_SKEWED": str(play.folder / "skewed"),
    }


def _really_skewed(play: Play, crews: dict[float, Crew]) -> None:
    """The processes themselves said how wrong their clocks are."""
    wrong = {pid: by for pid, _, by in noted(play.folder, "skewed")}
    parents = {pid: parent for _, _, pid, parent, _ in noted(play.folder, "began")}
    for skew, crew in crews.items():
        for worker in crew.workers:
            pids = [worker.pid, *(pid for pid, parent in parents.items() if parent == worker.pid)]
            if len(pids) == 1 or any(abs(wrong.get(pid, 1e9) - skew) > 1 for pid in pids):
                raise Violation(
                    f"worker {worker.pid} did not work with a clock that is wrong by {skew:g} s: nothing was tried"
                )


# ---- schedules


def _schedule(play: Play, number: int) -> None:
    """A minute is long: they are due at once."""
    for n in range(number):
        given = {"folder": str(play.folder)}
        play.mill.add_schedule(Schedule(_NAME.format(n), cron="* * * * *", task="one", args=given, catch_up="one"))
    with play.mill.transaction() as connection:
        connection.exec_driver_sql("UPDATE gm_schedule SET fire_at = fire_at - 60000000, due_at = due_at - 60000000")


def _fired(play: Play, schedules: int) -> int:
    started = oracle.rows(play.mill, _STARTED)
    if double := oracle.rows(play.mill, _DOUBLE):
        raise Violation(f"schedule {double[0][0]} fired {double[0][2]} times for one time")
    if early := oracle.rows(play.mill, _EARLY):
        raise Violation(f"{len(early)} fire times were decided before their time had come")
    if never := schedules - len({schedule for schedule, *_ in started}):
        raise Violation(f"{never} schedules did not fire")
    acknowledged = {number for what, number, *_ in noted(play.folder, "acknowledged") if what == "job"}
    jobs = {row[0] for row in oracle.rows(play.mill, "SELECT id FROM gm_job WHERE run_id IS NULL")} - acknowledged
    if len(jobs) != len(started):
        raise Violation(f"{len(started)} fire times started {len(jobs)} jobs")
    return len(started)


# ---- leases


def _lost(play: Play) -> dict[int, int]:
    """How many workers of each process were declared lost."""
    sql = f"SELECT pid, count(*) FROM gm_worker WHERE state = {WorkerState.LOST:d} GROUP BY pid"
    return dict(oracle.rows(play.mill, sql))


def _nobody_is_lost(play: Play) -> None:
    losses = oracle.rows(play.mill, "SELECT count(*) FROM gm_job WHERE losses > 0")[0][0]
    if lost := _lost(play):
        raise Violation(f"{sum(lost.values())} workers were declared lost, with {losses} jobs, and all are alive")


def _rescue_time(play: Play, worker: Worker) -> float:
    """Freezes it, between two transactions: how long until it is declared lost?"""
    play.enqueue(4, "tick", seconds=LEASE)
    before = _lost(play).get(worker.pid, 0)
    while True:
        worker.send(signal.SIGSTOP)
        frozen = time.monotonic()
        time.sleep(0.05)
        if not oracle.rows(play.mill, _IN_TRANSACTION)[0][0]:
            break
        worker.send(signal.SIGCONT)
        time.sleep(play.dice.uniform(0.01, 0.05))
    try:
        play.eventually(lambda: _lost(play).get(worker.pid, 0) > before, "it is declared lost", 2 * LEASE + SWEEP)
    finally:
        worker.send(signal.SIGCONT)
    took = time.monotonic() - frozen
    if took < LEASE / 2:  # its last heartbeat was a third of a lease ago, or a little more
        raise Violation(f"worker {worker.pid} was declared lost {took:.2f} s after its last sign of life")
    return took
