"""The first page does what it says, from an empty folder; the tables of settings, commands and fetchers are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clerk.cli.commands import ROWS
from clerk.config import VARIABLES, Config, load
from clerk.demo import documents
from clerk.demo.towns import TOWNS
from clerk.errors import ClerkError
from clerk.fetchers.registry import BUILT_IN, fetcher_class
from clerk.reading.backends import BUILT_IN as BACKENDS
from tests.docs.pages import blocks
from tests.servers import ROOT

DOCS = ROOT / "docs" / "clerk"
SETTINGS = (DOCS / "settings.md").read_text()
COMMANDS = (DOCS / "commands.md").read_text()
SITES = (DOCS / "sites.md").read_text()


def cells(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]


# ---- the tutorial


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder with the documents of step 1, and a program `sqlite3`, which not every machine has."""
    [town] = [town for town in TOWNS if town.subdomain == "larkspurbend.ca"]
    documents.make(tmp_path / "made", scale="tiny")
    (tmp_path / "towns").mkdir()
    (tmp_path / "made" / town.subdomain).rename(tmp_path / "towns" / "documents")
    (tmp_path / "bin").mkdir()
    program = "import sqlite3, sys\nfor row in sqlite3.connect(sys.argv[1]).execute(sys.argv[2]): print(*row, sep='|')\n"
    for name, text in (("sqlite3", program), ("clerk", "from clerk.cli import main\nmain()\n")):
        (tmp_path / "bin" / name).write_text(f"#!{sys.executable}\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path / "towns"


def test_the_first_page_leads_from_an_empty_folder_to_a_searchable_site(empty: Path) -> None:
    steps = [block.text for block in blocks(DOCS / "README.md", "sh")]
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ["PATH"] = f"{empty.parent / 'bin'}:{environ['PATH']}"
    said = []
    for step in steps:
        done = subprocess.run(["bash", "-ec", step], cwd=empty, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    created, searched, several = said
    assert "larkspurbend.ca: completed (4 of 5 documents read, 1 failed)" in created
    assert "Current stage: completed" in created
    found = searched.splitlines()
    assert re.match(r"CityCouncil\|2026-02-10\|\d+\|.*\[Culvert\]", found[0], re.IGNORECASE)
    assert any(re.match(r"2026-\d\d-\d\d\|passed\|\d*\|\d*\|[A-Z]", line) for line in found)
    assert "Enqueueing new site elmcreek.ca with high priority" in several
    assert "Status: healthy" in several
    assert (empty / "published" / "elmcreek.ca" / "meetings.db").is_file()


# ---- the tables


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = {name: row[1] for row in cells(SETTINGS) for name in re.findall(r"`([A-Z_]+)`", row[0])}
    assert set(rows) == set(VARIABLES)
    given = {name: match[1] for name, default in rows.items() if (match := re.fullmatch(r"`([^`]+)`", default))}
    assert load(given, Path("/")) == Config()
    assert {name for name in rows if name not in given} == {
        name for name, attribute in VARIABLES.items() if getattr(Config(), attribute) is None
    }


def test_every_command_is_in_the_table() -> None:
    named = {name for row in cells(COMMANDS) for name in re.findall(r"`([a-z-]+)", row[0])}
    assert {name for row in ROWS.values() for name in row} - named == set()


def test_every_fetcher_with_its_settings_and_every_ocr_engine_is_in_the_table(tmp_path: Path) -> None:
    assert [label for label in (*BUILT_IN, *BACKENDS) if f"| `{label}` |" not in SITES] == []
    for label in BUILT_IN:
        with pytest.raises(ClerkError, match=r"there are: (.*)") as caught:
            fetcher_class(label)({"????": 1}, None)  # type: ignore[arg-type]
        settings = str(caught.value).partition("there are: ")[2].split(", ")
        assert settings
        assert [name for name in settings if f"| `{name}` |" not in SITES] == []
