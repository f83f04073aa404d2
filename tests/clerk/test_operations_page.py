"""The operators' page says what the code does: figures, names and the lines for cron."""

from __future__ import annotations

from pathlib import Path

import pytest

from clerk import sentry
from clerk.config import VARIABLES, Config
from clerk.names import STAGES
from clerk.reading.pdf import MOST_PIXELS
from clerk.services import TARGETS, cron_lines, sizing
from tests.docs.pages import blocks
from tests.servers import ROOT

PAGE = ROOT / "docs" / "clerk" / "operations.md"
TEXT = PAGE.read_text()


def row(start: str) -> list[str]:
    [line] = [line for line in TEXT.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_table_of_limits_is_what_services_get() -> None:
    needs = sizing.needs(Config())
    assert row("memory each") == [str(needs[stage].high) for stage in STAGES]
    assert row("and here") == [str(needs[stage].most) for stage in STAGES]
    processors = {**{stage: f"{needs[stage].cpu:g}" for stage in STAGES}, "extraction": "`SPACY_N_PROCESS`"}
    assert row("processors each") == list(processors.values())


def test_the_room_for_images_is_that_of_the_largest() -> None:
    assert f"{MOST_PIXELS // 10**6} MB for each document" in TEXT  # one byte for each


def test_the_lines_for_cron_are_the_ticks() -> None:
    [block] = blocks(PAGE, "cron")
    assert block.text.splitlines() == cron_lines(Path("/srv/clerk"), Path("clerk"))


@pytest.mark.parametrize("name", [*TARGETS, sentry.UNREADABLE, sentry.UNPROCESSED, sentry.FETCH, "com.civicband.scheduler"])
def test_what_can_be_chosen_or_found_is_named(name: str) -> None:
    assert name in TEXT


def test_every_variable_on_the_page_is_one() -> None:
    for variable in [*(sizing.variable(stage) for stage in STAGES), "LOG_DIR", "LOKI_URL", "SENTRY_DSN", "SPACY_N_PROCESS"]:
        assert variable in VARIABLES
        assert f"{variable}" in TEXT
