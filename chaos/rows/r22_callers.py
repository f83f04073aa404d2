"""Many callers start the same run at once, subject after subject; and several schedulers meet at every fire time.

The schedulers have a clock of their own, which goes on by a minute at a time. Some of them ask for the leadership, as
workers do, and some do not: that each fire time starts one thing must not depend on it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from chaos import oracle
from chaos.play import ROOT, Play, Violation, open_mill
from chaos.record import noted
from gristmill import Mill, Schedule
from gristmill.clock import SECOND, FrozenClock

TITLE = "many callers, and several schedulers, start the same"
DATABASES = ("SQLite", "PostgreSQL")
TOGETHER = 20  # callers in a process
SCHEDULERS = 3
ITEMS = 2
MINUTE = 60
_RUNS = "SELECT s.name, r.id FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id"
_TIMED = "SELECT id FROM gm_job WHERE run_id IS NULL"
_TWICE = "SELECT schedule_id, fire_at, count(*) FROM gm_fire GROUP BY schedule_id, fire_at HAVING count(*) > 1"


def play(play: Play) -> str:
    oracle.watch(play.mill)
    callers, subjects, ticks = play.pick(40, 100), play.pick(25, 1000), play.pick(70, 1000)
    _call(play, callers, subjects)
    refused = _one_each(play, callers, subjects)
    fired = _tick(play, ticks)
    play.crew(2)
    longest = oracle.settle(play)
    oracle.check(play, failing=True)  # runs that a schedule started were cancelled, to make place for the next one
    return (
        f"{callers} callers x {subjects} subjects: {subjects} runs, each created for one caller and the same for all others"
        f" ({refused} asked to be refused then, and were); {SCHEDULERS} schedulers x {ticks} ticks: {fired[0]} jobs and"
        f" {fired[1]} runs, one per fire time; longest pause {longest:.1f} s"
    )


def _call(play: Play, callers: int, subjects: int) -> None:
    order = {"url": play.url, "apps": play.apps, "folder": str(play.folder), "seed": play.seed, "items": ITEMS}
    order |= {"subjects": subjects, "callers": TOGETHER, "begin": time.monotonic() + 2.0 + callers / 50}
    herd = [
        subprocess.Popen([sys.executable, "-m", "chaos.callers", json.dumps({**order, "first": first})], cwd=ROOT)
        for first in range(0, callers, TOGETHER)
    ]
    for each in herd:
        play.stack.callback(each.wait)
        play.stack.callback(each.kill)
    if any(each.wait(1800) for each in herd):
        raise Violation("a caller failed; it said why")


def _one_each(play: Play, callers: int, subjects: int) -> int:
    """One run per subject, as the ledger has it and as everyone was told. Says how many were refused."""
    told: dict[str, list[tuple[int | None, bool]]] = defaultdict(list)
    for subject, run, created in noted(play.folder, "told"):
        told[subject].append((run, created))
    runs: dict[str, list[int]] = defaultdict(list)
    for subject, run in oracle.rows(play.mill, _RUNS):
        runs[subject].append(play.acknowledge("run", run, ITEMS))
    wrong = [f"{subject} has runs {found}" for subject, found in runs.items() if len(found) != 1]
    for subject, answers in told.items():
        created = sum(created for _, created in answers)
        if created != 1 or {run for run, _ in answers if run is not None} != set(runs[subject]):
            wrong.append(f"{subject}: {created} callers were told that it was they, with the runs {Counter(answers)}")
    answered = sum(map(len, told.values()))
    if wrong or len(runs) != subjects or answered != callers * subjects:
        raise Violation(f"{len(runs)} subjects, {answered} answers; {'; '.join(wrong[:5])}")
    return sum(run is None for answers in told.values() for run, _ in answers)


def _tick(play: Play, ticks: int) -> tuple[int, int]:
    """Each tick is a fire time of two schedules: of a job, and of a run. Says how many of each there are."""
    clock = FrozenClock((int(time.time()) // MINUTE - ticks - 5) * MINUTE * SECOND)  # so that it never is in the future
    mills = [play.stack.enter_context(open_mill(play.url, *play.apps, clock=clock)) for _ in range(SCHEDULERS)]
    given = {"folder": str(play.folder)}
    mills[0].add_schedule(Schedule("job", cron="* * * * *", task="one", args=given, overlap=True))
    mills[0].add_schedule(Schedule("run", cron="* * * * *", pipeline="fan", subject="timed", args={**given, "items": ITEMS}))
    at_once = threading.Barrier(SCHEDULERS)
    schedulers = [mill.scheduler() for mill in mills]

    def fire(number: int, leading: bool) -> None:
        at_once.wait(60)
        schedulers[number].tick() if leading else schedulers[number].run()

    with ThreadPoolExecutor(SCHEDULERS) as pool:
        for _ in range(ticks):
            clock.advance(MINUTE)
            how = [play.dice.random() < 0.3 for _ in range(SCHEDULERS)]
            list(pool.map(fire, range(SCHEDULERS), how))
            schedulers[0].run()  # if all left it to one who had not got the leadership
            _make_place(mills[0])
    return _fired(play, ticks)


def _make_place(mill: Mill) -> None:
    for run in mill.runs(pipeline="fan", subject="timed", state="queued"):
        mill.cancel_run(run.id, by="chaos")


def _fired(play: Play, ticks: int) -> tuple[int, int]:
    jobs = oracle.rows(play.mill, _TIMED)
    runs = oracle.rows(play.mill, f"{_RUNS} WHERE s.name = 'timed'")
    twice = oracle.rows(play.mill, _TWICE)
    if twice or (len(jobs), len(runs)) != (ticks, ticks):
        raise Violation(f"{ticks} fire times of each: {len(jobs)} jobs, {len(runs)} runs, recorded twice: {twice[:3]}")
    for (job,) in jobs:
        play.acknowledge("job", job)
    return len(jobs), len(runs)
