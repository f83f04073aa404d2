"""Regression cases with real workers: processes that are killed, databases that go away, items that end at once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text

from clerk import reconciling, sites
from clerk.app import open_mill
from clerk.config import Config, load
from clerk.db import migrations
from clerk.pipeline import configure, site
from clerk.sites import Description
from gristmill import Mill
from tests.clerk.played_app import played
from tests.clerk.playing import Play, minutes
from tests.clerk.test_pipeline import SITE, counters
from tests.servers import ROOT, database_name
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
def worker(log: Path, kind: str = "all", slots: int = 2) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.clerk.played_worker", kind, str(slots)]
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


def ended(mill: Mill) -> sites.Site:
    def now() -> sites.Site | None:
        site = sites.find(mill, SITE)
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


def test_cases_07_and_26_a_hundred_items_that_end_at_once_are_counted_and_handed_over_once(mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(100))
    sites.update(mill, SITE)
    drain(mill, slots=4)
    assert counters(mill, "ocr") == (100, 0, 100)
    assert [len(mill.jobs(stage=stage)) for stage in ("gate", "compilation", "extraction", "deploy")] == [1, 1, 1, 1]
    assert lines(play.folder / "post_deploy") == [SITE]


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
