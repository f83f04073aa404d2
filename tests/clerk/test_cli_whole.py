"""The command as a program: how fast it starts, how it ends, what it never prints; and the pipeline through it."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from clerk import sites
from clerk.app import open_mill
from clerk.cli.commands import ROWS
from clerk.cli.db import db
from clerk.config import Config
from clerk.sites import Description
from gristmill import Mill
from tests.clerk.cli import Cli
from tests.clerk.test_cli_sites import fail_at_new_sites
from tests.clerk.test_pipeline import SITE, counters, row
from tests.clerk.test_whole import pdf
from tests.worker.helpers import eventually

SCREEN = 30  # lines

pytestmark = pytest.mark.parametrize("clerk_url", ["sqlite"], indirect=True)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clerk_config: Config) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path, capsys)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    pdf(folder / "minutes" / "City Council" / "2026-01-05.pdf", "zeppelin")
    pdf(folder / "minutes" / "City Council" / "2026-02-05.pdf", "library", "harbour")
    pdf(folder / "agendas" / "City Council" / "2026-03-05.pdf", "agenda")
    return folder


@pytest.fixture
def mill(clerk_config: Config, source: Path) -> Iterator[Mill]:
    with open_mill(clerk_config) as opened:
        sites.create(opened, Description(SITE, "Oakfield", "folder", start_year=2026, extra={"path": str(source)}))
        yield opened


# ---- the program


def test_the_help_of_the_whole_and_of_every_command_fits_on_a_screen(cli: Cli) -> None:
    commands = [name for row in ROWS.values() for name in row]
    assert len(set(commands)) == len(commands)
    for words in ([], *([name] for name in commands), *(["db", name] for name in db.commands)):
        done = cli.call(*words, "--help")
        assert (done.code, done.err) == (0, ""), words
        assert len(done.lines) <= SCREEN, words
    assert all(name in cli.call("--help").out for name in commands)


def test_help_starts_fast(cli: Cli) -> None:
    """Measured as the processor's time, which is the same on a busy machine; the best of three."""
    command = [sys.executable, "-m", "clerk", "--help"]
    best = 9.0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=cli.folder, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.3


def test_mistyped_words_are_answered_with_the_nearest(cli: Cli) -> None:
    done = cli.call("statsu")
    assert (done.code, done.err) == (2, "Error: clerk has no command 'statsu'; did you mean 'status'?\n")
    assert cli.call("status", "--jsn").code == 2
    assert cli.call("worker", "reader").code == 2
    assert cli.call().code == 2
    assert cli.call("--version").out.startswith("clerk ")


def test_a_database_that_is_not_there_ends_with_3_and_the_command_that_makes_it(cli: Cli, tmp_path: Path) -> None:
    for words in (["status"], ["update", "--next"], ["worker", "all", "--burst"], ["reconcile"]):
        done = cli.run(*words, DATABASE_URL=f"sqlite:///{tmp_path}/none.db")
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1), done.err
        assert "clerk db upgrade" in done.err
        assert not (tmp_path / "none.db").exists()


def test_below_the_folder_of_its_settings_nobody_is_led_into_a_second_database(cli: Cli) -> None:
    below = cli.folder / "below"
    below.mkdir()
    (cli.folder / ".env").write_text("DATABASE_URL=sqlite:///town.db\n")
    (cli.folder / ".env").chmod(0o600)
    done = Cli(below, cli._capture).run("status", DATABASE_URL="")
    assert done.code == 3
    assert f"here, and .env is in {cli.folder}: run clerk there" in done.err


def test_a_database_that_is_out_of_reach_ends_with_3_and_says_where_to_look(cli: Cli) -> None:
    done = cli.run("status", DATABASE_URL="postgresql://u:hunter2@127.0.0.1:1/x")
    assert (done.code, done.err.count("\n"), "hunter2" in done.err) == (3, 1, False)
    assert done.err.endswith("; see DATABASE_URL and its server\n")


def test_passwords_are_not_in_errors(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://clerk:hunter2secret@127.0.0.1:9/clerk?connect_timeout=2"
    for words in (["status"], ["db", "current"], ["db", "upgrade"], ["health"]):
        monkeypatch.setenv("DATABASE_URL", url)
        done = cli.call(*words)
        assert done.code == (2 if words == ["health"] else 3), done.err
        assert "hunter2secret" not in done.out + done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize("password", ["pa/sekret", "1/sekret", "pa@sekret", "pa#sekret", "pa?sekret", "pa%sekret"])
def test_a_password_that_should_have_been_quoted_is_not_in_errors_either(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    url = f"postgresql://clerk:{password}@127.0.0.1:9/clerk?connect_timeout=2"
    imported = cli.call("import-legacy", "--from", url)
    assert imported.code == 3
    assert "sekret" not in imported.out + imported.err
    monkeypatch.setenv("DATABASE_URL", url)
    commands = ["status", "db current", "db upgrade", "health -v", "import-legacy", "migrate-stuck-sites"]
    for command in [*commands, "diagnose-workers"]:
        done = cli.call(*command.split())
        assert done.code, command
        assert "sekret" not in done.out + done.err, command


@pytest.mark.pg
def test_the_database_that_is_diagnosed_is_named_without_its_password(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, clerk_pg_url: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", clerk_pg_url.replace("//gristmill@", "//gristmill:pa/sek'ret@"))
    done = cli.call("diagnose-workers")
    assert "ok     database: postgresql://gristmill:***@" in done.out


def test_settings_come_from_dot_env_above_the_working_directory(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clerk_url: str
) -> None:
    monkeypatch.delenv("DATABASE_URL")
    (tmp_path / ".env").write_text(f"DATABASE_URL={clerk_url}\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert cli.call("status").code == 0
    (tmp_path / ".env").write_text("OCR_WORKERS=many\n")
    done = cli.call("install-workers", "--target", "systemd", "--dry-run")
    assert (done.code, "OCR_WORKERS wants a whole number" in done.err) == (2, True)


def test_a_broken_plugin_is_named_and_commands_of_plugins_are_commands(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLERK_PLUGINS_DIR", str(tmp_path))  # so that it is as before, afterwards
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "hello.py").write_text(
        "import click\nfrom clerk.plugins import hookimpl\n"
        "@hookimpl\ndef register_cli_commands(cli):\n"
        "    @cli.command()\n    def hello():\n        '''Say hello.'''\n        click.echo('hello')\n"
    )
    assert cli.call("--plugins-dir", folder, "hello").out == "hello\n"
    assert "hello" in cli.call("--plugins-dir", folder, "--help").out
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "bad.py").write_text("import nothing_like_this\n")
    done = cli.call("--plugins-dir", broken, "status")
    assert (done.code, str(broken / "bad.py") in done.err) == (1, True)
    assert cli.call("--plugins-dir", tmp_path / "nowhere", "status").code == 2


# ---- the pipeline


def found(database: Path, word: str) -> list[str]:
    sql = "SELECT m.id FROM minutes m JOIN minutes_fts f ON f.rowid = m.rowid WHERE minutes_fts MATCH ?"
    with sqlite3.connect(database) as db:
        return [row[0] for row in db.execute(sql, [word])]


def ids(database: Path) -> list[str]:
    with sqlite3.connect(database) as db:
        return [row[0] for row in db.execute("SELECT id FROM minutes UNION SELECT id FROM agendas ORDER BY 1")]


def test_a_newcomer_has_a_searchable_site_without_workers(
    cli: Cli, source: Path, clerk_config: Config, tmp_path: Path
) -> None:
    environ = {"DATABASE_URL": f"sqlite:///{tmp_path}/fresh.db"}
    assert cli.run("db", "upgrade", **environ).code == 0
    words = ["--name", "Elm", "--scraper", "folder", "--extra", f'{{"path": "{source}"}}', "--start-year", "2026"]
    done = cli.run("new", "elm.ca", *words, "--local", **environ)
    assert (done.code, done.err) == (0, ""), done.err
    assert done.lines == ["Enqueueing new site elm.ca with high priority", "elm.ca: completed (3 of 3 documents read)"]
    assert len(found(clerk_config.storage / "elm.ca" / "meetings.db", "zeppelin")) == 1
    again = cli.run("run-local", "elm.ca", **environ)
    assert again.lines[-1] == "elm.ca: unchanged (0 of 0 documents read)"
    full = cli.run("build-full-db", **environ)
    assert full.code == 0, full.err
    assert len(found(clerk_config.storage / "meetings.db", "zeppelin")) == 1


def test_a_new_site_is_run_here_also_if_a_plugin_that_is_told_of_it_fails(cli: Cli, mill: Mill, source: Path) -> None:
    fail_at_new_sites(cli.folder / "plugins")
    how = ["--name", "Elm", "--scraper", "folder", "--start-year", "2026", "--extra", json.dumps({"path": str(source)})]
    done = cli.run("new", "elm.ca", *how, "--local")
    assert (done.code, done.lines[-1:]) == (1, ["elm.ca: completed (3 of 3 documents read)"]), done.err
    assert "no mail server" in done.err


def test_a_run_here_says_how_it_and_the_one_before_it_ended_and_how_to_see_why(
    cli: Cli, mill: Mill, source: Path, clerk_config: Config
) -> None:
    (source / "minutes" / "City Council" / "2026-04-05.pdf").write_bytes(b"")
    sites.update(mill, SITE, sites.Options(all_years=True))  # and nobody works on it
    done = cli.run("run-local", SITE)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-2:] == [
        f"{SITE}: completed (3 of 4 documents read, 1 failed)",
        f"{SITE}: unchanged (0 of 0 documents read)",
    ]
    done = cli.run("update", "-s", SITE, "--retry-failed", "--local")
    assert done.lines[-2:] == [
        f"{SITE}: unchanged (0 of 1 documents read, 1 failed)",
        f"`clerk check-failed -s {SITE}` says why",
    ]


def test_a_run_that_was_to_follow_is_left_to_workers_and_said_so(cli: Cli, mill: Mill) -> None:
    sites.update(mill, SITE)
    follows = sites.update(mill, SITE, sites.Options(retry_failed=True)).follow_up
    assert follows is not None
    done = cli.run("run-local", SITE)
    left = f"Run {follows} of {SITE} was asked for before and is left to workers; `clerk run-local {SITE}` does it here"
    assert (done.code, done.lines[-2:]) == (0, [f"{SITE}: completed (3 of 3 documents read)", left]), done.err
    done = cli.run("run-local", SITE)
    assert (done.code, mill.run(follows).state) == (0, "completed"), done.err
    assert [line for line in done.lines if "left to workers" in line] == []


def test_burst_workers_do_the_same(cli: Cli, mill: Mill, clerk_config: Config) -> None:
    sites.update(mill, SITE)
    done = cli.run("worker", "all", "-n", "2", "--burst")
    assert done.code == 0, done.err
    assert (sites.find(mill, SITE).outcome, counters(mill, "ocr")) == ("completed", (3, 0, 3))
    database = clerk_config.storage / SITE / "meetings.db"
    before = ids(database)
    database.unlink()
    assert cli.run("update", "-s", SITE, "--skip-fetch", "--local").code == 0
    assert ids(database) == before
    assert (clerk_config.log_dir / "worker-all-1.log").is_file()


def test_a_worker_of_one_type_leaves_the_other_stages(cli: Cli, mill: Mill) -> None:
    sites.update(mill, SITE)
    assert cli.run("worker", "fetch", "--burst").code == 0
    assert sites.find(mill, SITE).current_stage == "ocr"
    assert counters(mill, "ocr") == (0, 0, 3)


def test_a_worker_ends_on_sigterm(cli: Cli, mill: Mill) -> None:
    with cli.spawn("worker", "all") as process:
        eventually(lambda: bool(mill.workers()), "it is there")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert mill.workers() == []


def test_a_run_that_fails_here_is_an_error(cli: Cli, mill: Mill, tmp_path: Path) -> None:
    bad = tmp_path / "bad" / "minutes" / "Council" / "2026-01-05.pdf"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"%PDF-1.4 and then nothing")
    sites.create(mill, Description("bad.ca", "Bad", "folder", start_year=2026, extra={"path": str(tmp_path / "bad")}))
    done = cli.run("run-local", "bad.ca")
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert done.err.startswith("Error: the run of bad.ca failed in ocr: none of 1 documents could be read")
    assert cli.run("check-failed", "-s", "bad.ca").lines[0] == "Failed jobs in ocr: 1"


WATCHED = """
import os, sys

def watch(event, about):
    if event == "socket.connect" and isinstance(about[1], tuple):
        with open(os.environ["CONNECTED"], "a") as file:
            file.write(f"{sys.argv} {about[1]}\\n")

sys.addaudithook(watch)
"""


def test_without_a_redis_nobody_is_called(cli: Cli, mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor, with SQLite and documents in a folder, anybody else; not by workers and their children either."""
    (tmp_path / "watched").mkdir()
    (tmp_path / "watched" / "sitecustomize.py").write_text(WATCHED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "watched"))
    monkeypatch.setenv("CONNECTED", str(tmp_path / "connected"))
    monkeypatch.delenv("REDIS_URL", raising=False)
    for words in (["update", "-s", SITE], ["worker", "all", "--burst"], ["status"], ["health"], ["reconcile"]):
        done = cli.run(*words)
        assert done.code == 0, (words, done.out, done.err)
    assert (sites.find(mill, SITE).outcome, (tmp_path / "connected").exists()) == ("completed", False)
    cli.run("update", "-s", SITE, REDIS_URL="redis://127.0.0.1:9/0")
    assert "('127.0.0.1', 9)" in (tmp_path / "connected").read_text()  # who calls one is seen


def test_with_a_redis_that_is_away_a_worker_does_all_the_same_and_says_so_once(cli: Cli, mill: Mill) -> None:
    sites.update(mill, SITE)
    done = cli.run("worker", "all", "--burst", REDIS_URL="redis://127.0.0.1:9/0")
    assert (done.code, sites.find(mill, SITE).outcome, counters(mill, "ocr")) == (0, "completed", (3, 0, 3)), done.err
    assert [json.loads(line)["level"] for line in done.err.splitlines() if "Redis" in line] == ["WARNING"], done.err


# ---- one stage


@pytest.mark.parametrize(
    "url", ["http://h:abc", "http://u:sekret@h:99999", "ftp://h", "h:3100", "http://", "http://[h", "http://ä"]
)
def test_a_loki_that_cannot_be_is_one_line_and_all_else_goes_on(cli: Cli, mill: Mill, url: str) -> None:
    for words in (["status"], ["run-local", SITE]):
        done = cli.run(*words, LOKI_URL=url)
        assert (done.code, done.err.count("\n")) == (0, 1), done.err
        assert "warning: LOKI_URL wants http://HOST:PORT or https://HOST, not " in done.err
        assert "sekret" not in done.err


def test_a_stage_that_fails_here_is_an_error(cli: Cli, mill: Mill, tmp_path: Path) -> None:
    bad = tmp_path / "bad" / "minutes" / "Council" / "2026-01-05.pdf"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"%PDF-1.4 and then nothing")
    sites.create(mill, Description("bad.ca", "Bad", "folder", start_year=2026, extra={"path": str(tmp_path / "bad")}))
    assert cli.run("run-stage", "fetch", "-s", "bad.ca").code == 0
    bad.parent.parent.parent.rename(tmp_path / "gone")
    for stage in ("fetch", "ocr"):
        done = cli.run("run-stage", stage, "-s", "bad.ca")
        said = f"Error: {stage} of bad.ca failed; `clerk check-failed --queue {stage} -s bad.ca` says why\n"
        assert (done.code, done.out, done.err) == (1, "", said)


def test_stages_are_run_one_at_a_time_and_go_on_only_if_asked(
    cli: Cli, mill: Mill, source: Path, clerk_config: Config
) -> None:
    folder = clerk_config.storage / SITE
    done = cli.run("run-stage", "fetch", "-s", SITE)
    assert done.code == 0, done.err
    assert len(list(folder.rglob("*.pdf"))) == 3
    assert not list(folder.rglob("*.txt"))
    assert row(mill)["status"] == "needs_ocr"
    [one, *_] = sorted((folder / "pdfs").rglob("*.pdf"))
    with mill.transaction() as connection:
        connection.execute(text("UPDATE clerk_document SET state = 'failed', error = 'torn' WHERE date = '2026-01-05'"))
    done = cli.run("run-stage", "ocr", "-s", SITE, "--pdf-path", one)
    assert (done.code, done.lines) == (0, ["minutes/CityCouncil/2026-01-05: 1 page"]), done.err
    with mill.transaction() as connection:
        sql = "SELECT state, pages, error, backend, read_at IS NULL FROM clerk_document WHERE date = '2026-01-05'"
        assert tuple(connection.execute(text(sql)).one()) == ("read", 1, None, "tesseract", 0)
    assert len(list(folder.glob("processed/*/*.txt"))) == 1
    done = cli.run("run-stage", "ocr", "-s", SITE)
    assert (done.code, done.lines) == (0, [f"{SITE}: ocr done (2 of 2)"]), done.err
    assert row(mill)["status"] == "needs_compilation"
    [known, *_] = sorted(source.rglob("*.pdf"))
    shutil.copy(known, known.with_name("2026-12-01.pdf"))
    assert cli.run("run-stage", "fetch", "-s", SITE).code == 0  # which asks its source, though ocr alone does not
    assert len(list(folder.rglob("*.pdf"))) == 4
    assert not (folder / "meetings.db").exists()
    done = cli.run("run-stage", "ocr", "-s", SITE, "--proceed")
    assert done.code == 0, done.err
    assert (folder / "meetings.db").exists()
    assert row(mill)["status"] == "deployed"
    made = (folder / "meetings.db").stat().st_mtime_ns
    for stage, status in {"compilation": "needs_deploy", "extraction": "needs_deploy", "deploy": "deployed"}.items():
        done = cli.run("run-stage", stage, "-s", SITE)
        assert (done.code, done.lines) == (0, [f"{SITE}: {stage} done (1 of 1)"]), done.err
        assert row(mill)["status"] == status
    assert (folder / "meetings.db").stat().st_mtime_ns > made
    assert cli.run("run-stage", "ocr", "-s", SITE, "--pdf-path", "/etc/passwd").code == 2
