"""Time as the ledger stores it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from gristmill.clock import SECOND, FrozenClock, from_datetime, iso, micros, to_datetime

MOMENTS = st.integers(0, 4_102_444_800 * SECOND)  # 1970 to 2100


@given(MOMENTS)
def test_a_moment_survives_the_way_there_and_back(at: int) -> None:
    moment = to_datetime(at)
    assert moment is not None
    assert from_datetime(moment) == at


@given(MOMENTS, st.integers(-12, 14))
def test_a_moment_is_the_same_in_every_time_zone(at: int, hours: int) -> None:
    moment = to_datetime(at)
    assert moment is not None
    assert from_datetime(moment.astimezone(timezone(timedelta(hours=hours)))) == at


@given(MOMENTS, MOMENTS)
def test_moments_keep_their_order(one: int, two: int) -> None:
    first, second = to_datetime(one), to_datetime(two)
    assert first is not None
    assert second is not None
    assert (one < two) == (first < second)


def test_seconds_become_microseconds() -> None:
    assert (micros(1), micros(0.5), micros(1.5e-6), micros(0)) == (1_000_000, 500_000, 2, 0)


def test_times_are_shown_in_utc_with_milliseconds() -> None:
    moment = datetime(2024, 2, 29, 13, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=1)))
    assert iso(moment) == "2024-02-29T12:00:00.123Z"
    assert iso(datetime(2024, 1, 1, tzinfo=UTC)) == "2024-01-01T00:00:00.000Z"
    assert iso(None) is None
    assert to_datetime(None) is None


def test_a_frozen_clock_stands_still_until_it_is_moved() -> None:
    clock = FrozenClock()
    before = clock()
    assert clock() == before
    clock.advance(1.25)
    assert clock() == before + 1_250_000
