"""The older clerk as it was found: 105 sites that nothing moved go on, each once, and RQ keeps nothing of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rq import Queue
from rq.registry import DeferredJobRegistry, FailedJobRegistry
from sqlalchemy import text

from clerk import reconciling, sites
from clerk.app import open_mill, work
from clerk.config import Config, load
from clerk.legacy import import_legacy, migrate_stuck_sites
from clerk.pipeline import configure
from gristmill import Mill
from gristmill.testing import FrozenClock, drain
from tests.clerk import played_reading
from tests.clerk.older_clerk import FOUND, OlderClerk, engine_of, leave_jobs
from tests.clerk.playing import Play
from tests.clerk.test_legacy import config as config
from tests.clerk.test_legacy import design as design
from tests.clerk.test_legacy import everything, files
from tests.clerk.test_legacy import older_url as older_url
from tests.clerk.test_legacy import quick as quick
from tests.clerk.test_whole import found, pdf
from tests.servers import free_port
from tests.valkey import Valkey

EXPECTED = {"empty": "0/0 completed, 0 failed", "partly": "2/4 completed, 2 failed", "done": "2/2 completed, 0 failed"}
EXPECTED |= {"agendas": "1/1 completed, 0 failed", "unread": "0/2 completed, 2 failed"}
FEW = dict.fromkeys(FOUND, 1)
MOVED = {"fetching.example", "extracting.example", "deploying.example"}


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config) -> Play:
    made = Play(tmp_path / "play")
    monkeypatch.setenv("CLERK_PLAY", str(made.folder))
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(made.folder / "plugins"))
    monkeypatch.setattr("clerk.pipeline.documents.read", played_reading.read)
    configure(load())
    made.site("fetching.example")
    return made


@pytest.fixture
def clerk(config: Config, design: Any, play: Play) -> OlderClerk:
    return OlderClerk(config.database_url, config.storage, design)


@pytest.fixture
def valkey(session_valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Valkey]:
    session_valkey.flush()
    yield session_valkey
    session_valkey.flush()


def with_redis(config: Config, url: str) -> Config:
    return Config(database_url=config.database_url, storage=config.storage, redis_url=url)


def numbers(url: str, sql: str) -> dict[Any, int]:
    engine = engine_of(url)
    with engine.connect() as connection:
        found = {row[0]: row[1] for row in connection.execute(text(sql))}
    engine.dispose()
    return found


def completions(mill: Mill, stage: str) -> Counter[str]:
    """By site."""
    with mill.transaction() as connection:
        jobs = connection.execute(
            text("""SELECT r.subject FROM gristmill_jobs j JOIN gristmill_runs r ON r.id = j.run_id
                WHERE j.stage = :stage AND j.state = 'completed'"""),
            {"stage": stage},
        )
        return Counter(row[0] for row in jobs)


@pytest.mark.alike
@pytest.mark.usefixtures("quick")
def test_the_105_that_were_found_are_migrated_once_and_a_dry_run_changes_no_row(clerk: OlderClerk, config: Config) -> None:
    clerk.as_found()
    stages = numbers(config.database_url, "SELECT current_stage, count(*) FROM site_progress GROUP BY current_stage")
    statuses = numbers(config.database_url, "SELECT status, count(*) FROM sites GROUP BY status")
    unfinished = sum(count for stage, count in stages.items() if stage != "completed")
    assert (unfinished, stages["ocr"], statuses["needs_ocr"]) == (108, 105, 91)

    imported = import_legacy(config)
    assert (imported.unfinished, imported.stages["ocr"], imported.jobs) == (108, 105, 120)
    before = everything(config.database_url), files(config.storage)
    planned = migrate_stuck_sites(config, dry_run=True)
    assert (everything(config.database_url), files(config.storage)) == before

    report = migrate_stuck_sites(config)
    lines = [f"  {name}: {EXPECTED[kind]}" for name, kind in sorted(clerk.stuck.items())]
    assert report.lines() == ["Found 105 stuck sites in OCR stage", *lines, "Migrated 105 sites"]
    assert planned.lines()[:-1] == report.lines()[:-1]
    before = everything(config.database_url), files(config.storage)
    assert migrate_stuck_sites(config).lines() == ["Found 0 stuck sites in OCR stage", "Migrated 0 sites"]
    assert (everything(config.database_url), files(config.storage)) == before


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "counts", [FEW, pytest.param(FOUND, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids=["few", "found"]
)
def test_after_migration_none_is_active_or_in_ocr_and_each_was_handed_over_once(
    clerk: OlderClerk, config: Config, counts: dict[str, int]
) -> None:
    clerk.as_found(counts)
    import_legacy(config)
    migrate_stuck_sites(config)
    with open_mill(config, clock=FrozenClock(datetime.now(UTC))) as mill:
        empty = {name for name, kind in clerk.stuck.items() if kind == "empty"}
        assert {sites.find(mill, name).outcome for name in empty} == {"no_documents"}
        reconciling.reconcile(mill)
        drain(mill)
        ended = {site.subdomain: site for site in sites.known(mill)}
        assert sites.active(mill) == []
        assert Counter(site.current_stage for site in ended.values()) == {"completed": len(ended) - 1, None: 1}
        assert {ended[name].outcome for name in clerk.stuck.keys() - empty} == {"completed"}
        assert ended["fetching.example"].outcome == "no_documents"
        assert completions(mill, "gate") == Counter(clerk.stuck.keys() - empty | MOVED)
        for stage in ("compilation", "deploy"):
            assert completions(mill, stage) == Counter(clerk.stuck.keys() - empty | MOVED - {"fetching.example"})
        read = {name for name, kind in clerk.stuck.items() if kind in ("partly", "unread")}
        assert completions(mill, "ocr") == Counter(dict.fromkeys(read, 2))  # what was failed, and nothing twice


@pytest.mark.alike
@pytest.mark.usefixtures("quick")
def test_what_rq_keeps_of_them_is_cleared_and_nothing_else(
    config: Config, valkey: Valkey, play: Play, tmp_path: Path
) -> None:
    OlderClerk(config.database_url, config.storage, "2026-01-18").make_tables()
    import_legacy(config)
    with valkey.client as client:
        leave_jobs(client)
        deferred, failed = (kind(name, connection=client) for kind, name in
            ((DeferredJobRegistry, "compilation"), (FailedJobRegistry, "ocr")))  # fmt: skip
        assert (deferred.count, failed.count) == (82, 2695)
        asked = with_redis(config, valkey.url)
        said = [["Would clear 82 deferred coordinators", "Would clear 2695 failed OCR jobs"]]
        said += [["Cleared 82 deferred coordinators", "Cleared 2695 failed OCR jobs"]]
        said += [["Cleared 0 deferred coordinators", "Cleared 0 failed OCR jobs"]]
        for number, lines in enumerate(said):
            assert migrate_stuck_sites(asked, dry_run=number == 0).lines()[2:] == lines
        assert (deferred.count, failed.count) == (0, 0)
        [left] = Queue("fetch", connection=client).jobs
        assert left.func_name == "clerk.workers.fetch_site_job"
        assert [key.decode() for key in client.keys("rq:job:*")] == [left.key]


@pytest.mark.alike
@pytest.mark.usefixtures("quick")
def test_a_redis_that_is_away_is_a_warning_and_the_sites_go_on(config: Config, play: Play) -> None:
    clerk = OlderClerk(config.database_url, config.storage, "2026-01-18")
    clerk.make_tables()
    clerk.add([("a.example", "needs_ocr", "ocr")])
    clerk.document("a.example", "minutes/Council/2025-01-07")
    import_legacy(config)
    report = migrate_stuck_sites(with_redis(config, f"redis://:secret@127.0.0.1:{free_port()}/0"))
    assert (report.migrated, report.cleared) == (1, None)
    [warning] = report.warnings
    assert "cannot be reached" in warning
    assert "secret" not in warning


@pytest.mark.alike
@pytest.mark.usefixtures("quick")
def test_documents_that_are_not_in_the_storage_are_fetched_again(config: Config, play: Play) -> None:
    clerk = OlderClerk(config.database_url, config.storage, "2026-01-06")
    clerk.make_tables()
    clerk.add([("gone.example", "needs_ocr", "ocr")])
    import_legacy(config)
    assert migrate_stuck_sites(config).lines()[1] == "  gone.example: 0/3 completed, 3 failed"
    with open_mill(config) as mill:
        [run] = mill.runs(pipeline="site")
    assert (run.args["skip_fetch"], run.args["all_years"]) == (False, True)


@pytest.mark.alike
def test_old_text_and_what_is_read_now_are_published_together(config: Config, tmp_path: Path) -> None:
    """Everything real: the command that makes the tables, the PDF, its reader, the workers."""
    clerk = OlderClerk(config.database_url, config.storage, "2026-01-06", scraper="folder")
    clerk.make_tables()
    clerk.add([("oakfield.ca", "needs_ocr", "ocr")])
    clerk.document("oakfield.ca", "minutes/Council/2025-01-07", pdf=False)
    pdf(config.storage / "oakfield.ca" / "pdfs" / "Council" / "2025-02-04.pdf", "zeppelin")
    configure(load())
    import_legacy(config)
    assert migrate_stuck_sites(config).lines()[1] == "  oakfield.ca: 1/2 completed, 1 failed"
    with open_mill(config) as mill:
        work(mill, "all", 2, until="drained")
        assert sites.find(mill, "oakfield.ca").outcome == "completed"
    [public] = (tmp_path / "published").rglob("meetings.db")
    assert found(public, "zeppelin") == [("Council", "2025-02-04", 1)]
    assert found(public, "older") == [("Council", "2025-01-07", 1)]
