"""Checks 7, 8, 9 and 12: workers that die, ticks that meet, a high run on a busy system, many sites at once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

from accept.clerk.place import Place, eventually, family, is_gone, kill_family, must, page_ids, same, scan, typed
from accept.clerk.scene import Scene, check
from clerk import sites
from clerk.app import open_mill
from clerk.config import load
from clerk.names import STAGES
from clerk.sites import Description

SITE = "elmwood.ca"
DATABASES = ("SQLite", "PostgreSQL")
_IN_HAND = timedelta(seconds=0.3)  # a worker fetches short jobs ahead, for a tenth of a second


def create(place: Place, names: list[str], source: Path) -> None:
    """As `clerk new --no-enqueue` does: a hundred of these would take longer than all the rest."""
    with open_mill(load({}, place.folder)) as mill:
        for name in names:
            sites.create(mill, Description(name, name, "folder", start_year=2026, extra={"path": str(source)}))


@check(7, "kill -9 of an OCR worker in the middle of a document, reconcile, burst")
def killed_worker(scene: Scene) -> str:
    told = [_killed_worker(scene.place(database)) for database in DATABASES]
    return f"on both databases the item was given back, completed 3/0/3, its processes gone ({'; '.join(told)})"


def _killed_worker(place: Place) -> str:
    folder = place.source("three")
    for day in (1, 2, 3):
        scan(folder, f"2026-01-0{day}", [f"page {page} of document {day}" for page in range(4)])
    place.new(SITE, folder)
    place.clerk("worker", "fetch", "--burst")
    worker = place.start("worker", "ocr")
    try:
        eventually(lambda: any("tesseract" in one.name() for one in family(worker)), "tesseract reads a page")
        all_of_it = family(worker)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        eventually(lambda: all(map(is_gone, all_of_it)), "what the worker had started ends, too")
    finally:
        kill_family(worker)
    [held] = place.jobs("j.state = 'in_progress'")
    same(place.counted(SITE), (0, 0, 3), "counters after the kill")
    said = place.clerk("reconcile").lines
    must(any(line.startswith(f"Recovering {SITE}: ") for line in said), f"reconcile says: {said}")
    same((place.jobs("j.state = 'in_progress'"), place.counted(SITE)), ([], (0, 0, 3)), "after reconcile")
    place.clerk("worker", "all", "--burst")
    same((place.site(SITE)["current_stage"], *place.counted(SITE)), ("completed", 3, 0, 3), "stage and counters")
    attempts = Counter(job["attempt"] for job in place.jobs("j.stage = 'ocr'"))
    same(attempts, {1: 2, 2: 1}, "attempts of the three documents")
    same(len(page_ids(place.published / SITE / "meetings.db")), 12, "published pages")
    return f"{held['key'].rpartition('/')[2]} read twice"


@check(8, "ten update --next at once over five sites")
def ticks(scene: Scene) -> str:
    for database in DATABASES:
        place = scene.place(database)
        names = [f"town{n}.ca" for n in range(5)]
        create(place, names, place.source("empty"))
        ten = [place.start("update", "--next") for _ in range(10)]
        said = [tick.communicate(timeout=300) for tick in ten]
        same([tick.returncode for tick in ten], [0] * 10, f"exit codes ({said})")
        lines = Counter(line for out, _ in said for line in out.splitlines())
        wanted = {f"Auto-enqueueing {name}": 1 for name in names} | {"No sites eligible for auto-enqueue": 5}
        same(lines, wanted, f"what they say on {database}")
        runs = Counter(row["subject"] for row in place.rows("SELECT subject FROM gristmill_runs"))
        same(runs, dict.fromkeys(names, 1), f"runs on {database}")
    return "5 runs of 5 sites, and 5 times nothing to do, on both databases"


@check(9, "update -s on a system that is busy in every stage")
def high_first(scene: Scene) -> str:
    place = scene.place()
    _make_busy(place, "first")
    with place.worker("all"):
        eventually(lambda: place.jobs("j.state = 'in_progress'"), "the worker is busy")
        _overtake(place, "first.ca")
    _make_busy(place, "second")
    with ExitStack() as stack:
        for stage in STAGES:
            stack.enter_context(place.worker(stage))
        eventually(lambda: place.jobs("j.state = 'in_progress'"), "the workers are busy")
        _overtake(place, "second.ca")
    return "none of others began while one of x was queued, with a worker of all stages and with one of each"


def _make_busy(place: Place, name: str) -> None:
    """Six sites wait for each stage: some are served before who asks is there, for a site of this name."""
    create(place, [f"{name}.ca"], place.source("two"))
    for day in (1, 2):
        scan(place.source("two"), f"2026-01-0{day}", [f"page of day {day}"])
    for last in reversed(range(len(STAGES))):
        names = [f"{name}-{STAGES[last]}{n}.ca" for n in range(6)]
        create(place, names, place.source("two"))
        place.clerk("enqueue", *names)
        for stage in STAGES[:last]:
            place.clerk("worker", stage, "--burst")
    waiting = Counter(job["queue"] for job in place.jobs("j.state = 'queued'"))
    must(all(waiting[stage] >= 6 for stage in STAGES), f"too little is queued to tell: {waiting}")


def _at(moment: datetime | str) -> datetime:
    return datetime.fromisoformat(moment) if isinstance(moment, str) else moment


def _overtake(place: Place, site: str) -> None:
    """Runs this site: no job of others begins in a stage where one of its own waits.

    What a worker has in its hands already cannot be overtaken any more: the one that it is just taking, and of short ones
    as many as it does in a moment. All others can.
    """
    place.clerk("update", "-s", site)
    eventually(lambda: place.site(site)["current_stage"] == "completed", f"{site} ends")
    jobs = [job for job in place.jobs("j.part_of IS NULL") if job["started_at"]]
    for stage in STAGES:
        own = [job for job in jobs if job["queue"] == stage and job["site"] == site]
        others = [job for job in jobs if job["queue"] == stage and job["site"] != site]
        must(own, f"{site} had nothing to do in {stage}")
        between = [
            other
            for other in others
            if any(_at(one["created_at"]) + _IN_HAND < _at(other["started_at"]) < _at(one["started_at"]) for one in own)
        ]
        must(not between, f"{len(between)} jobs of others began in {stage} while {site} waited")


@check(12, "a hundred sites enqueued at once, eight workers")
def hundred(scene: Scene) -> str:
    place = scene.place("PostgreSQL")
    names = [f"site{n:03}.ca" for n in range(100)]
    for name in names:
        folder = place.source(name)
        typed(folder, "2026-01-05", [name])
        (scan if name.endswith("0.ca") else typed)(folder, "2026-02-05", [f"second of {name[:7]}"])
        create(place, [name], folder)
    place.clerk("enqueue", *names)
    workers = [place.start("worker", "all", "--burst", CLERK_WORKER_NUMBER=str(n)) for n in range(1, 9)]
    said = [worker.communicate(timeout=1800)[1][-200:] for worker in workers]
    same([worker.returncode for worker in workers], [0] * 8, f"exit codes of the workers ({said})")
    same(len(place.rows("SELECT id FROM gristmill_runs")), 100, "runs")
    ended = Counter((row["current_stage"], place.counted(row["subdomain"])) for row in place.rows("SELECT * FROM sites"))
    same(ended, {("completed", (2, 0, 2)): 100}, "how the sites ended")
    jobs = Counter((job["stage"], job["attempt"], job["state"]) for job in place.jobs())
    once = {(stage, 1, "completed"): 200 if stage == "ocr" else 100 for stage in (*STAGES, "gate")}
    same(jobs, once, "jobs by stage, attempts and end")
    same({len(page_ids(place.published / name / "meetings.db")) for name in names}, {2}, "pages of each site")
    return f"100 completed, 700 jobs, each begun once and ended once by one of {_begun_and_ended_once(place, 700)} workers"


def _begun_and_ended_once(place: Place, jobs: int) -> int:
    """By what the workers logged; says how many of them took part."""
    lines = [json.loads(line) for log in (place.folder / "logs").glob("worker-all-*.log") for line in log.open()]
    told = [line for line in lines if line["message"].endswith(("_started", "_completed")) and line["job_id"]]
    often = Counter((line["job_id"], line["message"].rpartition("_")[2]) for line in told)
    same((len(often), set(often.values())), (2 * jobs, {1}), "beginnings and ends in the logs, and how often each is there")
    return len({line["worker"] for line in told})
