"""Checks 1 to 6: one site from documents to a database that is searched, and what else can become of it."""

from __future__ import annotations

from pathlib import Path

from accept.clerk.place import Place, ask, corrupt, must, page_ids, same, scan, typed
from accept.clerk.scene import Scene, check

SITE = "elmwood.ca"
WORD = "zeppelin"


def three(place: Place) -> Path:
    """Two scans and one with a text layer; the word is only in the image of a page."""
    folder = place.source("three")
    scan(folder, "2026-01-05", ["The council met at seven", f"The {WORD} hangar was leased"])
    typed(folder, "2026-02-02", ["harbour", "orchard"])
    scan(folder, "2026-03-02", ["Call to order and roll call"], "agendas")
    return folder


def pages_with(database: Path, word: str) -> list[tuple[str, int]]:
    sql = "SELECT m.date, m.page FROM minutes_fts f JOIN minutes m ON m.rowid = f.rowid WHERE minutes_fts MATCH ?"
    return [(row["date"], row["page"]) for row in ask(database, sql, word)]


def run_here(place: Place) -> Path:
    """What is published when a newcomer has typed two lines."""
    place.new(SITE, three(place), "--local")
    return place.published / SITE / "meetings.db"


@check(1, "an empty folder, three PDFs, --local")
def newcomer(scene: Scene) -> str:
    place = scene.place(upgraded=False, empty=True)
    same(list(place.folder.iterdir()), [], "what is in the folder")
    place.clerk("db", "upgrade")
    same(place.clerk("health").lines, ["Status: healthy"], "what health says before the first site")
    must(not place.storage.exists(), "there is a storage already")
    database = run_here(place)
    must(not (place.folder / ".env").exists(), "it needed settings")
    same(pages_with(database, WORD), [("2026-01-05", 2)], f"pages with {WORD!r}, which is only in a scan")
    same(pages_with(database, "dirigible"), [], "pages with a word that is nowhere")
    same(len(page_ids(database)), 5, "pages")
    return f"{WORD!r} is found on page 2 of a scan; 5 pages published"


@check(2, "the same by worker all --burst")
def burst(scene: Scene) -> str:
    here, there = run_here(scene.place()), scene.place()
    there.new(SITE, three(there))
    same(there.site(SITE)["current_stage"], "fetch", "the stage before a worker comes")
    there.clerk("worker", "all", "--burst")
    found = page_ids(there.published / SITE / "meetings.db")
    same(found, page_ids(here), "ids of pages")
    same(len(set(found)), 5, "different ids")
    return f"{len(found)} page ids, identical"


@check(3, "a second update -s of an unchanged site")
def unchanged(scene: Scene) -> str:
    place = scene.place()
    published = run_here(place)
    before = place.files(), published.stat().st_mtime_ns
    place.clerk("update", "-s", SITE)
    place.clerk("worker", "all", "--burst")
    [run, _] = place.rows("SELECT state, reason FROM gristmill_runs ORDER BY id DESC")
    same((run["state"], run["reason"]), ("completed", "unchanged"), "how the second run ended")
    same((place.files(), published.stat().st_mtime_ns), before, "files and when they were written")
    said = place.clerk("update", "-s", SITE, "--local").lines[-1]
    same(said, f"{SITE}: unchanged (0 of 0 documents read)", "what a third one says")
    return "unchanged twice; no file was written again, meetings.db neither"


@check(4, "ten PDFs of which two are corrupt")
def two_corrupt(scene: Scene) -> str:
    place = scene.place()
    folder = place.source("ten")
    for day in range(1, 9):
        (scan if day == 1 else typed)(folder, f"2026-01-0{day}", [f"word{day}"])
    bad = [corrupt(folder, f"2026-02-0{day}").name for day in (1, 2)]
    place.new(SITE, folder, "--local")
    same((place.site(SITE)["current_stage"], *place.counted(SITE)), ("completed", 8, 2, 10), "stage and counters")
    said = place.clerk("check-failed", "-s", SITE).out
    must("Failed jobs in ocr: 2" in said and all(name in said for name in bad), f"check-failed says: {said}")
    same(len(page_ids(place.published / SITE / "meetings.db")), 8, "published pages")
    same(place.site(SITE)["last_error_stage"], "ocr", "last_error_stage")
    return "completed 8/2/10; check-failed names both"


@check(5, "all corrupt")
def all_corrupt(scene: Scene) -> str:
    place = scene.place()
    folder = place.source("bad")
    for day in (1, 2, 3):
        corrupt(folder, f"2026-01-0{day}")
    place.new(SITE, folder, "--local", code=1)
    same((place.site(SITE)["current_stage"], *place.counted(SITE)), ("ocr", 0, 3, 3), "stage and counters")
    before = place.everything(), place.files()
    said = place.clerk("reconcile")
    must(f"Left to a person: {SITE}: " in said.out, f"reconcile says: {said.out}")
    same(said.lines[-1], "Recovered 0 sites", "the last line of reconcile")
    after = place.everything(), place.files()
    differ = [name for name in after[0] if after[0][name] != before[0].get(name)]
    same((differ, after[1] == before[1]), ([], True), "tables that reconcile changed")
    must(not (place.published / SITE).exists(), "something was published")
    return "exit 1, stage ocr 0/3/3; reconcile lists it, no row of any table changed"


@check(6, "an empty folder")
def empty(scene: Scene) -> str:
    place = scene.place()
    place.new(SITE, place.source("empty"), "--local")
    site = place.site(SITE)
    same((site["status"], site["current_stage"], *place.counted(SITE)), ("no_documents", "completed", 0, 0, 0), "the site")
    same(site["last_error_stage"], "fetch", "last_error_stage")
    must(site["last_error_message"].startswith("No PDFs found"), f"the error says {site['last_error_message']!r}")
    must(not (place.published / SITE).exists(), "something was published")
    return "exit 0, no_documents, totals 0, nothing published"
