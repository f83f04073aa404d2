"""Checks 10, 11, 13 and 14: the operators' queries, what an older clerk left, health, services."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import yaml

from accept.clerk.place import Place, corrupt, must, program, same, typed
from accept.clerk.scene import Scene, check
from clerk.names import STAGES
from tests import servers
from tests.clerk import papers
from tests.clerk.older_clerk import OlderClerk, leave_jobs
from tests.clerk.test_legacy_fixture import EXPECTED, MOVED
from tests.clerk.test_queries import ONLY_POSTGRES, printed
from tests.valkey import running_valkey

PRINTED = 8  # queries of the design; views that both databases have follow

# ---- 10


@check(10, "the eight queries in psql, four of them in sqlite3")
def queries(scene: Scene) -> str:
    asked = dict(list(printed().items())[:PRINTED])
    both = {name: query for name, query in asked.items() if not any(word in query for word in ONLY_POSTGRES)}
    same((len(asked), len(both)), (8, 4), "queries, and those that are for both databases")
    answers = {}
    for database, wanted in (("PostgreSQL", asked), ("SQLite", both)):
        place = _three_sites(scene.place(database))
        answers[database] = {name: _typed_in(place, query) for name, query in wanted.items()}
        _look_right(answers[database])
    for name in both:
        found = [sorted(answers[database][name]) for database in answers]
        same(found[0], found[1], f"{name!r} on PostgreSQL and on SQLite")
    return "all ran unmodified, none answered nothing, and the four say the same on both"


def _three_sites(place: Place) -> Place:
    """One that is done but for a document, one for a person, and one that has not moved for three hours."""
    folder = place.source("some")
    for day in (1, 2, 3):
        typed(folder, f"2026-01-0{day}", [f"word{day}"])
    corrupt(folder, "2026-01-04")
    place.new("done.ca", folder, "--local")
    corrupt(place.source("bad"), "2026-01-05")
    place.new("bad.ca", place.source("bad"), "--local", code=1)
    place.new("stuck.ca", folder)
    earlier = "now() - interval '3 hours'" if place.url.startswith("postgres") else "'2026-01-01T00:00:00+00:00'"
    _typed_in(place, f"UPDATE clerk_site SET updated_at = {earlier} WHERE subdomain = 'stuck.ca'")
    return place


def _typed_in(place: Place, query: str) -> list[str]:
    """The lines that the database's own program prints."""
    if place.url.startswith("postgres"):
        command = [program("psql"), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", servers.libpq_url(place.url), "-c", query]
    else:
        command = [program("sqlite3"), "-bail", place.url.removeprefix("sqlite:///"), query]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    must(not done.returncode, f"{query.splitlines()[0]}…: {done.stderr.strip()}")
    return done.stdout.splitlines()


def _look_right(answers: dict[str, list[str]]) -> None:
    for name, lines in answers.items():
        must(lines, f"{name!r} answered nothing")
    same(sorted(answers["How many sites in each stage?"]), ["completed|1", "fetch|1", "ocr|1"], "sites in each stage")
    same(answers["Sites with high failure rates?"], ["bad.ca|1|0|1|100.0", "done.ca|4|3|1|25.0"], "failure rates")
    same(sorted(answers["Success rates by stage"]), ["compilation|1|1|0|100.0", "ocr|5|3|2|60.0"], "success rates")
    if stuck := answers.get("Sites stuck > 2 hours?"):
        same([line.split("|")[0] for line in stuck], ["stuck.ca"], "stuck sites")


# ---- 11


class RealOlderClerk(OlderClerk):
    """Its PDFs are PDFs: every second one a scan."""

    def document(self, subdomain: str, key: str, *, pdf: bool = True, text: bool = True, marker: bool | str = True) -> None:
        super().document(subdomain, key, pdf=False, text=text, marker=marker)
        if pdf:
            kind, meeting, date = key.split("/")
            tree = self.storage / subdomain / ("_agendas" if kind == "agendas" else "") / "pdfs"
            make = papers.scanned if date.endswith("-04") and subdomain.endswith("0.example") else papers.typed
            make(tree / meeting / f"{date}.pdf", [f"{papers.LINE[:20]} of {subdomain}"])


@check(11, "what an older clerk left: 105 stuck sites, 82 coordinators, 2,695 failed jobs")
def older(scene: Scene) -> str:
    place = scene.place("PostgreSQL", upgraded=False)
    left = RealOlderClerk(place.url, place.storage, "2026-01-18", scraper="folder")
    left.as_found()
    _typed_in(place, f"""UPDATE sites SET extra = '{{"path": "{place.source("empty")}"}}'""")
    with running_valkey() as valkey:
        with valkey.client as client:
            leave_jobs(client)
        place.settings(REDIS_URL=valkey.url)
        _migrate(place, left)
        place.clerk("reconcile")
        place.clerk("worker", "all", "-n", "2", "--burst")
    return _ended_as_stated(place, left)


def _migrate(place: Place, left: OlderClerk) -> None:
    before = place.everything(), place.files()
    place.clerk("import-legacy", "--dry-run")
    same((place.everything(), place.files()) == before, True, "nothing is changed by a dry run of import-legacy")
    place.clerk("import-legacy")
    before = place.everything(), place.files()
    planned = place.clerk("migrate-stuck-sites", "--dry-run").lines
    same((place.everything(), place.files()) == before, True, "nothing is changed by a dry run of migrate-stuck-sites")
    said = place.clerk("migrate-stuck-sites").lines
    sites = [f"  {name}: {EXPECTED[kind]}" for name, kind in sorted(left.stuck.items())]
    cleared = ["Cleared 82 deferred coordinators", "Cleared 2695 failed OCR jobs"]
    same(said, ["Found 105 stuck sites in OCR stage", *sites, "Migrated 105 sites", *cleared], "what is said")
    same(planned[:106], said[:106], "what the dry run said")


def _ended_as_stated(place: Place, left: OlderClerk) -> str:
    same(place.rows("SELECT * FROM gristmill_runs WHERE finished_at IS NULL"), [], "active runs")
    stages = Counter(row["current_stage"] for row in place.rows("SELECT * FROM sites"))
    same(stages, {"completed": 105 + 3 + 12, None: 1}, "sites by stage")
    empty = {name for name, kind in left.stuck.items() if kind == "empty"}
    found = {row["subdomain"] for row in place.rows("SELECT * FROM sites WHERE status = 'no_documents'")}
    same(found, empty | {"fetching.example"}, "sites without documents")
    handed = left.stuck.keys() - empty | MOVED
    for stage, sites in {"gate": handed, "compilation": handed - {"fetching.example"}}.items():
        jobs = Counter(job["site"] for job in place.jobs(f"j.stage = '{stage}'"))
        same(jobs, dict.fromkeys(sites, 1), f"hand-overs: jobs of {stage}")
    read = Counter(job["site"] for job in place.jobs("j.stage = 'ocr' AND j.state = 'completed'"))
    unread = {name for name, kind in left.stuck.items() if kind in ("partly", "unread")}
    same(read, dict.fromkeys(unread, 2), "documents read now, by site")
    published = {path.parent.name for path in place.published.glob("*/meetings.db")}
    same(published, handed - {"fetching.example"}, "published sites")
    ended = f"{sum(read.values())} documents read, none active, none in ocr, each handed over once"
    return f"dry runs wrote nothing; 105 migrated, {ended}"


# ---- 13


@check(13, "health in prepared states")
def health(scene: Scene) -> str:
    place = scene.place()
    place.clerk("health", code=0)
    folder = place.source("one")
    typed(folder, "2026-01-05", ["word"])
    corrupt(place.source("bad"), "2026-01-05")
    place.new("good.ca", folder, "--local")
    for _ in range(5):
        place.clerk("run-local", "good.ca")
    told = [_health(place, 0, "healthy")]
    place.new("bad.ca", place.source("bad"), "--local", code=1)
    told += [_health(place, 1, "degraded", "of the last hour")]  # 6 of 7 runs
    told += [_health(place, 1, "degraded", "Redis", REDIS_URL="redis://127.0.0.1:9/0")]
    place.clerk("enqueue", "good.ca")
    told += [_health(place, 2, "unhealthy", "no worker of that type is alive")]
    told += [_health(place, 2, "unhealthy", "clerk db upgrade", DATABASE_URL=f"sqlite:///{place.folder}/none.db")]
    return ", ".join(told)


def _health(place: Place, code: int, status: str, because: str = "", **environ: str) -> str:
    found = place.clerk("health", "--json", code=code, **environ).json
    same((found["status"], found["exit_code"]), (status, code), "status and exit code in the JSON")
    same(list(found), ["status", "exit_code", "timestamp", "checks", "issues", "warnings"], "its keys")
    said = found["issues"] + found["warnings"]
    must(any(because in line for line in said) if because else not said, f"it says {said}")
    return f"{code} ({because or 'idle'})"


# ---- 14

COUNTS = {"fetch": 2, "ocr": 3, "compilation": 1, "extraction": 1, "deploy": 0}
WORKERS = [(stage, n) for stage, count in COUNTS.items() for n in range(1, count + 1)]
NAMES = {
    "launchd": {f"com.civicband.worker.{stage}.{n}.plist" for stage, n in WORKERS}
    | {f"com.civicband.{tick}.plist" for tick in ("scheduler", "reconcile")},
    "systemd": {f"clerk-worker@{stage}-{n}.service" for stage, n in WORKERS}
    | {f"clerk-{tick}.{kind}" for tick in ("scheduler", "reconcile") for kind in ("service", "timer")},
    "compose": {"compose.yaml"},
}
SERVICES = {f"{stage}-workers" for stage in STAGES} | {"scheduler", "reconcile"}


@check(14, "install-workers --dry-run for three targets, then installed and removed")
def services(scene: Scene) -> str:
    place = scene.place(upgraded=False)
    place.settings(**{f"{stage.upper()}_WORKERS": count for stage, count in COUNTS.items()})
    for target, names in NAMES.items():
        out = place.folder / "services" / target
        words = ("--target", target, "--output", out)
        dry = place.clerk("install-workers", *words, "--dry-run")
        shown = [Path(line.removeprefix("==> ")).name for line in dry.lines if line.startswith("==> ")]
        same((sorted(shown), out.exists()), (sorted(names), False), f"files that are shown for {target}, and written")
        must("--burst" not in dry.out, f"services of {target} that end by themselves")
        place.clerk("install-workers", *words)
        same({path.name for path in _files(out)}, names, f"files for {target}")
        if target == "compose":
            named = set(yaml.safe_load((out / "compose.yaml").read_text())["services"])
            must(named >= SERVICES - {"deploy-workers"}, f"services of compose: {named}")
        stranger = out / "of-somebody-else.conf"
        stranger.write_text("not clerk's\n")
        place.clerk("uninstall-workers", *words)
        same(_files(out), [stranger], f"what is left of {target}")
    return ", ".join(f"{target} {len(names)} files" for target, names in NAMES.items()) + "; removed, and nothing else"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
