"""Regression cases with real workers: processes that are killed, databases that go away, items that end at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text, update

from clerk import reconciling, sites
from clerk.app import open_mill
from clerk.cli import working
from clerk.commands import recovering
from clerk.config import Config, load
from clerk.db import migrations, tables
from clerk.pipeline import configure, site
from clerk.sites import Description
from gristmill import Mill
from tests.clerk import papers
from tests.clerk.played_app import played
from tests.clerk.playing import Play, minutes
from tests.clerk.test_cases import OTHER
from tests.clerk.test_pipeline import SITE, counters
from tests.servers import ROOT, database_name
from tests.worker.cables import cable
from tests.worker.helpers import drain, eventually, lines

SHORT = 3.0
A_BUSY_MACHINE = 90.0


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    made = Play(tmp_path / "play")
    monkeypatch.setenv("CLERK_PLAY", str(made.folder))
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(made.folder / "plugins"))
    return made


@pytest.fixture
def mill(clerk_config: Config, play: Play) -> Iterator[Mill]:
    configure(load())
    with opened(clerk_config.database_url) as own:
        sites.create(own, Description(SITE, "Oakfield", "played"))
        yield own


@contextlib.contextmanager
def worker(log: Path, kind: str = "all", slots: int = 2, command: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """`command`: another one than that whose documents are played."""
    command = [sys.executable, "-m", *(command or ("tests.clerk.played_worker", kind, str(slots)))]
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started, as when a machine goes down."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def ended(mill: Mill, subdomain: str = SITE) -> sites.Site:
    def now() -> sites.Site | None:
        site = sites.find(mill, subdomain)
        return site if site.outcome else None

    return eventually(now, "the run ends", within=A_BUSY_MACHINE)


@pytest.mark.alike
def test_case_02_an_item_that_is_killed_at_its_time_limit_counts_as_failed(
    mill: Mill, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_JOB_TIMEOUT", "1s")
    configure(load())
    try:
        play.site(SITE, {**minutes(2), **minutes(1, first=5, sleep=60)})
        sites.update(mill, SITE)
    finally:
        monkeypatch.delenv("OCR_JOB_TIMEOUT")
        configure(load())
    drain(mill, slots=2)
    assert counters(mill, "ocr") == (2, 1, 3)
    [bad] = mill.jobs(stage="ocr", state="failed")
    assert (bad.error_class, len(mill.attempts(bad.id))) == ("timeout", 2)
    assert ended(mill).outcome == "completed"


def test_case_07_workers_that_take_items_as_soon_as_they_are_there_find_every_count_exact(
    mill: Mill, play: Play, tmp_path: Path
) -> None:
    play.site(SITE, minutes(60))

    def over() -> bool:
        done, failed, total = counters(mill, "ocr")
        assert done + failed <= total <= 60
        return sites.find(mill, SITE).outcome == "completed"

    with worker(tmp_path / "one"), worker(tmp_path / "another"):
        sites.update(mill, SITE)
        eventually(over, "the run ends", within=A_BUSY_MACHINE)
    assert counters(mill, "ocr") == (60, 0, 60)


def test_case_26_a_hundred_items_that_end_at_once_are_handed_over_once(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(100))
    sites.update(mill, SITE)
    drain(mill, slots=4)
    assert counters(mill, "ocr") == (100, 0, 100)
    assert [len(mill.jobs(stage=stage)) for stage in ("gate", "compilation", "extraction", "deploy")] == [1, 1, 1, 1]
    assert lines(play.folder / "post_deploy") == [SITE]


@pytest.mark.alike
def test_case_10_a_reading_process_that_segfaults_costs_its_document_and_not_the_worker(
    mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first document needs OCR: who is called for that kills the process that reads it."""
    folder = tmp_path / "source" / "minutes" / "Council"
    papers.scanned(folder / "2026-01-05.pdf", ["Scanned"])
    papers.typed(folder / "2026-01-06.pdf", [papers.LINE])
    papers.program(tmp_path / "bin", "kill -SEGV $PPID")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    extra = {"path": str(tmp_path / "source")}
    sites.create(mill, Description(OTHER, "Millbrook", "folder", start_year=2026, extra=extra))
    with worker(tmp_path / "log", command=("clerk", "worker", "all")) as process:
        sites.update(mill, OTHER)
        assert ended(mill, OTHER).outcome == "completed"
        [bad] = mill.jobs(stage="ocr", state="failed")
        assert (bad.key, counters(mill, "ocr", OTHER)) == ("minutes/Council/2026-01-05", (1, 1, 2))
        assert ["killed by SIGSEGV" in str(one.error) for one in mill.attempts(bad.id)] == [True, True]
        papers.typed(folder / "2026-01-07.pdf", [papers.LINE])
        again = sites.update(mill, OTHER).run
        eventually(lambda: mill.run(again).state == "completed", "the next one is read", within=A_BUSY_MACHINE)
        assert (counters(mill, "ocr", OTHER), process.poll()) == ((1, 0, 1), None)


def test_case_18_two_sites_extract_at_the_same_time(mill: Mill, play: Play, tmp_path: Path) -> None:
    names = ["a.ca", "b.ca"]
    for day, name in enumerate(names):
        play.site(name, minutes(1, first=day))
        sites.create(mill, Description(name, name, "played", extra={"extractor": "waiting"}))
    sites.enqueue(mill, names)
    drain(mill, queues=["fetch", "ocr", "compilation"], slots=2)
    with worker(tmp_path / "log", "extraction", slots=2):
        eventually(lambda: len(play.extracting()) == 2, "both are at it")
        assert len(mill.jobs(stage="extraction", state="in_progress")) == 2
        for page in play.extracting():
            play.go_on(page)
        eventually(lambda: not mill.jobs(stage="extraction", state="in_progress"), "both end")
    assert [counters(mill, "extraction", name) for name in names] == [(1, 0, 1), (1, 0, 1)]


@pytest.mark.alike
def test_case_28_a_site_whose_extraction_goes_on_is_not_stuck(mill: Mill, play: Play, tmp_path: Path) -> None:
    """Within one document: a long one may take as long as many."""
    sites.create(mill, Description(OTHER, "Millbrook", "played", extra={"extractor": "waiting"}))
    play.site(OTHER, minutes(1, pages=3))
    sites.update(mill, OTHER)
    drain(mill, queues=["fetch", "ocr", "compilation"], slots=2)
    with worker(tmp_path / "log", "extraction", slots=1):
        eventually(lambda: len(play.extracting()) == 1, "it is at its first page")
        set_back(mill, timedelta(hours=3))
        assert stuck(mill) == [OTHER]
        play.go_on(play.extracting()[0])
        eventually(lambda: not stuck(mill), "it tells that it goes on")
        eventually(lambda: len(play.extracting()) == 2, "it is at its second page")
        assert [job.state for job in mill.jobs(stage="extraction")] == ["in_progress"]
        [now] = sites.progress(mill, OTHER)
        assert (now.current_stage, now.stage_completed, now.stage_total) == ("extraction", 1, 3)


def set_back(mill: Mill, time: timedelta) -> None:
    """As if nothing of any site had moved for so long."""
    with mill.transaction() as connection:
        connection.execute(update(tables.site).values(updated_at=datetime.now(UTC) - time))


def stuck(mill: Mill) -> list[str]:
    with mill.transaction() as connection:
        return list(connection.execute(text("SELECT subdomain FROM clerk_stuck")).scalars())


def test_a_worker_of_all_stages_takes_a_high_run_next_in_every_stage(mill: Mill, play: Play, tmp_path: Path) -> None:
    """Whatever else is queued there, in the same stage or in others."""
    others = [f"other{n}.ca" for n in range(4)]
    for name in (SITE, *others):
        play.site(name, minutes(3))
    for name in others:
        sites.create(mill, Description(name, name, "played"))
    sites.enqueue(mill, others[:2])
    drain(mill, slots=2, queues=["fetch"])
    sites.enqueue(mill, others[2:])
    sites.update(mill, SITE)
    waiting = {job.queue for job in mill.jobs(state="queued") if job.subject != SITE}
    assert waiting == {"fetch", "ocr"}
    with worker(tmp_path / "log", slots=1):
        ended(mill)
        eventually(lambda: not sites.active(mill), "all end", within=A_BUSY_MACHINE)
    began = sorted((job.started_at, job.id, job) for job in mill.jobs(limit=1000) if job.started_at is not None)
    subjects = [job.subject for _, _, job in began if job.stage != "fetch" or job.subject not in others[:2]]
    assert subjects.count(SITE) > 5
    assert set(subjects[: subjects.count(SITE)]) == {SITE}


@pytest.mark.alike
def test_a_killed_worker_loses_nothing_and_what_it_had_done_is_adopted(
    mill: Mill, play: Play, tmp_path: Path, clerk_config: Config
) -> None:
    play.site(SITE, {**minutes(1, sleep=60), **minutes(3, first=5)})
    sites.update(mill, SITE)
    document = minutes(1).popitem()[0]
    with worker(tmp_path / "log", slots=1) as process:
        eventually(lambda: f"{SITE} {document}" in lines(play.folder / "read"), "it reads", within=A_BUSY_MACHINE)
        kill(process)
    [stuck] = [job for job in mill.jobs(stage="ocr", state="in_progress") if job.key == document]  # others were taken ahead
    assert stuck.args is not None
    folder = clerk_config.storage / SITE
    _, meeting, date = document.split("/")
    (folder / "txt" / meeting / date).mkdir(parents=True)
    (folder / "txt" / meeting / date / "1.txt").write_text("it was done, and not recorded")
    (folder / "processed" / meeting).mkdir(parents=True, exist_ok=True)
    (folder / "processed" / meeting / f"{date}.txt").write_text(str(stuck.args["sha256"]))
    with open_mill(clerk_config) as own:
        planned = reconciling.reconcile(own, dry_run=True)
        assert sites.find(own, SITE).outcome is None
        assert mill.job(stuck.id).state == "in_progress"
        assert [repair.what for repair in planned or []][:1] == ["rescue"]
        found = reconciling.reconcile(own)
    assert found is not None
    assert {"rescue", "adopt"} <= {repair.what for repair in found}
    assert mill.job(stuck.id).state == "completed"
    drain(mill, slots=2)
    assert (counters(mill, "ocr"), ended(mill).outcome) == ((4, 0, 4), "completed")


@pytest.mark.alike
def test_what_a_killed_worker_held_is_given_back_when_one_of_its_sites_is_asked_for(
    mill: Mill, play: Play, tmp_path: Path, clerk_config: Config
) -> None:
    other = "elmwood.ca"
    sites.create(mill, Description(other, "Elmwood", "played"))
    for name in (SITE, other):
        play.site(name, minutes(1, sleep=60))
        sites.update(mill, name)
    document = minutes(1).popitem()[0]
    with worker(tmp_path / "log") as process:
        both = {f"{name} {document}" for name in (SITE, other)}
        eventually(lambda: both <= set(lines(play.folder / "read")), "it reads both", within=A_BUSY_MACHINE)
        kill(process)
    with open_mill(clerk_config) as own:
        planned = recovering.recover(own, dry_run=True, subdomain=SITE)
        assert planned is not None
        assert {name for name, _ in planned.mended} == {SITE}
        assert len(mill.jobs(stage="ocr", state="in_progress")) == 2
        assert recovering.recover(own, subdomain=SITE) == planned
    assert mill.jobs(stage="ocr", state="in_progress") == []
    for name in (SITE, other):
        assert counters(mill, "ocr", name) == (0, 0, 1)


def extracting(mill: Mill, play: Play) -> None:
    """A site whose extraction is next, and goes on only when the test lets it."""
    sites.create(mill, Description(OTHER, "Millbrook", "played", extra={"extractor": "waiting"}))
    play.site(OTHER, minutes(1, pages=2))
    sites.update(mill, OTHER)
    drain(mill, queues=["fetch", "ocr", "compilation"], slots=2)


SIGNALS = pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


@SIGNALS
@pytest.mark.alike
def test_a_worker_that_is_told_to_end_finishes_what_it_has(mill: Mill, play: Play, tmp_path: Path, told: int) -> None:
    extracting(mill, play)
    with worker(tmp_path / "log", command=("clerk", "worker", "extraction")) as process:
        [first] = eventually(play.extracting, "it is at its first page", within=A_BUSY_MACHINE)
        process.send_signal(told)
        play.go_on(first)
        [_, second] = eventually(lambda: len(found := play.extracting()) == 2 and found, "it goes on")
        play.go_on(second)
        assert process.wait(A_BUSY_MACHINE) == 0
    assert (counters(mill, "extraction", OTHER), mill.workers()) == ((1, 0, 1), [])


SHORT_OF_PATIENCE = "from clerk.cli import main, working; working.GRACE = 0.5; main(['worker', 'extraction'])"


@SIGNALS
@pytest.mark.alike
def test_what_a_worker_that_is_told_to_end_cannot_finish_goes_back_unspent(mill: Mill, play: Play, told: int) -> None:
    assert working.GRACE == 30  # as it is for operators
    extracting(mill, play)
    with subprocess.Popen([sys.executable, "-c", SHORT_OF_PATIENCE], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        eventually(play.extracting, "it is at its first page", within=A_BUSY_MACHINE)
        process.send_signal(told)
        assert process.wait(A_BUSY_MACHINE) == 0
    [back] = mill.jobs(stage="extraction")
    assert (back.state, counters(mill, "extraction", OTHER)) == ("queued", (0, 0, 1))
    assert back.errors + back.crashes + back.timeouts + back.losses == 0


@pytest.mark.alike
def test_a_site_that_is_purged_while_a_worker_has_it_is_stopped_there(
    mill: Mill, play: Play, tmp_path: Path, clerk_config: Config
) -> None:
    extracting(mill, play)
    with worker(tmp_path / "log", slots=1) as process:
        eventually(play.extracting, "it is at its first page", within=A_BUSY_MACHINE)
        began = time.monotonic()
        assert sites.purge(mill, OTHER) == sites.Purged(1, 1)
        assert time.monotonic() - began < 30
        assert (sites.find(mill, OTHER).current_stage, sites.progress(mill, OTHER)) == (None, [])
        play.site(SITE)
        sites.update(mill, SITE)
        assert (ended(mill).outcome, process.poll()) == ("no_documents", None)  # the worker goes on with others
    assert (clerk_config.storage / OTHER / "meetings.db").is_file()
    assert [run.state for run in mill.runs(subject=OTHER)] == ["cancelled"]


@pytest.mark.alike
def test_documents_are_read_while_others_are_still_looked_for_and_the_stage_stays_open(
    mill: Mill, play: Play, tmp_path: Path
) -> None:
    play.site(SITE, {**minutes(41), **minutes(1, first=50, after="list_the_last")})
    with worker(tmp_path / "log", slots=2):
        sites.update(mill, SITE)
        eventually(lambda: counters(mill, "ocr")[0] >= 20, "some are read", within=A_BUSY_MACHINE)
        assert (sites.find(mill, SITE).current_stage, counters(mill, "fetch")) == ("fetch", (0, 0, 1))
        assert mill.jobs(stage="gate") == []
        (play.folder / "list_the_last").touch()
        assert ended(mill).outcome == "completed"
    assert counters(mill, "ocr") == (42, 0, 42)


@pytest.mark.pg
@pytest.mark.parametrize("away", [SHORT, pytest.param(120.0, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
def test_case_11_workers_outlive_a_database_that_goes_away(
    clerk_pg_url: str, pg_server_url: str, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: float
) -> None:
    monkeypatch.setenv("DATABASE_URL", clerk_pg_url)
    monkeypatch.setenv("STORAGE_DIR", str(tmp_path / "sites"))
    monkeypatch.setenv("DEPLOY_TARGET", str(tmp_path / "published"))
    name = database_name(clerk_pg_url)
    server = create_engine(pg_server_url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT")
    play.site(SITE, minutes(4, sleep=0.5))
    with opened(clerk_pg_url) as mill:
        sites.create(mill, Description(SITE, "Oakfield", "played"))
        sites.update(mill, SITE)
    with worker(tmp_path / "log", slots=1) as process:
        eventually(lambda: lines(play.folder / "read"), "it reads", within=A_BUSY_MACHINE)
        with server.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
            gone = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
            connection.execute(gone, {"name": name})
            time.sleep(away)
            assert process.poll() is None
            connection.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        server.dispose()
        with opened(clerk_pg_url) as mill:
            assert ended(mill).outcome == "completed"
            assert counters(mill, "ocr") == (4, 0, 4)
        assert process.poll() is None


@pytest.mark.pg
def test_a_worker_that_starts_before_its_database_waits_for_it_and_says_so_once(
    clerk_pg_url: str, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("STORAGE_DIR", str(tmp_path / "sites"))
    monkeypatch.setenv("DEPLOY_TARGET", str(tmp_path / "published"))
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    play.site(SITE)
    with opened(clerk_pg_url) as mill, cable(clerk_pg_url) as (wire, url):
        sites.create(mill, Description(SITE, "Oakfield", "played"))
        sites.update(mill, SITE)
        wire.cut()
        monkeypatch.setenv("DATABASE_URL", url)
        with worker(log, command=("clerk", "worker", "all")) as process:
            eventually(lambda: "trying again" in log.read_text(), "it says that it waits")
            wire.mend()
            assert (ended(mill).outcome, process.poll()) == ("no_documents", None)
        assert log.read_text().count("trying again") == 1


@pytest.mark.pg
def test_a_worker_that_waits_for_its_database_ends_on_sigterm_and_a_burst_does_not_wait(
    clerk_pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    with cable(clerk_pg_url) as (wire, url):
        wire.cut()
        monkeypatch.setenv("DATABASE_URL", url)
        with worker(log, command=("clerk", "worker", "all")) as process:
            eventually(lambda: "trying again" in log.read_text(), "it says that it waits")
            process.terminate()
            assert process.wait(A_BUSY_MACHINE) == 0
        with worker(log, command=("clerk", "worker", "all", "--burst")) as process:
            assert process.wait(A_BUSY_MACHINE) == 3


@pytest.mark.pg
def test_a_worker_does_not_wait_for_a_schema_that_somebody_has_to_make(
    empty_pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.setenv("DATABASE_URL", empty_pg_url)
    with worker(tmp_path / "log", command=("clerk", "worker", "all")) as process:
        assert process.wait(A_BUSY_MACHINE) == 3
    assert "clerk db upgrade" in (tmp_path / "log").read_text()


def opened(url: str) -> Mill:
    return Mill.open(url, site, migrations(url), played)


@pytest.mark.alike
def test_extraction_that_nobody_begins_within_two_hours_is_skipped(mill: Mill, play: Play, clerk_config: Config) -> None:
    play.site(SITE, minutes(2))
    sites.update(mill, SITE)
    drain(mill, queues=["fetch", "ocr", "compilation", "deploy"], slots=2)
    assert sites.find(mill, SITE).current_stage == "extraction"
    with open_mill(clerk_config) as own:
        reconciling.reconcile(own)
        assert sites.find(own, SITE).current_stage == "extraction"
        with own.transaction() as connection:
            sql = "UPDATE gm_stage SET closed_at = closed_at - 7300000000 WHERE name = 'compilation'"
            connection.execute(text(sql))
        assert [name for name, _ in reconciling.late_extractions(own)] == [SITE]
        reconciling.reconcile(own, dry_run=True)
        assert sites.find(own, SITE).current_stage == "extraction"
        reconciling.reconcile(own)
        assert sites.find(own, SITE).current_stage == "deploy"
    drain(mill, slots=2)
    assert (ended(mill).outcome, counters(mill, "extraction"), counters(mill, "deploy")) == (
        "completed",
        (0, 0, 0),
        (1, 0, 1),
    )
