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
from clerk.cli.app import plural
from clerk.commands import recovering
from clerk.config import Config
from clerk.db import tables
from clerk.names import STAGES
from clerk.sites import Description
from gristmill import Mill
from gristmill.clock import SECOND
from gristmill.ledger import names, workers
from gristmill.ledger.claim import Lane, Want, claim
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.cli import Cli
from tests.clerk.playing import Play, minutes
from tests.clerk.standins import stand_in
from tests.clerk.test_pipeline import SITE, counters
from tests.clerk.test_sentry import dsn, events


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
    elsewhere = ["Failed jobs in fetch: 0", "", "Elsewhere: 2 in ocr (--queue ocr)"]
    assert cli.call("check-failed", "--queue", "fetch").lines == elsewhere
    assert cli.call("check-failed", "--queue", "nothing").code == 2


@pytest.mark.alike
def test_five_failed_jobs_are_listed_unless_more_are_asked_for(cli: Cli, mill: Mill, play: Play) -> None:
    play.site(SITE, {**minutes(1), **minutes(7, first=10, read="Unreadable")})
    sites.update(mill, SITE)
    drain(mill)
    for words, listed in (([], 5), (["--limit", "10"], 7)):
        done = cli.call("check-failed", *words)
        assert (done.lines[0], done.out.count("Job: ")) == ("Failed jobs in ocr: 7", listed)


def test_documents_that_could_not_be_downloaded_are_listed_with_those_of_fetch(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, {**minutes(3), **minutes(2, first=10, get="Unreadable")})
    done = cli.call("check-failed", "--queue", "fetch")
    assert done.lines[:3] == ["Failed jobs in fetch: 0", "", "Documents that could not be downloaded: 2"]
    assert [line for line in done.lines if line.startswith("  Address: ")] == [
        f"  Address: played://{SITE}/{key}" for key in minutes(2, first=10)
    ]
    assert done.out.count("cannot be had") == 2
    found = cli.call("check-failed", "--queue", "fetch", "-s", SITE, "--limit", "1", "--json").json
    assert (found["missing_total"], [one["site"] for one in found["missing"]]) == (2, [SITE])
    assert "downloaded" not in cli.call("check-failed").out


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


def waiting_in(mill: Mill, play: Play, queue: str) -> None:
    """A run, as far as there are jobs in this queue."""
    play.site(SITE, minutes(3))
    sites.enqueue(mill, [SITE])
    for stage in STAGES[: STAGES.index(queue)]:
        drain(mill, queues=[stage])
    if queue == "compilation":
        with pytest.raises(AssertionError, match="still work to do"):
            drain(mill, queues=[queue], most=0)  # the hand-over, which waits there before it
    assert {job.stage for job in mill.jobs(queue=queue, state="queued")} == {queue}


@pytest.mark.alike
@pytest.mark.parametrize(
    ("queue", "jobs", "outcome", "stage", "error"),
    [
        ("fetch", 1, "failed", "fetch", "purged by an operator"),
        ("ocr", 3, "failed", "ocr", "none of 3 documents could be read"),
        ("compilation", 1, "failed", "compilation", "purged by an operator"),
        ("extraction", 1, "completed", "completed", "purged by an operator"),
        ("deploy", 1, "failed", "deploy", "purged by an operator"),
    ],
)
def test_a_run_whose_jobs_are_purged_goes_on_or_ends_and_they_are_listed_as_failed(
    cli: Cli, mill: Mill, play: Play, queue: str, jobs: int, outcome: str, stage: str, error: str
) -> None:
    waiting_in(mill, play, queue)
    assert cli.call("purge-queue", queue, "--yes").lines == [f"Purged {plural(jobs, 'job')} from {queue}"]
    drain(mill)
    site = sites.find(mill, SITE)
    assert (site.outcome, site.current_stage, site.last_error_stage) == (outcome, stage, queue)
    assert error in str(site.last_error_message)
    for asked in ([], ["-s", SITE]):
        found = cli.call("check-failed", "--queue", queue, "--json", *asked).json
        assert (found["total"], {job["error_class"] for job in found["jobs"]}) == (jobs, {"purged"})
    assert "Error: purged" in cli.call("check-failed", "--queue", queue, "--limit", "1").out
    assert counters(mill, queue) == (0, jobs, jobs)  # what `status -s` counts, with others that were not done


@pytest.mark.alike
def test_a_hand_over_that_is_purged_fails_its_run_in_ocr(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(3))
    drain(mill, queues=["ocr"])
    assert cli.call("purge-queue", "compilation", "--yes").lines == ["Purged 1 job from compilation"]
    drain(mill)
    site = sites.find(mill, SITE)
    assert (site.outcome, site.current_stage, site.last_error_stage) == ("failed", "ocr", "ocr")
    assert cli.call("check-failed", "--queue", "compilation").lines[0] == "Failed jobs in compilation: 1"


def test_what_is_cancelled_with_its_run_has_not_failed(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(3))
    mill.cancel_run(sites.find(mill, SITE).run_id or 0)
    drain(mill)
    assert {job.state for job in mill.jobs(stage="ocr")} == {"cancelled"}
    assert cli.call("check-failed").lines == ["Failed jobs in ocr: 0"]


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


@pytest.mark.alike
@pytest.mark.parametrize("words", [["purge-queue", "ocr"], ["db", "downgrade"]])
def test_who_says_no_is_told_that_nothing_was_done(cli: Cli, mill: Mill, play: Play, words: list[str]) -> None:
    fetched(mill, play, minutes(2))
    done = cli.typed(*words, answers="n\n")
    assert (done.code, done.err) == (1, "Error: nothing was done\n")
    assert len(mill.jobs(stage="ocr", state="queued")) == 2
    assert cli.call("status").code == 0


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


def take_a_job(mill: Mill) -> int:
    """As a worker does; says its number."""
    who = workers.Registration("elsewhere", 1, "never", (), 1, "test")
    number = mill.ledger.do(workers.register, who, 30 * SECOND)
    queues = mill.ledger.do(names.add_queues, mill.registry.queues())
    lanes = tuple(Lane(queue, 0, priority) for priority in (0, 1) for queue in queues.values())
    assert mill.ledger.do(claim, number, [Want(0, 1, lanes)], {0: 1}).jobs
    return number


def lose_a_worker(mill: Mill) -> None:
    """One that has taken a job, and is not heard of since."""
    number = take_a_job(mill)
    with mill.transaction() as connection:
        connection.execute(text("UPDATE gm_worker SET lease_until = 0 WHERE id = :number"), {"number": number})


def test_a_site_that_loses_workers_twice_a_day_is_a_warning_and_its_run_goes_on(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(2))
    for time in range(2):
        lose_a_worker(mill)
        would = cli.call("reconcile", "-s", SITE, "--dry-run")
        assert would.lines == [f"Would recover {SITE}: rescue: its lease is over", "Would recover 1 sites"]
        done = cli.call("reconcile", "-s", SITE)
        assert done.lines == [f"Recovering {SITE}: rescue: its lease is over", "Recovered 1 sites"]
        assert ("recovered twice" in done.err) == (time == 1)
    warnings = cli.call("health", "--json").json["warnings"]
    assert f"1 sites were recovered twice within 24 h: {SITE}" in warnings
    broken(mill)
    done = cli.call("reconcile", "--threshold-hours", "0")
    assert done.lines[-1] == "Recovered 1 sites"
    assert sites.find(mill, SITE).outcome is None
    drain(mill)
    assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (2, 0, 2))


@pytest.mark.alike
def test_a_site_that_is_mended_twice_a_day_is_reported_to_sentry(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(2))
    with stand_in() as server:
        server.status = 200
        for _ in range(2):
            broken(mill)
            settings = {"SENTRY_DSN": dsn(server), "SENTRY_ENVIRONMENT": "staging"}
            assert cli.run("reconcile", "--threshold-hours", "0", **settings).lines[-1] == "Recovered 1 sites"
        [event] = events(server)
    assert (event["fingerprint"], event["environment"]) == (["site-recovered-twice"], "staging")
    assert event["tags"]["subdomain"] == SITE


def test_what_one_pass_does_for_a_site_is_one_recovery(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(2))
    lose_a_worker(mill)
    broken(mill)
    done = cli.call("reconcile", "--threshold-hours", "0")
    assert {line.split(": ")[1] for line in done.lines[:-1]} == {"rescue", "recount"}
    assert "recovered twice" not in done.err


def test_what_is_for_a_person_is_listed_and_left_alone(cli: Cli, mill: Mill, play: Play) -> None:
    play.site(SITE, minutes(2, read="Unreadable"))
    sites.update(mill, SITE)
    drain(mill)
    before = sites.find(mill, SITE)
    done = cli.call("reconcile")
    assert (done.code, done.lines[-1]) == (0, "Recovered 0 sites")
    assert done.lines[0].startswith(f"Left to a person: {SITE}: failed_runs: its run failed in ocr")
    assert sites.find(mill, SITE) == before


ONE_DOCUMENT = "key = (SELECT min(key) FROM gm_job WHERE key LIKE 'minutes/%')"


@pytest.mark.alike
def test_an_open_item_that_is_in_no_line_is_queued_again(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(3))
    with mill.transaction() as connection:
        lost = f"UPDATE gm_job SET ready = NULL, run_at = NULL WHERE {ONE_DOCUMENT}"
        assert connection.execute(text(lost)).rowcount == 1
    done = cli.call("reconcile", "--threshold-hours", "0")
    assert (done.lines[0].startswith(f"Recovering {SITE}: "), done.lines[-1]) == (True, "Recovered 1 sites"), done
    drain(mill)
    assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (3, 0, 3))


@pytest.mark.alike
def test_an_item_whose_row_is_gone_is_counted_no_more_and_read_by_the_next_run(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(3))
    with mill.transaction() as connection:
        assert connection.execute(text(f"DELETE FROM gm_job WHERE {ONE_DOCUMENT}")).rowcount == 1
    assert cli.call("reconcile", "--threshold-hours", "0").lines[-1] == "Recovered 1 sites"
    for count in (2, 1):
        drain(mill)
        assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (count, 0, count))
        sites.update(mill, SITE)


@pytest.mark.alike
def test_a_hand_over_that_is_missing_is_made_up_for_once(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(3))
    drain(mill, queues=["ocr"])
    with mill.transaction() as connection:
        gate = "SELECT id FROM gm_stage WHERE name = 'gate'"
        assert connection.execute(text(f"DELETE FROM gm_job WHERE stage_id IN ({gate})")).rowcount == 1
    assert cli.call("reconcile", "--threshold-hours", "0").lines[-1] == "Recovered 1 sites"
    assert cli.call("reconcile", "--threshold-hours", "0").lines == ["Recovered 0 sites"]
    drain(mill)
    assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (3, 0, 3))
    assert [len(mill.jobs(stage=stage)) for stage in ("gate", "compilation", "deploy")] == [1, 1, 1]


@pytest.mark.alike
def test_a_site_that_does_not_move_while_its_worker_lives_is_only_reported(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(2))
    take_a_job(mill)
    with mill.transaction() as connection:
        connection.execute(set_row(tables.site).values(updated_at=datetime.now(UTC) - timedelta(hours=3)))
    before = sites.find(mill, SITE)
    done = cli.call("reconcile")
    assert done.lines == [f"Left to a person: {SITE}: silent_runs: no change in ocr for 3.0 hours", "Recovered 0 sites"]
    assert len(mill.jobs(stage="ocr", state="in_progress")) == 1
    assert sites.find(mill, SITE) == before


@pytest.mark.alike
def test_while_one_reconciles_a_second_one_steps_aside_and_ends_well(cli: Cli, mill: Mill, play: Play) -> None:
    fetched(mill, play, minutes(2))
    broken(mill)
    with mill.ledger.sole("reconcile") as mine:
        assert mine
        done = cli.run("reconcile", "--threshold-hours", "0")
        assert (done.code, done.out, done.err) == (0, "Another reconcile is at work; this one stepped aside\n", "")
        aside = cli.run("reconcile", "--threshold-hours", "0", "--json").json
        assert aside["stepped_aside"]
        assert counters(mill, "ocr")[2] == 3
    assert cli.run("reconcile", "--threshold-hours", "0").lines[-1] == "Recovered 1 sites"
    assert cli.run("reconcile", "--json").json.keys() == aside.keys()


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


@pytest.mark.parametrize("clerk_url", [pytest.param("worker", marks=pytest.mark.pg)], indirect=True)
def test_runs_that_are_not_kept_are_removed_by_the_owner_of_the_tables_and_not_by_a_worker(
    cli: Cli, mill: Mill, play: Play, clerk_pg_url: str
) -> None:
    play.site(SITE, find="Unreadable")
    runs = []
    for days in (30, 0):
        runs.append(sites.update(mill, SITE).run)
        drain(mill)
        ended_days_ago(mill, runs[-1], days)
    done = cli.run("reconcile")
    assert (done.code, done.err) == (0, "")
    assert {run.id for run in mill.runs()} == set(runs)
    assert cli.run("reconcile", DATABASE_URL=clerk_pg_url).code == 0
    assert {run.id for run in mill.runs()} == {runs[1]}


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


@pytest.mark.parametrize("leased", [False, True])
def test_a_run_with_queued_or_leased_jobs_is_no_orphan(cli: Cli, mill: Mill, leased: bool) -> None:
    sites.update(mill, SITE)
    if leased:
        take_a_job(mill)
        assert mill.jobs(state="queued") == []
    with mill.transaction() as connection:
        connection.execute(set_row(tables.site).values(updated_at=datetime.now(UTC) - timedelta(hours=30)))
    assert cli.call("cleanup-orphaned").lines == ["Found 0 orphaned runs"]
