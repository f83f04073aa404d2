"""Moving from the older designs: what is imported, what older workers write, and the way back."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from clerk import app, sites
from clerk.app import open_mill
from clerk.config import Config, load
from clerk.db import older
from clerk.errors import ClerkError
from clerk.legacy import beside, finish_import, import_legacy, migrate_stuck_sites
from clerk.storage import Document, SiteFiles
from gristmill import Mill
from gristmill.ledger.migrate import upgrade
from tests.clerk.older_clerk import Design, OlderClerk, engine_of

SITE = "oakfield.ca"
quickly = pytest.mark.usefixtures("quick")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.pg)])
def older_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any tables."""
    return str(request.getfixturevalue("empty_pg_url")) if request.param == "postgres" else f"sqlite:///{tmp_path}/civic.db"


@pytest.fixture
def config(older_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    (tmp_path / "sites").mkdir()
    given = {"DATABASE_URL": older_url, "STORAGE_DIR": str(tmp_path / "sites"), "DEPLOY_TARGET": str(tmp_path / "published")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("REDIS_URL", raising=False)
    return load(folder=tmp_path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's command, called instead of run: that takes a second of a processor."""

    def upgrade_beside(config: Config, *words: str, application: str) -> subprocess.CompletedProcess[str]:
        assert (words, application) == (("upgrade",), beside.__name__)
        upgrade(config.database_url, own=[beside.tables_of(config.database_url)])
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr("clerk.legacy.importing.database", upgrade_beside)


@pytest.fixture(params=["2026-01-06", "2026-01-18"])
def design(request: pytest.FixtureRequest) -> Design:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def clerk(config: Config, design: Design) -> OlderClerk:
    made = OlderClerk(config.database_url, config.storage, design)
    made.make_tables()
    return made


@pytest.fixture
def second(config: Config) -> OlderClerk:
    """Of the second design, where it does not matter which."""
    made = OlderClerk(config.database_url, config.storage, "2026-01-18")
    made.make_tables()
    return made


def everything(url: str) -> dict[str, Any]:
    """All rows of all tables, and the names of views."""
    engine = engine_of(url)
    with engine.connect() as connection:
        found: dict[str, Any] = {"views": sorted(inspect(connection).get_view_names())}
        for table in inspect(connection).get_table_names():
            rows = connection.execute(text(f"SELECT * FROM {table}")).all()
            found[table] = sorted(str(tuple(row)) for row in rows)
    engine.dispose()
    return found


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


def ask(mill: Mill, sql: str, **values: object) -> list[tuple[Any, ...]]:
    with mill.transaction() as connection:
        return [tuple(row) for row in connection.execute(text(sql), values)]


@pytest.fixture
def imported(second: OlderClerk, config: Config, quick: None) -> Iterator[Mill]:
    second.add([(SITE, "needs_ocr", "ocr")])
    second.document(SITE, "minutes/Council/2025-01-07")
    import_legacy(config)
    with open_mill(config) as mill:
        yield mill


# ---- what is imported


@quickly
def test_every_status_has_its_stage_and_unfinished_ones_but_ocr_get_a_run(clerk: OlderClerk, config: Config) -> None:
    said = {
        "a.example": ("deployed", "completed", "completed"),
        "b.example": ("needs_ocr", "ocr", "ocr"),
        "c.example": ("needs_extraction", "extraction", "compilation"),
        "d.example": ("needs_compilation", "compilation", "compilation"),
        "e.example": ("needs_deploy", "deploy", "deploy"),
        "f.example": ("fetching", "fetch", "fetch"),
        "g.example": (None, None, None),
        "h.example": ("deployed", None, "completed"),
    }
    clerk.add([(name, status, stage) for name, (status, stage, _) in said.items()])
    report = import_legacy(config)
    assert (report.sites, report.put_aside) == (sorted(said), list(older.NAMES))
    assert report.stages == {"completed": 2, "ocr": 1, "compilation": 2, "deploy": 1, "fetch": 1, "new": 1}
    with open_mill(config) as mill:
        found = {site.subdomain: site for site in sites.known(mill)}
        runs = {run.subject: run.args["skip_fetch"] for run in mill.runs(pipeline="site")}
    assert runs == {"c.example": True, "d.example": True, "e.example": True, "f.example": False}
    for name, (_, _, stage) in said.items():
        assert found[name].current_stage == (
            "fetch" if name in runs else stage
        )  # a run begins with fetch, if it does nothing
    assert found["a.example"].outcome == "completed"
    assert found["b.example"].updated_at == datetime(2026, 1, 17, 8, 30, 15, tzinfo=UTC)


@pytest.mark.alike
@quickly
@pytest.mark.parametrize(
    ("compiled", "unread", "stage"), [(True, False, "completed"), (False, False, "ocr"), (True, True, "ocr")]
)
def test_where_sources_disagree_files_decide(
    second: OlderClerk, config: Config, compiled: bool, unread: bool, stage: str
) -> None:
    second.add([(SITE, "deployed", "ocr")])
    second.document(SITE, "minutes/Council/2025-01-07")
    if unread:
        second.document(SITE, "minutes/Council/2025-01-08", text=False, marker=False)
    if compiled:
        (config.storage / SITE / "meetings.db").write_text("newer than all text")
    import_legacy(config)
    with open_mill(config) as mill:
        assert sites.find(mill, SITE).current_stage == stage


@pytest.mark.alike
@quickly
def test_documents_are_the_union_of_pdfs_text_and_markers_of_both_kinds(second: OlderClerk, config: Config) -> None:
    second.add([(SITE, "needs_ocr", "ocr")])
    told = {
        "minutes/Council/2025-01-01": ({}, "read"),
        "minutes/Council/2025-01-02": ({"pdf": False, "marker": False}, "read"),
        "minutes/Council/2025-01-03": ({"marker": False}, "fetched"),
        "agendas/Council/2025-01-04": ({"text": False, "marker": False}, "fetched"),
        "agendas/Council/2025-01-05": ({"text": False}, "fetched"),
        "minutes/Council/2025-01-06": ({"pdf": False, "text": False}, "missing"),
    }
    for key, (how, _) in told.items():
        second.document(SITE, key, **how)
    report = import_legacy(config)
    assert (report.documents, report.read) == (6, 2)
    with open_mill(config) as mill:
        rows = ask(mill, "SELECT key, state FROM clerk_document")
    assert dict(rows) == {key: state for key, (_, state) in told.items()}
    assert migrate_stuck_sites(config, dry_run=True).lines()[1] == f"  {SITE}: 2/6 completed, 4 failed"


@pytest.mark.alike
@quickly
def test_what_was_read_is_marked_with_what_it_was_read_from_and_is_not_newer_for_it(
    second: OlderClerk, config: Config
) -> None:
    second.add([(SITE, "deployed", "completed")])
    second.document(SITE, "minutes/Council/2025-01-07")
    second.document(SITE, "minutes/Council/2025-01-08", marker="f" * 64)
    own = SiteFiles(config.storage, SITE)
    first, other = (Document.of_key(f"minutes/Council/2025-01-0{day}") for day in (7, 8))
    os.utime(own.marker(first), (1_700_000_000, 1_700_000_000))
    import_legacy(config)
    with open_mill(config) as mill:
        digests = dict(ask(mill, "SELECT key, sha256 FROM clerk_document"))
    assert digests == {first.key: own.finished(first), other.key: "f" * 64}
    assert len(str(own.finished(first))) == 64
    assert own.marker(first).stat().st_mtime == 1_700_000_000


@pytest.mark.alike
@quickly
def test_local_times_are_local_and_odd_values_are_kept_and_said(second: OlderClerk, config: Config) -> None:
    second.add([(SITE, "deployed", None)], extra="not json", scraper=None, lat="44.5")
    second.add([("../etc", "deployed", None), ("Upper.Case", "deployed", "completed")])
    report = import_legacy(config)
    assert report.sites == [SITE]
    assert len([said for said in report.warnings if "is no subdomain" in said]) == 2
    assert any("no scraper" in said for said in report.warnings)
    assert any("extra.legacy" in said for said in report.warnings)
    with open_mill(config) as mill:
        site = sites.find(mill, SITE)
    assert (site.extra, site.lat, site.scraper) == ({"legacy": "not json"}, "44.5", "unknown")
    assert site.last_updated == datetime(2026, 1, 17, 8, 0).astimezone(UTC)


@pytest.mark.alike
@quickly
def test_the_next_run_asks_from_the_year_of_the_last_good_one(second: OlderClerk, config: Config) -> None:
    second.add([(SITE, "deployed", "completed"), ("b.example", "deployed", "completed")])
    import_legacy(config)
    with open_mill(config) as mill:
        rows = ask(mill, "SELECT subdomain, outcome, run_id FROM clerk_run ORDER BY run_id DESC")
    assert rows == [("b.example", "completed", -1), (SITE, "completed", -2)]


# ---- once, again, and not at all


def test_a_dry_run_changes_nothing(clerk: OlderClerk, config: Config) -> None:
    clerk.add([(SITE, "needs_ocr", "ocr"), ("b.example", "deployed", "completed")])
    clerk.document(SITE, "minutes/Council/2025-01-07")
    before = everything(config.database_url), files(config.storage)
    report = import_legacy(config, dry_run=True)
    assert (everything(config.database_url), files(config.storage)) == before
    assert report.lines()[0] == "Would import 2 sites, 1 of 1 documents read; 0 known before"
    assert report.put_aside == list(older.NAMES)


@quickly
def test_a_repeated_import_changes_nothing(clerk: OlderClerk, config: Config) -> None:
    clerk.add([(SITE, "needs_ocr", "ocr"), ("b.example", "fetching", "fetch"), ("c.example", "deployed", "completed")])
    clerk.document(SITE, "minutes/Council/2025-01-07")
    import_legacy(config)
    before = everything(config.database_url), files(config.storage)
    report = import_legacy(config)
    assert (everything(config.database_url), files(config.storage)) == before
    assert (report.sites, report.known, report.put_aside) == ([], 3, [])


@quickly
def test_an_import_that_is_broken_off_is_begun_again(
    second: OlderClerk, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    second.add([(SITE, "needs_ocr", "ocr"), ("b.example", "fetching", "fetch")])
    with monkeypatch.context() as broken:
        broken.setattr("clerk.legacy.importing._remember", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            import_legacy(config)
    engine = engine_of(config.database_url)
    with engine.connect() as connection:
        assert older.tables(connection) == list(older.NAMES)  # older workers go on
        assert connection.execute(text("SELECT count(*) FROM sites")).scalar() == 2
    engine.dispose()
    with pytest.raises(ClerkError, match="`clerk import-legacy`"):
        open_mill(config)
    assert import_legacy(config).sites == ["b.example", SITE]


def test_an_upgrade_over_older_tables_is_refused_and_names_the_import(clerk: OlderClerk, config: Config) -> None:
    before = everything(config.database_url)
    with pytest.raises(ClerkError, match="`clerk import-legacy` moves them") as refused:
        app.database(config, "upgrade")
    assert refused.value.exit_code == 1
    with pytest.raises(ClerkError, match="import-legacy"):
        migrate_stuck_sites(config)
    assert everything(config.database_url) == before


def test_without_the_files_nothing_is_imported(second: OlderClerk, config: Config, tmp_path: Path) -> None:
    with pytest.raises(ClerkError, match="--storage-dir"):
        import_legacy(config, storage_dir=tmp_path / "none")


@pytest.mark.alike
@quickly
def test_from_another_database_which_stays_as_it_is(clerk: OlderClerk, config: Config, tmp_path: Path) -> None:
    clerk.add([(SITE, "needs_ocr", "ocr"), ("gone.example", "needs_ocr", "ocr")])
    clerk.document(SITE, "minutes/Council/2025-01-07")
    target = Config(database_url=f"sqlite:///{tmp_path}/target.db", storage=config.storage)
    assert app.database(target, "upgrade").returncode == 0
    before = everything(config.database_url)
    for _ in range(2):
        import_legacy(target, source=config.database_url)
        assert everything(config.database_url) == before
    lines = migrate_stuck_sites(target, dry_run=True).lines()
    assert lines[1:3] == ["  gone.example: 0/3 completed, 3 failed", f"  {SITE}: 1/1 completed, 0 failed"]
    finish_import(target)
    engine = engine_of(target.database_url)
    with engine.connect() as connection:
        assert not [name for name in inspect(connection).get_table_names() if name.startswith("legacy_")]
    engine.dispose()


# ---- older workers that still run


WRITES = [
    (
        "update",
        "site_progress",
        "UPDATE site_progress SET stage_completed = stage_completed + 1 WHERE site_id = 'oakfield.ca'",
    ),
    ("update", "sites", "UPDATE sites SET status = 'needs_deploy', ocr_failed = 7 WHERE subdomain = 'oakfield.ca'"),
    ("insert", "site_progress", "INSERT INTO site_progress (site_id, current_stage) VALUES ('oakfield.ca', 'extraction')"),
    ("insert", "job_tracking", "INSERT INTO job_tracking (rq_job_id, subdomain) VALUES ('x', 'oakfield.ca')"),
    ("delete", "site_progress", "DELETE FROM site_progress WHERE subdomain = 'oakfield.ca'"),
    ("delete", "sites", "DELETE FROM sites WHERE subdomain = 'oakfield.ca'"),
]


def test_what_older_workers_write_is_swallowed_and_kept(imported: Mill, config: Config) -> None:
    def state() -> dict[str, Any]:
        return {name: rows for name, rows in everything(config.database_url).items() if name != "legacy_writes"}

    before = state()
    with imported.transaction() as connection:
        for _, _, sql in WRITES:
            assert connection.execute(text(sql)).rowcount == 0  # nobody may think that it was the one who changed it
    assert state() == before
    kept = ask(imported, "SELECT operation, view, subdomain, written FROM legacy_writes ORDER BY id")
    assert [(operation, view) for operation, view, _, _ in kept] == [(operation, view) for operation, view, _ in WRITES]
    assert {subdomain for _, _, subdomain, _ in kept} == {SITE}
    written = [json.loads(row[3]) if isinstance(row[3], str) else row[3] for row in kept]
    assert written[1] == {"status": "needs_deploy", "ocr_failed": 7}
    assert written[2] == {"site_id": SITE, "current_stage": "extraction"}


def test_an_upgrade_makes_the_views_anew_and_swallows_still(imported: Mill, config: Config) -> None:
    assert app.database(config, "upgrade").returncode == 0
    with imported.transaction() as connection:
        assert connection.execute(text(WRITES[1][2])).rowcount == 0
    assert ask(imported, "SELECT count(*) FROM legacy_writes") == [(1,)]


@quickly
@pytest.mark.pg
def test_who_could_write_the_tables_is_swallowed_not_refused(empty_pg_url: str, tmp_path: Path) -> None:
    role = f"older_{os.getpid()}"
    (tmp_path / "sites").mkdir()
    config = Config(database_url=empty_pg_url, storage=tmp_path / "sites")
    clerk = OlderClerk(empty_pg_url, config.storage, "2026-01-18")
    clerk.make_tables()
    clerk.add([(SITE, "needs_ocr", "ocr")])
    engine = engine_of(empty_pg_url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text(f"GRANT SELECT, UPDATE ON sites TO {role}"))
    try:
        import_legacy(config)
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL ROLE {role}"))
            assert connection.execute(text(WRITES[1][2])).rowcount == 0
        with engine.begin() as connection:
            assert connection.execute(text("SELECT count(*) FROM legacy_writes")).scalar() == 1
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
        engine.dispose()


# ---- there and back


def test_the_end_is_refused_while_an_older_worker_may_still_write(imported: Mill, config: Config) -> None:
    with imported.transaction() as connection:
        connection.execute(text(WRITES[0][2]))
    before = everything(config.database_url)
    with pytest.raises(ClerkError, match=r"wrote 0\.0 hours ago") as refused:
        finish_import(config)
    assert refused.value.exit_code == 1
    assert everything(config.database_url) == before
    with imported.transaction() as connection:
        when = datetime.now(UTC) - timedelta(hours=24, minutes=1)
        value = when if connection.dialect.name == "postgresql" else when.isoformat().replace("+00:00", "Z")
        connection.execute(text("UPDATE legacy_writes SET updated_at = :when"), {"when": value})
    assert finish_import(config, dry_run=True).lines() == [
        "Would drop legacy_sites, legacy_site_progress, legacy_job_tracking, legacy_writes"
    ]
    assert set(finish_import(config).dropped) == {*older.ASIDE, older.WRITES}
    assert not [name for name in everything(config.database_url) if name.startswith("legacy_")]
    assert sites.find(imported, SITE).current_stage == "ocr"
    assert finish_import(config).dropped == []


@quickly
def test_downgrade_restores_the_old_names_until_the_end(clerk: OlderClerk, config: Config) -> None:
    clerk.add([(SITE, "needs_ocr", "ocr"), ("b.example", "deployed", "completed")])
    clerk.document(SITE, "minutes/Council/2025-01-07")
    engine = engine_of(config.database_url)
    with engine.connect() as connection:
        indexes = {name: inspect(connection).get_indexes(name) for name in older.NAMES}
    before = everything(config.database_url)
    import_legacy(config)
    done = app.database(config, "downgrade", "--of", "clerk", "--yes", "base")
    assert done.returncode == 0, done.stderr
    after = everything(config.database_url)
    assert {name: after[name] for name in older.NAMES} == {name: before[name] for name in older.NAMES}
    assert not [name for name in after if name.startswith("legacy_")]
    with engine.connect() as connection:
        assert {name: inspect(connection).get_indexes(name) for name in older.NAMES} == indexes
    engine.dispose()
    assert import_legacy(config).sites == ["b.example", SITE]  # and there again
