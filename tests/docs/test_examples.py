"""Every program in examples/ runs as a script and prints what it says."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks
from tests.servers import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WORDCOUNT = ROOT / "examples" / "wordcount.py"


def run(program: Path, folder: Path) -> str:
    """What it prints, without anything in the environment that would lead it to another database."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("GRISTMILL_", "DATABASE_"))}
    done = subprocess.run([sys.executable, str(program)], cwd=folder, env=ours, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("program", [e for e in EXAMPLES if e != WORDCOUNT], ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_says(program: Path, tmp_path: Path) -> None:
    said = ast.get_docstring(ast.parse(program.read_text())) or ""
    promised = textwrap.dedent(said.partition("It prints:\n\n")[2])
    assert promised
    assert run(program, tmp_path) == promised + "\n"


def test_wordcount_counts_words(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "more").mkdir(parents=True)
    (texts / "a.txt").write_text("one two three")
    (texts / "more" / "b.txt").write_text("four five")
    (texts / "empty.txt").write_text("")
    assert run(WORDCOUNT, tmp_path) == "completed_with_errors 2 1 5\nhello world\n"


def test_the_readme_shows_wordcount_as_it_is() -> None:
    assert WORDCOUNT.read_text() in [block.text for block in blocks(PAGES[0], "python")]


def test_every_example_is_mentioned_in_the_docs() -> None:
    said = "".join(page.read_text() for page in PAGES)
    assert [example.name for example in EXAMPLES if f"examples/{example.name}" not in said] == []
