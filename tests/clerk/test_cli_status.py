"""`status`, `pipeline-status`, `health`: what they print, to the letter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, text
from sqlalchemy import update as set_row

from clerk import health, sites, status
from clerk.app import open_mill
from clerk.config import Config
from clerk.db import tables
from clerk.sites import Description
from gristmill import Mill
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.cli import Cli
from tests.clerk.playing import Play, minutes
from tests.clerk.test_pipeline import SITE

NOW = datetime(2026, 1, 6, 10, 5, 23, tzinfo=UTC)


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


def fetched(mill: Mill, play: Play, count: int, name: str = SITE, priority: sites.Priority = "normal") -> None:
    """A site whose documents wait to be read."""
    play.site(name, minutes(count))
    sites.enqueue(mill, [name], priority)
    drain(mill, queues=["fetch"])


# ---- status


def test_an_empty_system_has_six_lines_of_nothing(cli: Cli, mill: Mill) -> None:
    assert cli.call("status").lines == [
        "=== Queue Status ===",
        "High priority: 0 jobs",
        "Fetch:         0 jobs",
        "OCR:           0 jobs",
        "Compilation:   0 jobs",
        "Extraction:    0 jobs",
        "Deploy:        0 jobs",
        "",
        "=== Active Sites ===",
        "  none",
    ]


def test_high_jobs_have_a_line_of_their_own_and_the_sum_is_the_queue(cli: Cli, mill: Mill, play: Play) -> None:
    for name in ("elm.ca", "fir.ca"):
        sites.create(mill, Description(name, name, "played"))
    fetched(mill, play, 4)
    fetched(mill, play, 3, "elm.ca", "high")
    sites.enqueue(mill, ["fir.ca"])
    lines = cli.call("status").lines
    assert lines[1:7] == [
        "High priority: 3 jobs",
        "Fetch:         1 jobs",
        "OCR:           4 jobs",
        "Compilation:   0 jobs",
        "Extraction:    0 jobs",
        "Deploy:        0 jobs",
    ]
    assert all(line.index(line.split()[-2]) == 15 for line in lines[1:7])
    assert lines[9:] == ["  elm.ca: ocr (0/3, 0%)", "  fir.ca: fetch", f"  {SITE}: ocr (0/4, 0%)"]
    found = cli.call("status", "--json").json
    assert found["queues"] == {"high": 3, "fetch": 1, "ocr": 4, "compilation": 0, "extraction": 0, "deploy": 0}
    assert [one["site_id"] for one in found["active_sites"]] == ["elm.ca", "fir.ca", SITE]


def test_jobs_that_wait_to_be_retried_are_queued_and_parts_are_not_counted(mill: Mill, play: Play) -> None:
    fetched(mill, play, 3)
    with mill.transaction() as connection:
        ids = connection.execute(text("SELECT id FROM gm_job WHERE ready IS NOT NULL ORDER BY id")).scalars().all()
        later = {"at": 4 * 10**15, "id": ids[0]}
        connection.execute(text("UPDATE gm_job SET ready = NULL, run_at = :at WHERE id = :id"), later)
        assert status.depths(connection).lines()["ocr"] == 3
        part = """
            INSERT INTO gm_job (run_id, parent_id, ready, created_at, task_id, queue_id, pool, priority, state, key)
            SELECT run_id, id, ready, created_at, task_id, queue_id, pool, priority, state, '000001'
            FROM gm_job WHERE id = :id"""
        connection.execute(text(part), {"id": ids[1]})
        assert status.depths(connection).lines()["ocr"] == 3
        waits = "UPDATE gm_job SET ready = NULL, parts = 1, parts_left = 1, parts_failed = 0 WHERE id = :id"
        connection.execute(text(waits), {"id": ids[1]})
        assert status.depths(connection).lines()["ocr"] == 3
        connection.rollback()


def test_a_site_is_shown_as_it_is_printed_in_the_manual(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, 4)
    said = cli.call("status", "-s", SITE).out
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    form = rf"Site: {SITE}\nCurrent stage: ocr\nProgress: 0/4 \(0\.0%\)\nStarted: {moment}\nUpdated: {moment}\n"
    assert re.fullmatch(form, said), said
    found = cli.call("status", "-s", SITE, "--json").json
    assert {"site_id", "current_stage", "stage_total", "stage_completed", "started_at", "updated_at"} <= set(found)
    assert (found["site_id"], found["current_stage"], found["stage_total"]) == (SITE, "ocr", 4)


def test_a_share_and_times_are_printed_to_the_letter() -> None:
    site = sites.Site("example.civic.band", "E", "folder", last_error_message="it broke")
    began = datetime(2026, 1, 6, 10, 0, tzinfo=UTC)
    progress = sites.Progress("example.civic.band", "ocr", 100, 45, began, NOW)
    assert status.SiteStatus(site, progress, 2).text().splitlines() == [
        "Site: example.civic.band",
        "Current stage: ocr",
        "Progress: 45/100 (45.0%)",
        "Started: 2026-01-06 10:00:00",
        "Updated: 2026-01-06 10:05:23",
        "Failed: 2",
        "Last error: it broke",
    ]
    listed = [
        sites.Progress("site1.civic.band", "ocr", 100, 45, began, NOW),
        sites.Progress("site2.civic.band", "extraction", 50, 12, began, NOW),
        sites.Progress("site3.civic.band", "fetch", 1, 0, began, NOW),
    ]
    assert status.Overview({"high": 0, "ocr": 247}, listed).text().splitlines() == [
        "=== Queue Status ===",
        "High priority: 0 jobs",
        "OCR:           247 jobs",
        "",
        "=== Active Sites ===",
        "  site1.civic.band: ocr (45/100, 45%)",
        "  site2.civic.band: extraction (12/50, 24%)",
        "  site3.civic.band: fetch",
    ]


def test_failures_and_the_last_error_follow(cli: Cli, mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(2), **minutes(1, first=5, read="Unreadable")})
    sites.update(mill, SITE)
    drain(mill)
    lines = cli.call("status", "-s", SITE).lines
    assert lines[1:3] == ["Current stage: completed", "Progress: 1/1 (100.0%)"]
    assert re.fullmatch(r"Pages: \d+, published: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", lines[6])
    assert (lines[5], lines[7]) == ("Outcome: completed", "Failed: 1")
    assert lines[8].startswith("Last error: minutes/Council/")
    done = cli.call("pipeline-status")
    assert "completed:     1" in done.lines
    assert "OCR:           2/3 completed (66.7%), 1 failed" in done.lines
    assert cli.call("pipeline-status", "--json").json["stages"]["ocr"]["failed"] == 1


def test_of_nothing_all_is_done_only_where_the_run_has_completed(cli: Cli, mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2, read="Unreadable"))
    for _ in range(2):  # the second one tries none of them again, and fails
        sites.update(mill, SITE)
        drain(mill)
    assert cli.call("status", "-s", SITE).lines[1:3] == ["Current stage: ocr", "Progress: 0/0 (0.0%)"]
    play.site(SITE, minutes(1, first=9))
    for _ in range(2):
        sites.update(mill, SITE)
        drain(mill)
    assert cli.call("status", "-s", SITE).lines[1:3] == ["Current stage: completed", "Progress: 0/0 (100.0%)"]


def test_a_site_without_a_run_has_no_progress(cli: Cli, mill: Mill) -> None:
    done = cli.call("status", "-s", SITE)
    assert (done.code, done.out) == (0, f"No progress tracking found for site: {SITE}\n")
    assert cli.call("status", "-s", SITE, "--json").json["current_stage"] is None


# ---- health


def ended(mill: Mill, outcome: str, count: int, minutes_ago: float = 5, first: int = 1000) -> None:
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    rows = [
        {"run_id": first + n, "subdomain": SITE, "started_at": at, "finished_at": at, "outcome": outcome}
        for n in range(count)
    ]
    with mill.transaction() as connection:
        connection.execute(insert(tables.run), rows)


def test_an_idle_system_is_healthy(cli: Cli, mill: Mill) -> None:
    done = cli.call("health")
    assert (done.code, done.out) == (0, "Status: healthy\n")
    found = cli.call("health", "--json").json
    assert list(found) == ["status", "exit_code", "timestamp", "checks", "issues", "warnings"]
    assert (found["status"], found["exit_code"], found["issues"], found["warnings"]) == ("healthy", 0, [], [])
    said = cli.call("health", "-v").out
    assert "completion_rate_1h: none" in said
    assert "database: ok" in said
    assert "queues: high 0, fetch 0, ocr 0" in said


def test_failed_runs_and_the_rate_degrade_it_and_then_break_it(cli: Cli, mill: Mill) -> None:
    ended(mill, "completed", 200)
    ended(mill, "failed", 5, minutes_ago=120, first=2000)
    assert cli.call("health").code == 0
    ended(mill, "failed", 1, minutes_ago=120, first=3000)
    done = cli.call("health")
    assert (done.code, done.lines) == (1, ["Status: degraded", f"  WARNING: 6 runs failed within 24 h: {SITE}"])
    ended(mill, "failed", 15, minutes_ago=120, first=4000)
    done = cli.call("health", "--json")
    assert (done.code, done.json["status"], done.json["issues"]) == (2, "unhealthy", [f"21 runs failed within 24 h: {SITE}"])


@pytest.mark.parametrize(("failed", "code"), [(5, 0), (6, 1), (20, 1), (21, 2)])
def test_the_rate_of_the_last_hour_has_two_limits(mill: Mill, clerk_config: Config, failed: int, code: int) -> None:
    ended(mill, "completed", 100 - failed)
    ended(mill, "failed", failed, first=5000)
    found = health.look(mill, clerk_config)
    assert found.checks["completion_rate_1h"] == 100 - failed
    assert any("of the last hour" in said for said in found.warnings) == (code == 1)
    assert any("of the last hour" in said for said in found.issues) == (code == 2)


def test_queued_work_without_a_worker_of_its_type_is_critical(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, 2)
    done = cli.call("health")
    alone = "2 jobs are queued for ocr, and no worker of that type is alive"
    assert (done.code, done.lines[1]) == (2, f"  CRITICAL: {alone}; `clerk worker ocr` starts one")


LIMITS = {
    "high": (50, 100),
    "fetch": (25, 50),
    "ocr": (250, 500),
    "compilation": (50, 100),
    "extraction": (50, 100),
    "deploy": (25, 50),
}


@pytest.mark.parametrize(("name", "limits"), LIMITS.items())
def test_a_long_queue_is_a_warning_and_then_critical(name: str, limits: tuple[int, int]) -> None:
    for count, code in ((limits[0] - 1, 0), (limits[0], 1), (limits[1] - 1, 1), (limits[1], 2)):
        depths = status.Depths({"ocr": count} if name == "high" else {}, {} if name == "high" else {name: count})
        found = health.Health(NOW)
        health._queues(found, depths)
        assert found.exit_code == code, (name, count)


def test_sites_that_do_not_move_or_are_overdue_are_warnings(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, 1)
    for name in ("late.ca", "never.ca", "today.ca"):
        sites.create(mill, Description(name, name, "played"))
    ago = {"late.ca": 48.0, "today.ca": 46.0}
    with mill.transaction() as connection:
        site = tables.site
        old = datetime.now(UTC) - timedelta(hours=3)
        connection.execute(set_row(site).where(site.c.subdomain == SITE).values(updated_at=old))
        long_ago = datetime.now(UTC) - timedelta(hours=25)
        connection.execute(set_row(site).where(site.c.subdomain == "never.ca").values(created_at=long_ago))
        for name, hours in ago.items():
            moment = datetime.now(UTC) - timedelta(hours=hours)
            values = {"last_updated": moment, "created_at": moment, "outcome": "completed"}
            connection.execute(set_row(site).where(site.c.subdomain == name).values(values))
    found = cli.call("health", "--json").json
    assert f"1 sites have not moved for 2 h: {SITE}" in found["warnings"]
    [overdue] = [said for said in found["warnings"] if "overdue" in said]
    assert overdue.startswith("2 sites are overdue by 24 h: ")
    assert {"late.ca", "never.ca"} == set(overdue.partition(": ")[2].split(", "))


def test_what_waits_behind_high_work_for_long_is_a_warning(mill: Mill, play: Play, clerk_config: Config) -> None:
    sites.create(mill, Description("elm.ca", "Elm", "played"))
    fetched(mill, play, 2)
    fetched(mill, play, 2, "elm.ca", "high")
    now = datetime.now(UTC)
    assert health.look(mill, clerk_config, now + timedelta(minutes=50)).checks["high_for_an_hour"] == []
    later = health.look(mill, clerk_config, now + timedelta(minutes=61))
    assert (later.checks["high_for_an_hour"], later.checks["waiting_behind_high"]) == (["ocr"], [])
    assert health.look(mill, clerk_config, now + timedelta(minutes=121)).checks["waiting_behind_high"] == ["ocr"]


@pytest.mark.parametrize("pause", [False, True])
def test_high_work_that_never_ends_is_a_warning_even_if_no_job_of_it_waits_for_long(
    mill: Mill, play: Play, clerk_config: Config, pause: bool
) -> None:
    """A new site every ten minutes, before the one before it is read: none waits for longer, but what is not high does."""
    clock = mill.ledger.clock
    assert isinstance(clock, FrozenClock)
    for number in range(8):
        if pause and number == 5:
            drain(mill, "idle", queues=["ocr"])
            clock.advance(1)
        name = f"new{number}.ca"
        sites.create(mill, Description(name, name, "played"))
        fetched(mill, play, 1, name, "high")
        if number and not (pause and number == 5):
            with pytest.raises(AssertionError, match="still work to do"):  # one of two
                drain(mill, "idle", queues=["ocr"], most=0)
        clock.advance(600)
    warned = health.look(mill, clerk_config, clock.now).checks["high_for_an_hour"]
    assert ("ocr" in warned, "compilation" in warned) == (not pause, True)  # of which nothing was begun at all


def test_what_nobody_can_work_on_is_critical(cli: Cli, mill: Mill, clerk_config: Config) -> None:
    sites.update(mill, SITE)
    with mill.transaction() as connection:
        connection.execute(set_row(tables.run).values(returns=1))
        said = {"last_error_message": "the disk is full", "last_error_at": datetime.now(UTC)}
        connection.execute(set_row(tables.site).values(said))
    clerk_config.storage.rename(clerk_config.storage.with_name("gone"))
    done = cli.call("health")
    assert done.code == 2
    assert f"  CRITICAL: nobody can work on {SITE}: the disk is full" in done.lines
    assert any("STORAGE_DIR" in line and "is not there" in line for line in done.lines)


def test_a_storage_that_the_first_run_will_make_is_not_missed_before(cli: Cli, mill: Mill, clerk_config: Config) -> None:
    clerk_config.storage.rmdir()
    done = cli.call("health")
    assert (done.code, done.out) == (0, "Status: healthy\n")
    ended(mill, "completed", 1)
    done = cli.call("health")
    assert (done.code, done.lines[1]) == (2, f"  CRITICAL: STORAGE_DIR {clerk_config.storage} is not there")


@pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)
def test_a_storage_that_nobody_can_make_is_critical_from_the_first_day(
    cli: Cli, mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STORAGE_DIR", str(tmp_path / "file" / "sites"))
    done = cli.call("health")
    assert (done.code, done.lines[1]) == (2, f"  CRITICAL: STORAGE_DIR {tmp_path}/file/sites cannot be made")


@pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)
def test_redis_that_is_set_but_down_is_a_warning_once_and_all_goes_on(
    cli: Cli, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:hidden-secret@127.0.0.1:9/0")
    done = cli.call("health", "--json")
    assert (done.code, done.json["checks"]["redis"]) == (1, False)
    assert "hidden-secret" not in done.out
    done = cli.call("update", "-s", SITE)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert "Redis" in done.err
    assert "hidden-secret" not in done.err


@pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)
def test_without_a_database_it_is_unhealthy_and_its_json_still_parses(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{cli.folder}/none.db")
    done = cli.call("health", "--json")
    assert (done.code, done.json["status"], done.json["checks"]) == (2, "unhealthy", {"database": False})
    assert json.dumps(done.json["issues"]).count("clerk db upgrade") == 1
