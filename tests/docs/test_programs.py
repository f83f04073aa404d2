"""Every program in the documentation runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill import Mill
from gristmill.ledger import migrate
from gristmill.registry import Registry, pieces_of
from tests.docs.pages import PAGES, Program, programs

README = PAGES[0]
PROGRAMS = [program for page in PAGES if page != README for program in programs(page)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_in_the_docs_prints_what_the_page_says(
    program: Program,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GRISTMILL_SLOTS", "1")  # fewer processes to start
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = program.module(tmp_path)
    app = Registry(*pieces_of(vars(module)))
    migrate.upgrade(sqlite_url, own=app.own())
    with Mill.open(sqlite_url, app) as mill:
        program.run_uses({**vars(module), "mill": mill})
    assert capsys.readouterr().out.splitlines() == program.promised
