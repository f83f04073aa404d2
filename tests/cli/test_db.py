"""The schema: `db upgrade|current|history|downgrade|check`, and what others say when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.ledger.columns import REVISION
from tests.cli.conftest import APP, Cli


def test_up_and_down_on_sqlite(cli: Cli) -> None:
    database = ["--database", "sqlite:///new.db"]
    assert "no schema" in cli.call("db", "current", *database).out
    assert not (cli.folder / "new.db").exists()  # asking does not make it
    up = cli.run("db", "upgrade", *database)
    assert (up.code, up.out) == (0, f"sqlite:///new.db went from no schema to {REVISION}\n")
    assert cli.call("db", "upgrade", *database).out == f"sqlite:///new.db is at {REVISION} already\n"
    assert cli.call("db", "current", *database, "--json").json["ok"] is True
    assert cli.call("db", "check", *database).out == "sqlite:///new.db is as it should be\n"
    down = cli.run("db", "downgrade", "base", *database)
    assert (down.code, down.out) == (0, f"sqlite:///new.db went from {REVISION} to no schema\n")
    assert "nothing to do" in cli.call("db", "downgrade", *database).out
    check = cli.call("db", "check", *database)
    assert check.code == 69
    assert "run: gristmill --database sqlite:///new.db db upgrade" in check.err


def test_history_is_newest_first_and_needs_no_database(cli: Cli) -> None:
    history = cli.call("db", "history", "--json").json
    assert (history[0]["revision"], history[-1]["revision"]) == (REVISION, "0001")
    assert "0001" in cli.run("db", "history").out
    assert list(cli.folder.iterdir()) == []


def test_check_finds_a_table_that_was_changed(made: Cli) -> None:
    from gristmill.ledger.engines import sqlite_module

    connection = sqlite_module().connect(made.folder / "gristmill.db")
    connection.execute("ALTER TABLE gm_queue ADD COLUMN colour TEXT")
    connection.commit()
    connection.close()
    result = made.call("db", "check")
    assert result.code == 1
    assert "colour" in result.out
    assert "1 difference" in result.out
    assert made.call("db", "check", "--json").json["ok"] is False


def test_check_of_a_file_that_is_not_there(cli: Cli) -> None:
    result = cli.call("db", "check")
    assert result.code == 69
    named = "sqlite:///gristmill.db (--database or GRISTMILL_DATABASE_URL names another)"
    assert f"there is no database {named}; to make it: gristmill db upgrade" in result.err
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    "command", [["status"], ["start", "letters", "s", "--arg", "folder=x"], ["work", "--drain"]], ids=" ".join
)
def test_an_empty_postgresql_database_is_refused_with_the_exact_command(
    cli: Cli, empty_pg_url: str, command: list[str]
) -> None:
    result = cli.run("-A", APP, *command, "--database", empty_pg_url)
    assert (result.code, result.out) == (69, "")
    error = next(line for line in result.err.splitlines() if line.startswith("Error: "))
    assert "has no Gristmill schema; run: gristmill --database postgresql://" in error
    assert error.endswith(" db upgrade")


def test_a_run_on_postgresql_from_db_upgrade_to_its_end(cli: Cli, empty_pg_url: str) -> None:
    upgraded = cli.run("db", "upgrade", "--database", empty_pg_url)
    assert upgraded.code == 0
    assert f"went from no schema to {REVISION}" in upgraded.out
    database = {"GRISTMILL_DATABASE_URL": empty_pg_url, "GRISTMILL_APP": str(APP)}
    texts = cli.texts(a="abc", b="")
    assert cli.run("start", "letters", "books", "--arg", f"folder={texts}", **database).out == "1\n"
    assert cli.run("work", "--drain", **database).code == 0
    run = cli.run("run", "show", 1, "--json", **database).json
    assert (run["state"], run["results"]) == ("completed_with_errors", {"total": 3})
    assert cli.run("db", "check", **database).code == 0
    assert list(cli.folder.glob("*.db")) == []


def test_a_newer_schema_that_accepts_this_version_and_one_that_does_not(made: Cli) -> None:
    from gristmill.ledger.engines import sqlite_module

    connection = sqlite_module().connect(made.folder / "gristmill.db", isolation_level=None)
    connection.execute("UPDATE gm_version SET version_num = '9999'")
    assert made.call("db", "current").out == "9999 (newer, and accepts this version)\n"
    assert made.call("status").code == 0
    connection.execute("UPDATE gm_ledger SET oldest = '9999'")
    connection.close()
    assert "does not accept this version" in made.call("db", "current").out
    refused = made.call("status")
    assert (refused.code, "update Gristmill here: pip install --upgrade gristmill" in refused.err) == (69, True)


SHELVING = Path(__file__).parents[1] / "apps" / "shelving.py"


def test_an_applications_own_tables_move_with_the_ledgers(cli: Cli) -> None:
    app = ["-A", SHELVING, "--database", "sqlite:///own.db"]
    assert cli.call("db", "current", *app).out.splitlines()[1].startswith("shelves none; the application needs s2; run: ")
    up = cli.run("db", "upgrade", *app)
    assert up.out.splitlines() == [
        f"sqlite:///own.db went from gristmill none to {REVISION}",
        "sqlite:///own.db went from shelves none to s2",
    ]
    assert cli.call("db", "current", *app).out.splitlines()[1] == "shelves s2 (what the application needs)"
    current = cli.call("db", "current", *app, "--json").json
    assert (current["ok"], current["own"]) == (True, [{"name": "shelves", "revision": "s2", "needed": "s2", "ok": True}])
    assert [(row["of"], row["revision"]) for row in cli.call("db", "history", *app, "--json").json] == [
        ("gristmill", "0007"),
        ("gristmill", "0006"),
        ("gristmill", "0005"),
        ("gristmill", "0004"),
        ("gristmill", "0003"),
        ("gristmill", "0002"),
        ("gristmill", "0001"),
        ("shelves", "s2"),
        ("shelves", "s1"),
    ]
    assert cli.call("db", "check", *app).code == 0
    refused = cli.call("db", "downgrade", *app)
    assert refused.code != 0
    assert "Say --of NAME; there is: gristmill, shelves" in refused.err
    assert "went from shelves s2 to s1" in cli.call("db", "downgrade", "--of", "shelves", *app).out
    check = cli.call("db", "check", *app)
    assert check.code == 69
    assert "the tables of 'shelves' are at s1, its code needs s2" in check.err
    assert "went from shelves s1 to none" in cli.call("db", "downgrade", "base", *app).out
