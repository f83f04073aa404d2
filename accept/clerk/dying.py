"""Check 15: whatever dies, and when, what is published is whole."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter

from accept.clerk.place import Place, ask, eventually, kill_family, must, same, typed
from accept.clerk.scene import Scene, check
from clerk.names import KINDS
from clerk.storage import SiteFiles
from tests.clerk.site import assert_sound

SITE = "elmwood.ca"
KILLS, PAGES, DOCUMENTS = 50, 25, 8


@check(15, "kill -9 of compilation and deploy, fifty times, at random moments")
def kills(scene: Scene) -> str:
    place = scene.place()
    folder = place.source("some")
    for day in range(1, DOCUMENTS + 1):
        typed(folder, f"2026-01-0{day}", [f"page{n}" for n in range(PAGES)], KINDS[day % 2])
    place.new(SITE, folder, "--all-agendas", "--local")
    chance = random.Random()
    killed: Counter[str] = Counter()
    generation, oldest = 0, 0
    lasts = dict.fromkeys(("compilation", "deploy"), 1.0)
    while killed.total() < KILLS:
        if not _active(place):
            generation += 1
            _write(place, generation)
        stage = "deploy" if killed["deploy"] < killed["compilation"] else "compilation"
        if _run_and_kill(place, stage, chance, lasts):
            killed[stage] += 1
        oldest = _look(place, oldest, generation)
        must(generation <= 4 * KILLS, f"only {killed.total()} of {generation} were killed in time")
    place.clerk("update", "-s", SITE, "--skip-fetch", "--local", code=None)
    _write(place, generation + 1)
    place.clerk("update", "-s", SITE, "--skip-fetch", "--local")
    same(_look(place, oldest, generation + 1), generation + 1, "what is published after one that was left alone")
    return f"{killed['compilation']} in compilation, {killed['deploy']} in deploy: each time old or new, whole, searchable"


def _active(place: Place) -> bool:
    return bool(place.rows("SELECT id FROM gristmill_runs WHERE finished_at IS NULL"))


def _write(place: Place, generation: int) -> None:
    """All pages anew, as if the documents had been read again."""
    files = SiteFiles(place.storage, SITE)
    for kind in KINDS:
        for document in files.documents(kind):
            for page in files.pages(document):
                page.write_text(f"generation{generation} {page.stem} " + "more words " * 100)
            files.marker(document).touch()


def _run_and_kill(place: Place, stage: str, chance: random.Random, lasts: dict[str, float]) -> bool:
    """Goes on with the run, or begins one, and is killed some time after the stage begins; says whether it was in time."""
    process = place.start("update", "-s", SITE, "--skip-fetch", "--local")
    try:
        began = _begins(place, process, stage)
        until = time.monotonic() + chance.uniform(0, lasts[stage])
        while began and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        in_time = began and process.poll() is None
    finally:
        kill_family(process)
    lasts[stage] *= 1.1 if in_time else 0.8  # so that the moments are spread over as long as it takes
    return in_time


def _begins(place: Place, process: subprocess.Popen[str], stage: str) -> bool:
    own = f"SELECT id FROM gm_worker WHERE pid = {process.pid}"
    at_work = f"j.stage = '{stage}' AND j.state = 'in_progress' AND j.worker_id IN ({own})"
    return (
        bool(eventually(lambda: process.poll() is not None or place.jobs(at_work), f"{stage} begins"))
        and process.poll() is None
    )


def _look(place: Place, oldest: int, newest: int) -> int:
    """Which generation is published; never an older one than before."""
    for database in (place.published / SITE / "meetings.db", place.storage / SITE / "meetings.db"):
        assert_sound(database)
    rows = []
    published = place.published / SITE / "meetings.db"
    for kind in KINDS:
        matching = f"SELECT rowid FROM {kind}_fts WHERE {kind}_fts MATCH 'words OR council'"
        rows += ask(
            published, f"SELECT substr(text, 1, instr(text, ' ') - 1) AS word FROM {kind} WHERE rowid IN ({matching})"
        )
    found = Counter(row["word"].removeprefix("generation") for row in rows)
    [(word, count)] = found.items() if len(found) == 1 else [("", 0)]
    same(count, PAGES * DOCUMENTS, f"pages of one generation in what is published ({dict(found)})")
    shown = int(word) if word.isdigit() else 0
    must(oldest <= shown <= newest, f"generation {shown} is published after {oldest}, and {newest} is the newest")
    return shown
