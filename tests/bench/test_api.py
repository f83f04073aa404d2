"""`./run bench api`: every address that it asks for answers, and the page says of each reach whether it was reached."""

from __future__ import annotations

import pytest

from bench.api import __main__ as measuring
from bench.api import pages
from bench.api.filling import place
from bench.api.page import NOT_YET, WANTED, page, summary
from bench.core import Figure


@pytest.fixture
def reached() -> list[Figure]:
    return [Figure(f"{wanted.figure} …", "PostgreSQL", "17 ms", "≤ 20 ms", True) for wanted in WANTED]


@pytest.mark.slow  # of ./run chaos suites
def test_every_page_and_list_that_is_measured_answers(pg_url: str) -> None:
    with place(True, pg_url) as filled:
        found = list(pages.measure(filled, True, rounds=2))
    assert found[-1].name == f"all {len(found) - 1} pages and lists"
    assert any("is%3Astuck" in figure.name for figure in found)


def test_each_thing_that_was_to_be_reached_is_told_with_what_was_measured(reached: list[Figure]) -> None:
    reached[1].holds = False
    told = list(summary(reached))
    assert [word for _, _, word in told] == ["reached", "NOT reached", "reached", "reached"]
    assert {measured for _, measured, _ in told} == {"17 ms"}


def test_what_was_not_measured_is_not_told_as_reached(reached: list[Figure]) -> None:
    assert [measured for _, measured, _ in summary(reached[:1])] == ["17 ms", NOT_YET, NOT_YET, NOT_YET]
    assert "Each of them" in page(reached, "Measured.")
    assert "Each of them" not in page([], "Not measured.")


def test_the_page_is_written_of_all_figures_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["pages", "--write"], ["--quick", "--write"]):
        monkeypatch.setattr("sys.argv", ["bench", *words])
        with pytest.raises(SystemExit):
            measuring.options()
    assert "--write is of all measurements" in capsys.readouterr().err
