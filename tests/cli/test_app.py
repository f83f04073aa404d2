"""Where the application and the database are taken from, and where on the line they may be said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import APP, Cli

START = ["start", "letters", "s", "--arg", "folder=x", "--json"]


def write_project(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


@pytest.mark.parametrize(
    "command",
    [
        ["--database", "sqlite:///other.db", "run", "list", "--json"],
        ["run", "--database", "sqlite:///other.db", "list", "--json"],
        ["run", "list", "--json", "--database", "sqlite:///other.db"],
        ["run", "list", "--json", "--database=sqlite:///other.db"],
        ["--database", "sqlite:///first.db", "run", "list", "--json", "--database", "sqlite:///other.db"],
    ],
    ids=" ".join,
)
def test_the_database_may_be_given_before_or_after_the_command(cli: Cli, command: list[str]) -> None:
    assert cli.call("db", "upgrade", "--database", "sqlite:///other.db").code == 0
    assert cli.call(*command).json == []
    assert not (cli.folder / "first.db").exists()


def test_the_database_comes_from_the_option_then_the_environment(cli: Cli) -> None:
    general, own = {"DATABASE_URL": "sqlite:///general.db"}, {"GRISTMILL_DATABASE_URL": "sqlite:///own.db"}
    assert "general.db" in cli.run("db", "current", "--json", **general).json["database"]
    assert "own.db" in cli.run("db", "current", "--json", **general, **own).json["database"]
    given = cli.run("db", "current", "--json", "--database", "sqlite:///given.db", **general, **own)
    assert given.json["database"] == "sqlite:///given.db"
    assert cli.run("db", "current", "--json").json["database"] == "sqlite:///gristmill.db"


def test_the_app_may_be_given_before_or_after_the_command(made: Cli) -> None:
    assert made.call("-A", APP, *START).code == 0
    assert made.call(*START, "--app", APP).code == 0


def test_the_app_as_a_module_of_the_current_folder(made: Cli) -> None:
    shutil.copy(APP, made.folder / "my_letters.py")
    assert made.run("-A", "my_letters", *START).code == 0


def test_the_app_from_the_environment(made: Cli) -> None:
    assert made.run(*START, GRISTMILL_APP=str(APP)).code == 0


@pytest.mark.parametrize("app", ["parts/letters.py", "parts.letters"])
def test_the_app_of_the_project_also_from_a_folder_inside_it(made: Cli, app: str) -> None:
    write_project(made.folder, f'[tool.gristmill]\napp = "{app}"\n')
    (made.folder / "parts").mkdir()
    shutil.copy(APP, made.folder / "parts" / "letters.py")
    (made.folder / "parts" / "pyproject.toml").write_text("[tool.other]\n")  # not about us: look further up
    inside = Cli(made.folder / "parts")
    database = ["--database", f"sqlite:///{made.folder}/gristmill.db"]
    assert inside.run(*START, *database).code == 0
    assert inside.run("work", "--drain", *database).code == 0
    assert made.call("run", "show", 1, "--json").json["state"] == "completed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.gristmill]\napp = 5\n", "is the name of a file or module, not 5"),
        ("[tool.gristmill\n", "cannot read"),
        ("[tool.gristmill]\n", "no application was given"),
    ],
)
def test_a_project_file_that_says_nothing_useful(made: Cli, text: str, message: str) -> None:
    write_project(made.folder, text)
    result = made.call(*START)
    assert result.code == 64
    assert message in result.err


def test_the_app_of_an_installed_package(made: Cli) -> None:
    site = made.folder / "site"
    info = site / "letters_app-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: letters-app\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gristmill.apps]\nletters = letters_app\n")
    shutil.copy(APP, site / "letters_app.py")
    assert made.run(*START, PYTHONPATH=str(site)).code == 0
    assert made.run("work", "--drain", PYTHONPATH=str(site)).code == 0
    assert made.call("run", "show", 1, "--json").json["state"] == "completed"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError: "),
        ("x = 1\nimport not_there\n", "ModuleNotFoundError: No module named 'not_there'"),
        ("x = 1\nraise ValueError('no')\n", "ValueError: no"),
        ("from gristmill import task\ntask(timeout=-1)(print)\n", "Invalid: "),
        ("import json\njson.loads('{')\n", "JSONDecodeError: "),
        ("from gristmill import Retries\nRetries(3, delays=5)\n", "Invalid: Retries(delays=…) wants a list of seconds"),
    ],
)
@pytest.mark.parametrize("app", ["spoilt.py", "spoilt"])
def test_an_app_that_cannot_be_imported_is_answered_with_its_line(made: Cli, app: str, text: str, what: str) -> None:
    (made.folder / "spoilt.py").write_text(text)
    result = made.run("-A", app, *START)
    assert result.code == 64
    assert f"cannot import '{app}': {what}" in result.err
    assert result.err.endswith(f"({made.folder / 'spoilt.py'}, line 2)\n")
