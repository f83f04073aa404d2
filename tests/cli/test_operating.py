"""`doctor`, `backup`, `restore`, `db grants`: what an operator types."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import APP, Cli


def test_a_doctor_who_finds_nothing_exits_0(made: Cli) -> None:
    result = made.call("doctor")
    assert (result.code, result.err) == (0, "")
    assert all(line.startswith("ok  ") for line in result.out.splitlines())
    found = made.call("doctor", "--json").json
    assert (found["ok"], {finding["command"] for finding in found["findings"]}) == (True, {None})


def test_a_doctor_who_finds_something_exits_1_with_the_command(made: Cli) -> None:
    assert made.call("-A", APP, "enqueue", "greet", "--arg", "name=x").code == 0
    result = made.call("--database", "sqlite:///gristmill.db", "doctor")
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("WRONG"))
    assert "has jobs, and no worker" in lines[at]
    assert lines[at + 1].strip().startswith("gristmill --database sqlite:///gristmill.db up")
    found = made.call("doctor", "--json")
    assert (found.code, found.json["ok"]) == (1, False)


def test_a_doctor_makes_no_database(cli: Cli) -> None:
    result = cli.call("doctor")
    assert (result.code, list(cli.folder.iterdir())) == (69, [])


def test_a_doctor_says_which_command_brings_the_schema(cli: Cli) -> None:
    (cli.folder / "gristmill.db").touch()
    result = cli.call("doctor")
    assert result.code == 1
    assert "WRONG  schema: the database sqlite:///gristmill.db has no Gristmill schema" in result.out
    assert "       gristmill db upgrade" in result.out


def test_a_backup_and_back_again(made: Cli) -> None:
    made.call("-A", APP, "enqueue", "greet", "--arg", "name=x")
    wrote = made.call("backup", "copy")
    assert (wrote.code, wrote.err) == (0, "")
    assert wrote.out.startswith("wrote copy: 0 subjects, 0 runs, 1 job of sqlite, just now; ")
    again = made.call("backup", "copy")
    assert (again.code, again.err) == (1, "Error: copy is there already; --force replaces it\n")
    assert made.call("backup", "copy", "--force", "--json").json["jobs"] == 1
    assert made.call("restore", "copy", "--dry-run").out.startswith("would restore copy: ")
    refused = made.call("restore", "copy")
    assert (refused.code, "--force replaces all of them" in refused.err) == (1, True)
    assert made.call("restore", "copy", "--force").out.startswith("restored copy: ")
    elsewhere = made.call("--database", "sqlite:///new.db", "restore", "copy", "--json")
    assert (elsewhere.code, elsewhere.json["database"]) == (0, "sqlite")
    assert len(made.call("--database", "sqlite:///new.db", "job", "list", "--json").json) == 1


def test_what_is_no_backup_is_one_line(made: Cli) -> None:
    (made.folder / "text").write_text("no backup")
    for arguments in (("restore", "text"), ("restore", "text", "--dry-run"), ("restore", "nothing")):
        result = made.call(*arguments)
        assert (result.code, result.out, len(result.err.splitlines())) == (64, "", 1)


def test_grants_on_sqlite_are_a_word(made: Cli) -> None:
    result = made.call("db", "grants", "joe")
    assert (result.code, result.out) == (64, "")
    assert "SQLite has no roles" in result.err


def test_grants_are_printed_to_be_pasted_or_given(made: Cli, pg_url: str, tmp_path: Path) -> None:
    result = made.call("--database", pg_url, "db", "grants", "joe", "--for", "reader")
    assert (result.code, result.err) == (0, "")
    assert all(line.startswith("GRANT ") and line.endswith(' TO "joe";') for line in result.out.splitlines())
    assert made.call("--database", pg_url, "db", "grants", "joe", "--for", "reder").code == 64
    missing = made.call("--database", pg_url, "db", "grants", "joe", "--apply")
    assert (missing.code, "there is no role 'joe'; make it first" in missing.err) == (64, True)


@pytest.mark.parametrize("command", [["backup", "copy"], ["restore", "copy"]])
def test_a_database_that_is_not_there(cli: Cli, command: list[str]) -> None:
    assert cli.call(*command).code in (64, 69)
    assert list(cli.folder.iterdir()) == []
