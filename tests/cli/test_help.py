"""Help: short, complete, and there at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gristmill.cli.commands import gristmill
from tests.cli.conftest import Cli, clean_environment

HEAVY = {"rich", "sqlalchemy", "pydantic", "alembic", "psutil", "orjson", "asyncio", "gristmill.mill"}


def all_commands(command: click.Command = gristmill, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from all_commands(inner, (*path, name))


@pytest.mark.parametrize("path", list(all_commands()), ids=" ".join)
def test_help_fits_on_a_small_screen(cli: Cli, path: tuple[str, ...]) -> None:
    result = cli.call(*path, "--help")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert len(lines) <= 23  # and the prompt
    assert max(map(len, lines)) <= 80
    assert "--database" in result.out
    assert not any(line.endswith("...") for line in lines[1:]), "a command's one line was cut"


def test_the_commands_are_those_of_the_table() -> None:
    assert {" ".join(path) for path in all_commands() if path} == {
        *("start", "enqueue", "up", "work", "serve", "status", "watch", "metrics", "reconcile", "doctor", "audit", "prune"),
        *("backup", "restore"),
        *("why", "why run", "why job", "why subject"),
        *("subject", "subject list", "subject show", "subject set", "subject purge", "subject start-stalest"),
        *("schedule", "schedule list", "schedule add", "schedule remove", "schedule pause", "schedule resume"),
        *("schedule run-now", "schedule history"),
        *("run", "run list", "run show", "run cancel", "run delete", "run retry"),
        *("job", "job list", "job show", "job retry", "job cancel", "job run-now", "job archive", "job delete", "job edit"),
        *("error", "error list", "error show", "error retry", "error ignore"),
        *("queue", "queue list", "queue pause", "queue resume", "queue set", "queue purge"),
        *("limit", "limit list", "limit set", "limit close"),
        *("worker", "worker list", "worker plan"),
        *("lock", "lock list"),
        *("token", "token create", "token list", "token revoke"),
        *("db", "db upgrade", "db current", "db history", "db downgrade", "db check", "db grants"),
    }


def test_the_first_page_names_each_command_once() -> None:
    assert [name for names in gristmill.rows.values() for name in names] == list(gristmill.commands)


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from gristmill.cli.exits import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_environment())
    assert "Commands:" in result.stdout
    assert not HEAVY & set(result.stderr.split())


def test_the_installed_command(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("gristmill")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, cwd=tmp_path, env=clean_environment())
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("gristmill ")


def test_completion_for_the_shell(cli: Cli) -> None:
    result = cli.run(_GRISTMILL_COMPLETE="bash_complete", COMP_WORDS="gristmill run sh", COMP_CWORD="2")
    assert result.out.strip() == "plain,show"
