"""Nothing that people use is undocumented, and what is written in tables is what the code says."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click
import pytest

import gristmill
from gristmill import errors, lifecycle, settings
from gristmill.cli.commands import gristmill as command_line
from gristmill.execution.context import Context, Phase
from gristmill.mill import Mill
from gristmill.retry import Retries
from gristmill.settings import WorkerSettings
from gristmill.states import StageState, State
from tests.docs.pages import PAGES, blocks
from tests.servers import ROOT

SAID = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
ALL = "\n".join(SAID.values())
WORDS = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`\n]+`", ALL, re.DOTALL))))  # of code only


def public(kind: type) -> list[str]:
    return sorted(name for name in dir(kind) if not name.startswith("_"))


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and the rest of them. Every option before a command has a value."""
    command: click.Command = command_line
    while isinstance(command, click.Group):
        if words[0].startswith("-"):
            words = words[2:]
        else:
            command, words = command.commands[words[0]], words[1:]
    return command, words


# ---- names


@pytest.mark.parametrize("name", gristmill.__all__)
def test_an_exported_name_is_documented(name: str) -> None:
    assert name in WORDS


@pytest.mark.parametrize("kind", [Context, Phase, Mill, Retries], ids=lambda kind: kind.__name__)
def test_what_an_application_calls_is_documented(kind: type) -> None:
    internal = {"to_json", "from_json", "limit"} if kind is Retries else {"total"}
    assert set(public(kind)) - internal - WORDS == set()


@pytest.mark.parametrize("function", [gristmill.Pipeline.stage, gristmill.task, Mill.start, Mill.enqueue, Mill.work])
def test_what_can_be_said_in_a_call_is_documented(function: Callable[..., Any]) -> None:
    options = set(inspect.signature(function).parameters) - {"self", "fn", "tickers", "options", "settings"}
    assert options - WORDS == set()


def test_every_error_and_outcome_is_documented() -> None:
    named = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert named - WORDS == set()


def test_every_state_is_documented() -> None:
    assert {member.word for kind in (State, StageState) for member in kind} - WORDS == set()


# ---- settings


def rows_of_settings() -> dict[str, list[str]]:
    rows = [
        line.strip("|").split("|") for line in SAID["settings.md"].splitlines() if "GRISTMILL_" in line and line[0] == "|"
    ]
    return {cells[0].strip(" `"): [cell.strip(" `") for cell in cells[1:]] for cells in rows}


@pytest.mark.parametrize("setting", fields(WorkerSettings), ids=lambda setting: setting.name)
def test_a_setting_is_documented_as_it_is(setting: Field[Any]) -> None:
    name, default = setting.name, setting.default
    shown = "one per core" if name == "slots" else "no" if default is False else "none" if default == () else f"{default:g}"
    limits = [f"{limit:.10g}" for limit in settings._LIMITS[name]] if name in settings._LIMITS else ["", ""]
    assert rows_of_settings()[name] == [f"GRISTMILL_{name.upper()}", shown, *limits, settings.HELP[name]]


def test_one_slot_per_core_is_the_default() -> None:
    assert WorkerSettings.slots == (os.cpu_count() or 1)


def test_every_variable_of_the_environment_is_documented() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', source)) | set(re.findall(r"\b_?GRISTMILL_[A-Z_]*[A-Z]", source))
    assert named
    assert named - set(re.findall(r"\w+", SAID["settings.md"])) == set()


# ---- the command line


@pytest.mark.parametrize("path", list(commands(command_line)), ids=" ".join)
def test_a_command_is_in_the_readme(path: tuple[str, ...]) -> None:
    assert re.search(rf"`{' '.join(path)}\b", SAID["README.md"])


LINES = [
    (block.page.name, line.partition(" #")[0].split()[1:])
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.text.splitlines()
    if line.startswith("gristmill ")
]


@pytest.mark.parametrize(("page", "words"), LINES, ids=lambda value: " ".join(value) if isinstance(value, list) else value)
def test_a_command_in_the_docs_can_be_typed(page: str, words: list[str]) -> None:
    command, rest = command_of(words)
    command.make_context(command.name, rest)


# ---- pages


def test_the_lifecycle_is_what_the_code_says() -> None:
    again = "python -m gristmill.lifecycle > docs/lifecycle.md"
    assert SAID["lifecycle.md"] == lifecycle.document(), f"the states changed; run: {again}"


def test_every_state_says_what_it_means() -> None:
    assert all(lifecycle.meanings(State).values())
    assert all(lifecycle.meanings(StageState).values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), target
        headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE) if anchor else []
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, target


def test_every_module_has_its_place_in_the_architecture() -> None:
    package = ROOT / "src" / "gristmill"
    modules = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert {name for name in modules if not name.startswith("_") and f"`{name}`" not in SAID["architecture.md"]} == set()


def test_the_readme_says_what_this_is_on_its_first_screen() -> None:
    first = SAID["README.md"].split("\n## ")[0]
    assert len(first.splitlines()) <= 40
    assert all(word in first for word in ("./run demo", "./run test", "RQ", "Celery", "SQLite", "PostgreSQL"))
