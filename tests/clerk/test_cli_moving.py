"""`import-legacy` and `migrate-stuck-sites` as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clerk import sites
from clerk.app import open_mill
from clerk.config import Config
from tests.clerk.cli import Cli
from tests.clerk.older_clerk import OlderClerk
from tests.clerk.test_legacy import SITE, everything, files
from tests.clerk.test_legacy import config as config
from tests.clerk.test_legacy import older_url as older_url
from tests.clerk.test_legacy import quick as quick
from tests.clerk.test_legacy import second as second

quickly = pytest.mark.usefixtures("quick")
RENAMED = "sites to legacy_sites, site_progress to legacy_site_progress, job_tracking to legacy_job_tracking"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "logs"))
    return Cli(tmp_path, capsys)


@pytest.fixture
def older(second: OlderClerk) -> OlderClerk:
    second.add([(SITE, "needs_ocr", "ocr"), ("rockport.il", "deployed", "completed")])
    second.document(SITE, "minutes/Council/2025-01-07")
    second.document(SITE, "minutes/Council/2025-01-08", text=False, marker=False)
    return second


def test_an_older_clerk_is_moved_by_what_is_typed(cli: Cli, older: OlderClerk, config: Config) -> None:
    before = everything(config.database_url), files(config.storage)
    refused = cli.run("db", "upgrade")
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert "`clerk import-legacy` moves them" in refused.err
    planned = cli.run("import-legacy", "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    assert planned.lines == [
        "Would import 2 sites, 1 of 2 documents read; 0 known before",
        "  ocr: 1",
        "  completed: 1",
        f"Would rename {RENAMED}",
        "1 sites were in ocr; `clerk migrate-stuck-sites` lets them go on",
    ]
    assert (everything(config.database_url), files(config.storage)) == before
    done = cli.run("import-legacy")
    assert (done.code, done.err, done.lines[0]) == (0, "", planned.lines[0].replace("Would import", "Imported"))
    found = ["Found 1 stuck sites in OCR stage", f"  {SITE}: 1/2 completed, 1 failed"]
    planned = cli.run("migrate-stuck-sites", "--dry-run")
    assert (planned.code, planned.lines) == (0, [*found, "Would migrate 1 sites"])
    done = cli.run("migrate-stuck-sites")
    assert (done.code, done.lines) == (0, [*found, "Migrated 1 sites"])
    with open_mill(config) as mill:
        assert [one.site_id for one in sites.active(mill)] == [SITE]


@quickly
def test_again_there_is_nothing_to_do(cli: Cli, older: OlderClerk, config: Config) -> None:
    assert cli.call("import-legacy").code == cli.call("migrate-stuck-sites").code == 0
    before = everything(config.database_url), files(config.storage)
    again = cli.call("import-legacy")
    assert (again.code, again.lines) == (0, ["Imported 0 sites, 0 of 0 documents read; 2 known before"])
    again = cli.call("migrate-stuck-sites")
    assert (again.code, again.lines) == (0, ["Found 0 stuck sites in OCR stage", "Migrated 0 sites"])
    assert (everything(config.database_url), files(config.storage)) == before


@quickly
def test_each_is_one_document_of_json_if_wanted(cli: Cli, older: OlderClerk) -> None:
    older.add([("Bad", "deployed", None)])
    planned = cli.call("import-legacy", "--dry-run", "--json").json
    done = cli.call("import-legacy", "--json")
    assert (planned.pop("dry_run"), done.json.pop("dry_run")) == (True, False)
    assert planned == {name: value for name, value in done.json.items() if name != "dry_run"}
    assert (done.err, done.json["sites"], done.json["stages"]) == ("", [SITE, "rockport.il"], {"ocr": 1, "completed": 1})
    assert done.json["put_aside"]["sites"] == "legacy_sites"
    assert done.json["warnings"][0].startswith("'Bad' is no subdomain")
    done = cli.call("migrate-stuck-sites", "--json")
    [stuck] = done.json["found"]
    assert (stuck["subdomain"], stuck["completed"], stuck["failed"], stuck["total"]) == (SITE, 1, 1, 2)
    assert (done.json["migrated"], done.json["cleared"]) == (1, None)
    finished = cli.call("import-legacy", "--finish", "--dry-run", "--json").json
    assert (finished["dry_run"], "legacy_sites" in finished["dropped"]) == (True, True)


@quickly
def test_the_end_is_typed_and_there_is_only_one(cli: Cli, older: OlderClerk, config: Config) -> None:
    cli.call("import-legacy")
    done = cli.call("import-legacy", "--finish")
    assert (done.code, done.lines) == (
        0,
        ["Dropped legacy_sites, legacy_site_progress, legacy_job_tracking, legacy_writes"],
    )
    done = cli.call("import-legacy", "--finish")
    assert (done.code, done.lines) == (0, ["Dropped nothing: there is no import"])
    assert cli.call("import-legacy", "--finish", "--from", "sqlite:///x.db").code == 2


@quickly
def test_what_is_odd_is_said_on_stderr_and_the_rest_is_moved(
    cli: Cli, older: OlderClerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    older.add([("Bad", "deployed", None)])
    done = cli.call("import-legacy")
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert done.err.startswith("Warning: 'Bad' is no subdomain")
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2secret@127.0.0.1:9/0")
    done = cli.call("migrate-stuck-sites")
    assert (done.code, done.lines[-1]) == (0, "Migrated 1 sites")
    assert "Warning: Redis at redis://:***@127.0.0.1:9/0 cannot be reached, so old jobs stay there" in done.err
    assert "hunter2secret" not in done.err


def test_stuck_sites_are_not_migrated_before_the_import(cli: Cli, older: OlderClerk) -> None:
    done = cli.call("migrate-stuck-sites")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "`clerk import-legacy` moves them" in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--from", "nothing"], 2, "write sqlite:///FILE or postgresql://HOST/NAME"),
        (["--from", "mysql://clerk:hunter2secret@db/clerk"], 2, "write sqlite:///FILE or postgresql://HOST/NAME"),
        (["--from", "sqlite:///nowhere.db"], 1, "there is no database sqlite:///nowhere.db to import from"),
        (["--from", "postgresql://clerk:hunter2secret@127.0.0.1:9/clerk?connect_timeout=2"], 3, "cannot be read"),
        (["--storage-dir", "nowhere"], 1, "nowhere is not there: say with --storage-dir"),
        (["--yes"], 2, "--yes"),
    ],
)
@pytest.mark.alike
def test_what_cannot_be_imported_is_one_line(cli: Cli, older: OlderClerk, words: list[str], code: int, said: str) -> None:
    done = cli.call("import-legacy", *words)
    assert (done.code, done.out, done.err.count("\n"), said in done.err) == (code, "", 1, True), done.err
    assert "hunter2secret" not in done.err


@pytest.mark.alike
def test_where_there_was_no_older_clerk_nothing_is_done(cli: Cli, config: Config) -> None:
    done = cli.call("import-legacy")
    assert (done.code, done.err) == (0, "Warning: there are no tables of an older clerk\n")
    assert cli.call("migrate-stuck-sites").code == 3
