"""`reconcile`, `cleanup-orphaned`, `check-failed`, `purge-queue`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy import update as set_row

from clerk import sites
from clerk.app import open_mill
from clerk.commands import recovering
from clerk.config import Config
from clerk.db import tables
from clerk.sites import Description
from gristmill import Mill
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.cli import Cli
from tests.clerk.playing import Play, minutes
from tests.clerk.test_pipeline import SITE, counters


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    made = Play(tmp_path / "play")
    monkeypatch.setenv("CLERK_PLAY", str(made.folder))
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(made.folder / "plugins"))
    monkeypatch.setattr("clerk.pipeline.documents.read", played_reading.read)
    return made


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clerk_config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@pytest.fixture
def mill(clerk_config: Config, play: Play) -> Iterator[Mill]:
    with open_mill(clerk_config, clock=FrozenClock(datetime.now(UTC))) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "played"))
        yield opened


def fetched(mill: Mill, play: Play, documents: dict[str, dict[str, object]], priority: sites.Priority = "normal") -> None:
    play.site(SITE, documents)
    sites.enqueue(mill, [SITE], priority)
    drain(mill, queues=["fetch"])


# ---- check-failed


def test_failed_jobs_are_listed_with_file_times_and_the_whole_error(cli: Cli, mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(8), **minutes(2, first=10, read="Unreadable")})
    sites.update(mill, SITE)
    drain(mill)
    assert counters(mill, "ocr") == (8, 2, 10)
    done = cli.call("check-failed")
    assert (done.code, done.lines[0]) == (0, "Failed jobs in ocr: 2")
    files = [line.partition(": ")[2] for line in done.lines if line.startswith("  File: ")]
    assert {Path(file).parent.name for file in files} == {"Council"}
    assert all(Path(file).is_file() for file in files)
    assert done.out.count("cannot be read") == 2
    assert cli.call("check-failed", "-s", SITE, "--limit", "1").out.count("Job: ") == 1
    found = cli.call("check-failed", "--json").json
    assert (found["queue"], found["total"], len(found["jobs"])) == ("ocr", 2, 2)
    assert {"job_id", "site", "file", "created_at", "started_at", "failed_at", "error"} <= set(found["jobs"][0])
    assert cli.call("check-failed", "--queue", "fetch").lines == ["Failed jobs in fetch: 0"]
    assert cli.call("check-failed", "--queue", "nothing").code == 2


# ---- purge-queue


def test_purged_items_count_as_failed_and_the_next_stage_begins(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(3))
    done = cli.call("purge-queue", "ocr", "--yes")
    assert (done.code, done.lines) == (0, ["Purged 3 jobs from ocr"])
    assert counters(mill, "ocr") == (0, 3, 3)
    assert {job.error_class for job in mill.jobs(stage="ocr")} == {"purged"}
    drain(mill)
    assert sites.find(mill, SITE).outcome == "failed"  # the gate was asked: there is no text
    assert cli.call("purge-queue", "ocr", "--yes").lines == ["Purged 0 jobs from ocr"]


@pytest.mark.parametrize("name", ["high", "express"])
def test_high_jobs_are_purged_by_their_own_name_alone(cli: Cli, mill: Mill, play: Play, name: str) -> None:
    fetched(mill, play, minutes(2), "high")
    assert cli.call("purge-queue", "ocr", "--yes").lines == ["Purged 0 jobs from ocr"]
    assert len(mill.jobs(stage="ocr", state="queued")) == 2
    assert cli.call("purge-queue", name, "--yes").lines == ["Purged 2 jobs from high"]
    assert mill.jobs(stage="ocr", state="queued") == []


def test_a_queue_is_not_purged_unasked(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(2))
    done = cli.call("purge-queue", "ocr")
    assert (done.code, len(mill.jobs(stage="ocr", state="queued"))) == (2, 2)
    assert "--yes" in done.err
    done = cli.call("purge-queue", "orc", "--yes")
    assert done.code == 2
    assert "fetch, ocr, compilation, extraction, deploy, high" in done.err


# ---- reconcile


def broken(mill: Mill, stage: str = "ocr") -> None:
    """A counter that differs from the rows, as it cannot be."""
    with mill.transaction() as connection:
        wrong = "UPDATE gm_stage SET total = total + 1 WHERE name = :stage"
        connection.execute(text(wrong), {"stage": stage})


def test_what_is_mended_is_said_by_site_and_a_dry_run_writes_nothing(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(2))
    assert cli.call("reconcile").lines == ["Recovered 0 sites"]
    broken(mill)
    done = cli.call("reconcile", "--dry-run", "--threshold-hours", "0")
    assert (done.code, done.lines[-1]) == (0, "Would recover 1 sites")
    assert done.lines[0].startswith(f"Would recover {SITE}: recount: ")
    assert counters(mill, "ocr")[2] == 3
    assert cli.call("reconcile").lines == ["Recovered 0 sites"]  # it has changed within two hours
    done = cli.call("reconcile-pipeline", "--threshold-hours", "0")
    assert done.lines[0].startswith(f"Recovering {SITE}: recount: ")
    assert done.lines[-1] == "Recovered 1 sites"
    assert counters(mill, "ocr")[2] == 2
    found = cli.call("reconcile", "--threshold-hours", "0", "--json").json
    assert (found["sites"], found["recovered"], found["left"]) == (0, [], [])


def test_a_site_that_is_mended_twice_a_day_is_a_warning_and_the_third_time_its_run_fails(
    cli: Cli, mill: Mill, play: Play
) -> None:
    fetched(mill, play, minutes(2))
    for time in range(2):
        broken(mill)
        done = cli.call("reconcile", "--threshold-hours", "0", "-s", SITE)
        assert done.lines[-1] == "Recovered 1 sites"
        assert ("recovered twice" in done.err) == (time == 1)
    done = cli.call("health", "--json")
    assert f"1 sites were recovered twice within 24 h: {SITE}" in done.json["warnings"]
    broken(mill)
    done = cli.call("reconcile", "--threshold-hours", "0")
    assert any(line.startswith(f"Left to a person: {SITE}: ") for line in done.lines)
    assert sites.find(mill, SITE).outcome == "failed"


def test_what_is_for_a_person_is_listed_and_left_alone(cli: Cli, mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2, read="Unreadable"))
    sites.update(mill, SITE)
    drain(mill)
    before = sites.find(mill, SITE)
    done = cli.call("reconcile")
    assert (done.code, done.lines[-1]) == (0, "Recovered 0 sites")
    assert done.lines[0].startswith(f"Left to a person: {SITE}: failed_runs: its run failed in ocr")
    assert sites.find(mill, SITE) == before


# ---- what is kept


def ended_days_ago(mill: Mill, run: int, days: float) -> None:
    with mill.transaction() as connection:
        earlier = "UPDATE gm_run SET finished_at = finished_at - :micros WHERE id = :run"
        connection.execute(text(earlier), {"run": run, "micros": int(days * 86_400e6)})


def test_failed_runs_go_after_so_many_days_but_not_the_last_one_and_no_good_one(cli: Cli, mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(1))
    good = sites.update(mill, SITE).run
    drain(mill)
    failed = []
    play.site(SITE, find="Unreadable")
    for _ in range(3):
        failed.append(sites.update(mill, SITE).run)
        drain(mill)
    for run, days in zip([good, *failed], [30, 8, 6, 30], strict=True):
        ended_days_ago(mill, run, days)
    assert cli.run("reconcile", "--dry-run").code == 0
    assert cli.run("reconcile", FAILED_RETENTION_DAYS="9").code == 0
    assert {run.id for run in mill.runs()} == {good, *failed}
    assert cli.run("reconcile", "-s", SITE).code == 0
    assert {run.id for run in mill.runs()} == {good, *failed}
    done = cli.run("reconcile")
    assert (done.code, done.lines[-1]) == (0, "Recovered 0 sites"), done.err
    assert {run.id for run in mill.runs()} == {good, *failed[1:]}
    assert (sites.find(mill, SITE).run_id, sites.find(mill, SITE).outcome) == (failed[-1], "failed")


# ---- cleanup-orphaned


def orphaned(mill: Mill) -> int:
    """A run whose jobs are gone."""
    run = sites.update(mill, SITE).run
    with mill.transaction() as connection:
        connection.execute(text("DELETE FROM gm_job WHERE run_id = :run"), {"run": run})
        old = datetime.now(UTC) - timedelta(hours=3)
        connection.execute(set_row(tables.site).values(updated_at=old))
    return run


def test_a_run_without_jobs_is_found_once_it_is_old_enough(cli: Cli, mill: Mill) -> None:
    run = orphaned(mill)
    assert cli.call("cleanup-orphaned", "--max-age", "4").lines == ["Found 0 orphaned runs"]
    done = cli.call("cleanup-orphaned")
    assert (done.code, done.lines[0]) == (0, "Found 1 orphaned run")
    assert done.lines[1].startswith(f"  {SITE}: fetch, run {run}, since ")
    assert [one.run for one in recovering.orphans(mill, 2)] == [run]


@pytest.mark.parametrize("option", ["--reset", "--reenqueue"])
def test_an_orphaned_run_is_cancelled_and_if_wanted_started_again(cli: Cli, mill: Mill, option: str) -> None:
    run = orphaned(mill)
    [one] = cli.call("cleanup-orphaned", option, "--json").json["runs"]
    assert mill.run(run).state == "cancelled"
    site = sites.find(mill, SITE)
    if option == "--reset":
        assert (one["now"], site.outcome) == ("reset", "cancelled")
    else:
        assert (one["now"], site.run_id, site.outcome) == ("enqueued again", one["new_run"], None)
        assert (mill.run(one["new_run"]).priority, one["new_run"] != run) == ("high", True)
    assert cli.call("cleanup-orphaned").lines == ["Found 0 orphaned runs"]


def test_a_run_with_queued_jobs_is_no_orphan(cli: Cli, mill: Mill) -> None:
    sites.update(mill, SITE)
    with mill.transaction() as connection:
        connection.execute(set_row(tables.site).values(updated_at=datetime.now(UTC) - timedelta(hours=30)))
    assert cli.call("cleanup-orphaned").lines == ["Found 0 orphaned runs"]
