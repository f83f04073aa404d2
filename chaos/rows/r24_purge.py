"""Purges that race the completion of what they purge: nothing of it may be there once the purge is over.

A purge waits for what is at work. Half of the runs are therefore retried just before: what their workers have in hands is
not theirs any more then, the run is gone while they are still at it, and what they write at the end is late.
"""

from __future__ import annotations

import contextlib
import re
import time
from concurrent.futures import ThreadPoolExecutor

from chaos import oracle
from chaos.play import Play, Violation
from gristmill.errors import NotFound, Refused

TITLE = "purge racing completion"
DATABASES = ("SQLite", "PostgreSQL")
ITEMS = 2
READY = 12  # runs that there always are
TOGETHER = 4  # purges at once
_AT_WORK = (
    "SELECT DISTINCT s.name, r.id FROM gm_job j JOIN gm_run r ON r.id = j.run_id JOIN gm_subject s ON s.id = r.subject_id"
    " WHERE j.state = 1 AND r.stop IS NULL"
)
_REFUSED = re.compile(r"(\d+) outcomes were refused")
_OPEN = "SELECT 1 FROM gm_order WHERE reached IS NOT NULL UNION ALL SELECT 1 FROM gm_removal WHERE stage_id <> 0 LIMIT 1"


def play(play: Play) -> str:
    play.apps = ("chaos.heap",)
    oracle.watch(play.mill)
    races = play.pick(100, 10_000)
    crew = play.crew(2)
    crew.ready()
    purged: dict[int, bool] = {}
    started: set[int] = set()
    with ThreadPoolExecutor(TOGETHER) as pool:
        while len(purged) < races:
            started |= _refill(play, len(started))
            meant = {name: run for name, run in oracle.rows(play.mill, _AT_WORK) if run not in purged}
            some = [(*one, play.dice.random() < 0.5) for one in sorted(meant.items())[:TOGETHER]]
            for run, over in pool.map(lambda one: _purge(play, *one), some):
                purged[run] = over
            time.sleep(play.dice.uniform(0.0, 0.01))
    longest = oracle.settle(play)
    play.eventually(lambda: not oracle.rows(play.mill, _OPEN), "what waited for a run's end is carried out")
    for run in started - set(purged):
        play.acknowledge("run", run)
    oracle.check(play, failing=True, retried=True)
    _nothing_left(play, list(purged))
    at_once = sum(purged.values())
    late = sum(int(found[1]) for line in crew.logs() if (found := _REFUSED.search(line)))
    if not late:
        raise Violation("nobody wrote late: nothing was shown")
    return (
        f"{len(purged)} purges of runs with a job at work ({at_once} were over at once, the others when that job ended):"
        f" 0 rows, results, items or attempts afterwards, {late} outcomes came late;"
        f" {len(started) - len(purged)} other runs ended; longest pause {longest:.1f} s"
    )


def _refill(play: Play, started: int) -> set[int]:
    """There is always work to purge."""
    there = len(oracle.rows(play.mill, f"SELECT id FROM gm_run WHERE finished_at IS NULL AND stop IS NULL LIMIT {READY}"))
    return {
        play.mill.start("heap", f"{n}", args={"items": ITEMS, "seconds": play.dice.uniform(0.0, 0.08)}).id
        for n in range(started, started + READY - there)
    }


def _purge(play: Play, subject: str, run: int, retried: bool) -> tuple[int, bool]:
    """Says whether it was over when the command came back; then nothing may be left at that moment either."""
    if retried:
        with contextlib.suppress(Refused, NotFound):  # nothing of it has ended yet, or all has
            play.mill.retry_run(run, stage="page", by="chaos")
    over = not play.mill.purge_subject("heap", subject, history=True, by="chaos").open
    if over:
        _nothing_left(play, [run])
    return run, over


def _nothing_left(play: Play, runs: list[int]) -> None:
    which = ", ".join(map(str, runs))
    for table, column in (("gm_run", "id"), ("gm_stage", "run_id"), ("gm_job", "run_id")):
        if found := oracle.rows(play.mill, f"SELECT {column} FROM {table} WHERE {column} IN ({which})"):
            raise Violation(f"{len(found)} rows of {table} after the purge, of run {found[0][0]}")
    if found := oracle.rows(
        play.mill, "SELECT job_id FROM gm_attempt a WHERE NOT EXISTS (SELECT 1 FROM gm_job WHERE id = a.job_id) LIMIT 5"
    ):
        raise Violation(f"attempts of jobs that are gone: {found}")
