"""The page about moving from an older clerk says what the code does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from clerk.cli.commands import clerk as command_line
from clerk.config import Config
from clerk.legacy import evidence, import_legacy, migrate_stuck_sites, rows
from gristmill import GristmillError, Mill
from tests.clerk.older_clerk import OlderClerk
from tests.clerk.test_legacy import SITE
from tests.clerk.test_legacy import config as config
from tests.clerk.test_legacy import imported as imported
from tests.clerk.test_legacy import older_url as older_url
from tests.clerk.test_legacy import quick as quick
from tests.clerk.test_legacy import second as second
from tests.docs.pages import blocks
from tests.servers import ROOT

PAGE = ROOT / "docs" / "clerk" / "migration.md"


def table(head: str) -> list[list[str]]:
    """The rows of the table whose first line begins so."""
    _, _, rest = PAGE.read_text().partition(f"\n| {head}")
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_status_on_the_page_has_that_stage() -> None:
    said = {name: stage for names, stage in table("`status` was") for name in re.findall(r"`(\w+)`", names)}
    assert {name: re.split(r"[,:]", stage)[0] for name, stage in said.items()} == rows.STATUS


@pytest.mark.parametrize(("pdf", "has_text", "marker", "state"), table("PDF |"))
def test_what_is_left_of_a_document_says_what_it_is(
    tmp_path: Path, pdf: str, has_text: str, marker: str, state: str
) -> None:
    clerk = OlderClerk("", tmp_path, "2026-01-18")
    for marked in (True, False) if marker == "any" else (marker == "yes",):
        key = f"minutes/Council/2025-01-0{1 + marked}"
        clerk.document(SITE, key, pdf=pdf == "yes", text=has_text == "yes", marker=marked)
    wanted = {"unread": "fetched"}.get(state.partition(":")[0], state.partition(":")[0])
    assert set(evidence.look(tmp_path, SITE).documents.values()) == {wanted}


def test_its_commands_are_there() -> None:
    [block] = blocks(PAGE, "sh")
    for line in [*block.text.splitlines(), "clerk import-legacy --finish --from URL --storage-dir D"]:
        _, command, *options = shlex.split(line)
        shown = CliRunner().invoke(command_line, [command, "--help"])
        assert shown.exit_code == 0
        assert all(option in shown.output for option in options if option.startswith("--"))


@pytest.mark.alike
def test_what_it_prints_is_what_is_printed(second: OlderClerk, config: Config, quick: None) -> None:
    second.add([("oakfield.ca", "needs_ocr", "ocr"), ("rockport.il", "needs_ocr", "ocr")])
    second.document("oakfield.ca", "minutes/Council/2025-01-07")
    second.document("oakfield.ca", "minutes/Council/2025-01-08", text=False, marker=False)
    (config.storage / "rockport.il").mkdir()
    import_legacy(config)
    [block] = blocks(PAGE, "text")
    assert migrate_stuck_sites(config).lines() == block.text.splitlines()


def test_its_query_is_0_where_nobody_wrote_and_an_upsert_is_refused(imported: Mill) -> None:
    [block] = blocks(PAGE, "sql")
    upsert = "INSERT INTO site_progress (site_id) VALUES ('x') ON CONFLICT (site_id) DO UPDATE SET stage_total = 1"
    with pytest.raises(GristmillError), imported.transaction() as connection:
        connection.execute(text(upsert))
    with imported.transaction() as connection:
        if connection.dialect.name == "postgresql":
            assert connection.execute(text(block.text)).scalar() == 0
        else:
            assert connection.execute(text("SELECT count(*) FROM legacy_writes")).scalar() == 0
