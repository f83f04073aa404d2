"""Dates in the names of files and the texts of links, as municipalities write them."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clerk.fetchers import dates


@pytest.mark.parametrize(
    "text",
    """
    2026-01-31
    2026-01-31.pdf
    2026_01_31
    2026.01.31
    2026/01/31
    2026 01 31
    2026-1-31
    2026-01-31-2
    20260131
    CC_20260131_minutes
    01312026
    _01312026-1234
    01-31-2026
    1-31-2026
    1/31/2026
    01.31.2026
    01_31_2026
    01 31 2026
    1/31/26
    01-31-26
    1.31.26
    01_31_26 Minutes
    31.01.2026
    31/1/2026
    January 31, 2026
    january 31 2026
    JANUARY 31, 2026
    January 31st, 2026
    Jan 31 2026
    Jan. 31, 2026
    Jan-31-2026
    Jan_31_2026
    January312026
    MinutesJan312026final
    31 January 2026
    31-Jan-2026
    31st of January, 2026
    31 de enero de 2026
    2026 January 31
    2026-Jan-31
    Jan 31, '26
    January 31-February 1, 2026 held January 31, 2026 not
    City Council Regular Meeting - January 31, 2026 - 6:00 PM
    Minutes 2026-01-31 (posted 01/31/2026)
    2026-01-31T18:00:00Z
    Agenda Packet 01-31-2026 v2.pdf
    January 31-2026
    Saturday, January 31, 2026
    """.strip().split("\n"),
)
def test_each_of_these_is_the_last_of_january(text: str) -> None:
    expected = None if text.strip().endswith(" not") else "2026-01-31"
    assert dates.find(text.strip()) == expected


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("05/06/2026", "2026-05-06"),
        ("January 13-14, 2026", "2026-01-13"),
        ("January 1 2026", "2026-01-01"),
        ("January12026", "2026-01-01"),
        ("Minutes 12-01-99", "1999-12-01"),
        ("Minutes of March 4, 1887", "1887-03-04"),
        ("February 29, 2024", "2024-02-29"),
        ("may 5, 2026", "2026-05-05"),
        ("Sept. 9, 2026", "2026-09-09"),
    ],
)
def test_other_days(text: str, date: str) -> None:
    assert dates.find(text) == date


@pytest.mark.parametrize(
    "unsure",
    """
    minutes.pdf
    January 2026
    2026
    January 31
    01-31
    2026-13-01
    2026-02-30
    February 29, 2026
    013126
    DocumentCenter/View/112825
    112825.pdf
    26-01-31
    1769817600
    20260131123000
    Ordinance 2026-15
    Resolution 12345678
    January 13, 2026 and February 10, 2026
    01/13/2026, amended 02/10/2026
    $1,312,026
    Phone 510-555-2026
    192.168.1.26
    January 13, 10:00
    marching 31 2026
    page 1-31 of 2026 copies
    0/0/2026
    99/99/9999
    """.strip().split("\n"),
)
def test_where_one_cannot_be_sure_there_is_no_date(unsure: str) -> None:
    assert dates.find(unsure.strip()) is None


def test_a_text_without_its_dates() -> None:
    assert dates.without("City Council - January 31, 2026 - Minutes").split() == ["City", "Council", "-", "-", "Minutes"]


@given(st.dates(datetime.date(1900, 1, 1), datetime.date(2069, 12, 31)), st.text(alphabet="ab _-(", max_size=5))
def test_every_day_is_found_in_every_common_form(day: datetime.date, around: str) -> None:
    for form in ("%Y-%m-%d", "%Y%m%d", "%m-%d-%Y", "%m/%d/%Y", "%B %d, %Y", "%b. %d, %Y", "%d %B %Y", "%m%d%Y"):
        assert dates.find(f"{around} {day.strftime(form)} {around}") == day.isoformat(), form


@given(st.text(max_size=300))
def test_any_text_has_a_real_date_or_none(text: str) -> None:
    found = dates.find(text)
    assert found is None or datetime.date.fromisoformat(found).isoformat() == found


def test_hostile_texts_take_no_time() -> None:
    for piece in ("1", "1-", "Jan ", "Jan 1 ", "2026-01-", "/", "aA", "20", "january31"):
        dates.find(piece * 100_000)
