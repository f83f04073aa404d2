"""What a real worker and the processes of its jobs leave in LOG_DIR, in Loki and on stderr."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clerk import sites
from clerk.app import open_mill
from clerk.config import Config
from clerk.sites import Description
from gristmill import Mill
from tests.clerk.cli import Cli
from tests.clerk.papers import scanned
from tests.clerk.standins import StandIn, stand_in
from tests.clerk.test_logs import entries, sent
from tests.clerk.test_pipeline import SITE
from tests.clerk.test_sentry import dsn, events
from tests.clerk.test_whole import pdf
from tests.worker.helpers import eventually

FIELDS = ["timestamp", "level", "message", "subdomain", "run_id", "stage", "job_id"]
SECRET = "hunter2secret"
STAGES = ("fetch", "ocr", "compilation", "extraction", "deploy")

pytestmark = pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clerk_config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@pytest.fixture
def mill(clerk_config: Config, tmp_path: Path) -> Iterator[Mill]:
    source = tmp_path / "source"
    for day in ("05", "06"):
        pdf(source / "minutes" / "City Council" / f"2026-01-{day}.pdf", "zeppelin")
    (source / "minutes" / "City Council" / "2026-01-07.pdf").write_bytes(b"%PDF-1.4 and then nothing")
    with open_mill(clerk_config) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "folder", start_year=2026, extra={"path": str(source)}))
        yield opened


def milestones(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ends = ("_started", "_completed", "_failed")
    return [entry for entry in found if entry["message"].endswith(ends) and entry["job_id"] is not None]


def test_each_job_leaves_its_milestones_as_lines_of_json(cli: Cli, mill: Mill, clerk_config: Config) -> None:
    run = sites.update(mill, SITE).run
    with stand_in() as loki:
        done = cli.run("worker", "all", "-n", "2", "--burst", LOKI_URL=loki.url, DEPLOY_API_TOKEN=SECRET)
        assert done.code == 0, done.err
        found = entries(clerk_config.log_dir / "worker-all-1.log")
        arrived = {(entry["timestamp"], entry["message"]) for entry in sent(loki)}
    assert all(list(entry)[:7] == FIELDS for entry in found)
    assert {(entry["timestamp"], entry["message"]) for entry in found} <= arrived
    told = Counter(entry["message"] for entry in milestones(found))
    assert told["ocr_started"] == 3
    assert (told["ocr_completed"], told["ocr_failed"]) == (2, 1)
    for stage in set(STAGES) - {"ocr"}:
        assert (told[f"{stage}_started"], told[f"{stage}_completed"]) == (1, 1), told
    assert told["coordinator_started"] == 1
    jobs = {job.id: job for job in mill.jobs(limit=100)}
    for entry in milestones(found):
        assert (entry["subdomain"], entry["run_id"], entry["worker"]) == (SITE, run, "all-1")
        assert entry["stage"] == jobs[entry["job_id"]].stage
        assert entry["message"].endswith("_started") or entry["duration"] >= 0
    [failed] = [entry for entry in milestones(found) if entry["message"] == "ocr_failed"]
    assert (failed["level"], failed["job_id"]) == ("ERROR", mill.jobs(stage="ocr", state="failed")[0].id)
    assert SECRET not in (clerk_config.log_dir / "worker-all-1.log").read_text() + done.err


def groups(server: StandIn) -> Counter[tuple[str, ...]]:
    return Counter(tuple(event["fingerprint"]) for event in events(server))


def test_what_fails_in_a_worker_is_one_group_in_sentry_for_each_kind_and_host(cli: Cli, mill: Mill) -> None:
    sites.create(mill, Description("far.ca", "Far", "http_index", extra={"url": "http://10.1.2.3/minutes"}))
    for name in (SITE, "far.ca"):
        sites.update(mill, name)
    with stand_in() as server:
        server.status = 200
        assert cli.run("worker", "all", "--burst", SENTRY_DSN=dsn(server)).code == 0
        assert groups(server) == {("pdf-failed-to-read",): 1, ("fetch-error", "10.1.2.3"): 1}


def test_what_fails_without_a_kind_is_one_group_for_each_stage_and_class_not_for_each_path(
    cli: Cli, mill: Mill, tmp_path: Path, clerk_config: Config
) -> None:
    sites.create(mill, Description("elm.ca", "Elm", "folder", start_year=2026, extra={"path": str(tmp_path / "source")}))
    for name in (SITE, "elm.ca"):
        (Path(clerk_config.deploy_target) / name).mkdir(parents=True)  # somebody else's, which is not written over
        sites.update(mill, name)
    with stand_in() as server:
        server.status = 200
        assert cli.run("worker", "all", "-n", "2", "--burst", SENTRY_DSN=dsn(server)).code == 0
        assert groups(server) == {("pdf-failed-to-read",): 2, ("deploy", "ClerkError"): 2}


def worked_off(cli: Cli, mill: Mill, **settings: str) -> bool:
    """A worker that ends when nothing is ready; what waits to be tried again is not."""
    assert cli.run("worker", "all", "-n", "2", "--burst", **settings).code == 0
    return not mill.jobs(stage="ocr", state=["queued"])


def test_an_item_that_is_killed_at_its_time_limit_has_its_milestone_and_is_reported(
    cli: Cli, mill: Mill, clerk_config: Config, tmp_path: Path
) -> None:
    for paper in (tmp_path / "source").rglob("*.pdf"):
        scanned(paper, ["\n".join(["a page that takes a while to read"] * 40)] * 3)
    assert cli.run("update", "-s", SITE, OCR_JOB_TIMEOUT="0.05s").code == 0
    with stand_in() as server:
        server.status = 200
        eventually(lambda: worked_off(cli, mill, SENTRY_DSN=dsn(server)), "they were tried twice", within=90)
        killed = mill.jobs(stage="ocr", state="failed")
        assert [job.error_class for job in killed] == ["timeout"] * 3
        assert groups(server)["pdf-failed-to-process",] == 3
    found = entries(clerk_config.log_dir / "worker-all-1.log")
    failed = [entry for entry in found if entry["message"] == "ocr_failed"]
    assert {entry["job_id"] for entry in failed} == {job.id for job in killed}
    assert {(entry["level"], entry["subdomain"], entry["stage"]) for entry in failed} == {("ERROR", SITE, "ocr")}
    assert "stopped at its time limit of 0.05 s" in failed[0]["error"]
    tries = [entry for entry in found if entry.get("outcome") == "timeout"]
    assert [(entry["subdomain"], entry["run_id"], entry["stage"]) for entry in tries] == [(SITE, killed[0].run, "ocr")] * 6


# ---- runs in the process of a command


@pytest.mark.parametrize("words", [["run-local", SITE], ["update", "-s", SITE, "--local"]])
def test_a_run_in_this_process_leaves_what_a_worker_would(
    cli: Cli, mill: Mill, clerk_config: Config, words: list[str]
) -> None:
    with stand_in() as loki, stand_in() as server:
        server.status = 200
        done = cli.run(*words, LOKI_URL=loki.url, SENTRY_DSN=dsn(server))
        assert (done.code, done.err) == (0, "")
        arrived = {(entry["timestamp"], entry["message"]) for entry in sent(loki)}
        assert groups(server) == {("pdf-failed-to-read",): 1}
    found = entries(clerk_config.log_dir / "worker-local-1.log")
    told = Counter(entry["message"] for entry in milestones(found))
    assert (told["ocr_started"], told["ocr_completed"], told["ocr_failed"], told["deploy_completed"]) == (3, 2, 1, 1)
    assert {(entry["subdomain"], entry["worker"]) for entry in milestones(found)} == {(SITE, "local-1")}
    assert {(entry["timestamp"], entry["message"]) for entry in milestones(found)} <= arrived


def test_a_new_site_that_is_run_at_once_and_one_stage_alone_leave_lines_too(
    cli: Cli, mill: Mill, clerk_config: Config, tmp_path: Path
) -> None:
    extra = f'{{"path": "{tmp_path}/source"}}'
    words = ["--name", "Elm", "--scraper", "folder", "--extra", extra, "--start-year", "2026", "--local"]
    assert cli.run("new", "elm.ca", *words).code == 0
    assert cli.run("run-stage", "fetch", "-s", SITE).code == 0
    [paper, *_, broken] = sorted((clerk_config.storage / SITE / "pdfs").rglob("*.pdf"))
    assert cli.run("run-stage", "ocr", "-s", SITE, "--pdf-path", paper).code == 0
    with stand_in() as server:
        server.status = 200
        done = cli.run("run-stage", "ocr", "-s", SITE, "--pdf-path", broken, SENTRY_DSN=dsn(server))
        assert (done.code, done.err.count("\n"), done.err.startswith("Error: ")) == (1, 1, True), done.err
        assert groups(server) == {("pdf-failed-to-read",): 1}
    found = entries(clerk_config.log_dir / "worker-local-1.log")
    told = Counter((entry["subdomain"], entry["message"]) for entry in found)
    assert told["elm.ca", "deploy_completed"] == told[SITE, "fetch_completed"] == told[SITE, "ocr_completed"] == 1
    assert told[SITE, "ocr_failed"] == 1
