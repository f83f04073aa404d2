"""`install-workers` and its like, `worker-count`, `diagnose-workers`; `db` and its commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from clerk.commands import schema
from clerk.config import Config, load
from clerk.db import migrations
from tests.clerk.cli import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clerk_config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


sqlite_only = pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)


# ---- services


@sqlite_only
def test_worker_counts_are_printed_as_in_the_manual(cli: Cli) -> None:
    assert cli.call("worker-count", "--cores", "8", "--ram-gb", "32").lines == [
        "System: 8 cores, 32.0GB RAM",
        "Recommended worker counts:",
        "  FETCH_WORKERS=16",
        "  OCR_WORKERS=8",
        "  COMPILATION_WORKERS=2",
        "  EXTRACTION_WORKERS=4",
        "  DEPLOY_WORKERS=2",
    ]
    assert cli.call("worker-count").code == 0
    assert cli.call("worker-count", "--cores", "0").code == 2


@sqlite_only
@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("systemd", "clerk-worker@ocr-2.service"),
        ("launchd", "com.civicband.worker.ocr.2.plist"),
        ("compose", "compose.yaml"),
        ("kubernetes", "kustomization.yaml"),
    ],
)
def test_services_are_shown_written_and_removed(cli: Cli, tmp_path: Path, target: str, name: str) -> None:
    (tmp_path / ".env").write_text("OCR_WORKERS=2\nFETCH_WORKERS=1\nDATABASE_URL=postgresql://u:hunter2secret@h/d\n")
    out = tmp_path / "out"
    words = ["--target", target, "--output", out]
    done = cli.call("install-workers", *words, "--dry-run")
    assert (done.code, out.exists()) == (0, False)
    assert name in done.out
    assert "hunter2secret" not in done.out
    assert "--burst" not in done.out
    (tmp_path / ".env").chmod(0o640)
    done = cli.call("install-workers", *words)
    assert (done.code, done.err) == (0, f"Warning: {tmp_path}/.env can be read by others (640): chmod 600 {tmp_path}/.env\n")
    (tmp_path / ".env").chmod(0o600)
    assert cli.call("install-workers", *words).err == ""
    assert any(path.name == name for path in out.rglob("*"))
    gone = cli.call("uninstall-workers", *words)
    assert gone.code == 0
    ends = {"compose": "docker compose --project-name clerk down", "kubernetes": "kubectl delete deployment,cronjob,job"}
    assert (ends.get(target, "to end it") in gone.lines[-1]) == (target in ends)
    assert not [path for path in out.rglob("*") if path.is_file()]
    assert cli.call("uninstall-workers", *words).lines == ["No services of clerk are installed"]


@sqlite_only
def test_without_dot_env_nothing_is_installed_and_nothing_can_be_reloaded(cli: Cli) -> None:
    done = cli.call("install-workers", "--target", "compose")
    assert (done.code, "there is no .env" in done.err) == (1, True)
    assert cli.call("reload-workers", "--target", "compose").code == 1


@sqlite_only
def test_what_a_shell_has_exported_is_not_what_services_get(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("OCR_WORKERS=1\nSTORAGE_DIR=/srv/sites\n")
    monkeypatch.setenv("OCR_WORKERS", "2")
    monkeypatch.setenv("STORAGE_DIR", "./elsewhere")
    assert "worker@ocr-2" not in cli.call("install-workers", "--target", "systemd", "--dry-run").out
    made = cli.call("install-workers", "--target", "compose", "--dry-run").out
    assert ("/srv/sites" in made, "elsewhere" in made) == (True, False)


@sqlite_only
def test_what_workers_need_is_looked_at(cli: Cli, tmp_path: Path) -> None:
    done = cli.call("diagnose-workers")
    assert done.code == 1
    assert any(line.startswith("WRONG  .env: none in ") for line in done.lines)
    assert any(line.startswith("ok     database: sqlite:///") for line in done.lines)
    assert any(line.startswith("WRONG  ocr workers: 0 alive") for line in done.lines)
    (tmp_path / ".env").write_text("OCR_WORKERS=1\n")
    (tmp_path / ".env").chmod(0o644)
    assert "chmod 600" in cli.call("diagnose-workers").out
    (tmp_path / ".env").chmod(0o600)
    answers = {one["about"]: one["ok"] for one in cli.call("diagnose-workers", "--json").json}
    assert (answers[".env"], answers["database"], answers["logs"]) == (True, True, False)


# ---- db


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, clerk_url: str, tmp_path: Path) -> Iterator[str]:
    if clerk_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path}/empty.db"
    else:
        yield str(request.getfixturevalue("empty_pg_url"))


def test_the_schema_goes_up_and_a_step_back_only_if_somebody_says_so(
    cli: Cli, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_url)
    assert cli.call("status").code == 3
    done = cli.call("db", "upgrade")
    assert (done.code, "clerk" in done.out) == (0, True), done.err
    assert cli.call("status").code == 0
    assert "needs" in cli.call("db", "current").out
    assert "clerk" in cli.call("db", "history").out
    assert cli.call("db", "downgrade").code == 2
    assert cli.call("status").code == 0
    done = cli.call("db", "downgrade", "--yes")
    assert done.code == 0, done.err
    done = cli.call("status")
    assert (done.code, "clerk db upgrade" in done.err) == (3, True)


def test_a_database_of_an_older_design_is_not_upgraded(cli: Cli, empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", empty_url)
    engine = create_engine(empty_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE sites (subdomain text)"))
    engine.dispose()
    done = cli.call("db", "upgrade")
    assert (done.code, "clerk import-legacy" in done.err) == (1, True)


@pytest.mark.parametrize("clerk_url", [pytest.param("postgres", marks=pytest.mark.pg)], indirect=True)
def test_the_grants_of_a_role_are_printed(cli: Cli) -> None:
    done = cli.call("db", "grants", "clerk_worker")
    assert done.code == 0, done.err
    assert any("clerk_site" in line for line in done.lines)
    assert any("gm_job" in line for line in done.lines)
    deleting = " ".join(line.partition(" TO ")[0] for line in done.lines if "DELETE" in line)
    assert "gm_claim" in deleting
    assert not re.search(r"\b(clerk_\w+|gm_run|gm_job|gm_subject|gm_worker)\b", deleting)


@sqlite_only
def test_a_new_revision_holds_what_the_database_lacks(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = migrations(load().database_url)
    folder = tmp_path / "versions"
    folder.mkdir()
    (folder / "v0001_clerk.py").write_text("")
    own.folder = folder
    monkeypatch.setattr(schema, "migrations", lambda url: own)
    monkeypatch.setattr(schema, "moved", lambda config, *words: [])
    engine = create_engine(load().database_url)
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX clerk_run_finished"))
        connection.execute(text("DROP INDEX clerk_site_turn"))
    engine.dispose()
    done = cli.call("db", "migrate", "-m", "The index of ended runs")
    assert done.code == 0, done.err
    made = (folder / "v0002_the_index_of_ended_runs.py").read_text()
    assert "create_index('clerk_run_finished'" in made.replace('"', "'")
    assert 'revision = "0002"\ndown_revision = "0001"' in made
    compile(made, "made", "exec")
    assert cli.call("db", "migrate", "-m", "...").code == 2


@sqlite_only
def test_a_revision_that_would_change_nothing_is_not_written(cli: Cli) -> None:
    folder = migrations(load().database_url).folder
    before = sorted(folder.iterdir())
    done = cli.call("db", "migrate", "-m", "Nothing at all")
    assert (done.code, "the database lacks nothing" in done.err) == (1, True)
    assert sorted(folder.iterdir()) == before
