"""Cron expressions, time zones, maintenance windows, jitter."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.clock import SECOND, from_datetime
from gristmill.cron import Cron, Window, jitter, zone
from gristmill.errors import Invalid


def at(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=UTC))


def times(cron: Cron, after: str, count: int) -> list[str]:
    return [f"{cron.local(moment):%m-%d %H:%M %Z}" for moment in islice(cron.times(at(after)), count)]


# ---- expressions


def test_a_time_of_day_is_in_its_zone() -> None:
    assert times(Cron("0 3 * * *", "Europe/Berlin"), "2026-07-01", 2) == ["07-01 03:00 CEST", "07-02 03:00 CEST"]


def test_the_time_itself_is_not_after_itself() -> None:
    assert Cron("0 3 * * *").after(at("2026-07-01 03:00")) == at("2026-07-02 03:00")


@pytest.mark.parametrize(
    ("alias", "expected"),
    [("@hourly", "11-15 10:00"), ("@daily", "11-16 00:00"), ("@weekly", "11-22 00:00"), ("@monthly", "12-01 00:00")],
)
def test_names_for_what_is_usual(alias: str, expected: str) -> None:
    assert times(Cron(alias), "2026-11-15 09:30", 1) == [f"{expected} UTC"]


def test_off_never_fires() -> None:
    assert Cron("off").after(0) is None
    assert Cron("off").newest(at("2026-01-01")) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("61 * * * *", "'61' at character 1 is no minute"),
        ("0 25 * * *", "'25' at character 3 is no hour"),
        ("0 0 * FOO *", "'FOO' at character 7 is no month"),
        ("0 0 * * MON#9", "'MON#9' at character 9 is no day of the week"),
        ("0 0 1-", "has 3 fields, not 5"),
        ("0 0 31 2 *", "never fires"),
        ("@dayly", "did you mean '@daily'"),
        ("ofF ", None),
        ("of", "did you mean 'off'"),
        ("", "cron is text like '0 3 * * *'"),
        ("* " * 300, "the limit is 200"),
    ],
)
def test_a_bad_expression_is_answered_with_what_and_where(text: str, said: str | None) -> None:
    if said is None:
        assert Cron(text).off
        return
    with pytest.raises(Invalid) as error:
        Cron(text)
    assert said in str(error.value)


@given(st.text(st.sampled_from("0123456789*/,-#LW?@MONJAN \t²"), max_size=30))
def test_whatever_is_written_either_fires_or_is_refused(text: str) -> None:
    try:
        cron = Cron(text)
    except Invalid:
        return
    now = at("2026-11-15 12:00")
    following = cron.after(now)
    assert following is not None
    assert following > now
    assert cron.words()


@given(st.integers(0, 59), st.integers(0, 23), st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
def test_the_newest_is_the_last_that_is_not_later(minute: int, hour: int, moment: datetime) -> None:
    cron = Cron(f"{minute} {hour} * * *", "America/New_York")
    now = from_datetime(moment.replace(tzinfo=UTC))
    newest = cron.newest(now)
    assert newest is not None
    assert newest <= now
    following = cron.after(newest)
    assert following is not None
    assert following > now


# ---- when clocks change


def test_a_time_that_is_jumped_over_in_spring_is_at_the_end_of_the_jump() -> None:
    found = times(Cron("30 2 * * *", "Europe/Berlin"), "2026-03-28 12:00", 2)
    assert found == ["03-29 03:00 CEST", "03-30 02:30 CEST"]


def test_two_times_that_are_jumped_over_are_one() -> None:
    found = times(Cron("15,45 2 * * *", "Europe/Berlin"), "2026-03-28 12:00", 2)
    assert found == ["03-29 03:00 CEST", "03-30 02:15 CEST"]


def test_a_time_that_comes_twice_in_autumn_is_the_first_of_the_two() -> None:
    found = times(Cron("30 2 * * *", "Europe/Berlin"), "2026-10-24 12:00", 2)
    assert found == ["10-25 02:30 CEST", "10-26 02:30 CET"]


def test_asked_between_the_two_the_next_is_the_next_day() -> None:
    between = "2026-10-25 01:05"  # 02:05 for the second time
    assert times(Cron("30 2 * * *", "Europe/Berlin"), between, 1) == ["10-26 02:30 CET"]


def test_every_half_hour_goes_on_through_both() -> None:
    spring = times(Cron("*/30 * * * *", "Europe/Berlin"), "2026-03-29 00:30", 3)
    assert spring == ["03-29 03:00 CEST", "03-29 03:30 CEST", "03-29 04:00 CEST"]
    autumn = times(Cron("*/30 * * * *", "Europe/Berlin"), "2026-10-25 00:00", 4)
    assert autumn == ["10-25 02:30 CEST", "10-25 02:00 CET", "10-25 02:30 CET", "10-25 03:00 CET"]


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),
    st.sampled_from(["30 2 * * *", "*/20 * * * *", "5 */2 * * *"]),
)
def test_times_only_grow(moment: datetime, text: str) -> None:
    found = list(islice(Cron(text, "Australia/Lord_Howe").times(from_datetime(moment.replace(tzinfo=UTC))), 20))
    assert found == sorted(set(found))


# ---- zones


def test_an_unknown_zone_is_answered_with_the_nearest() -> None:
    with pytest.raises(Invalid, match="did you mean 'Europe/Berlin'"):
        zone("Europe/Berln")


@pytest.mark.parametrize("name", ["", "Europe", "../etc/passwd", "\0", None, 7])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="unknown time zone"):
        zone(name)


def test_a_machine_without_zones_is_told_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['tzdata'] = None; from gristmill.cron import zone; zone('Europe/Berlin')"
    bare = {**os.environ, "PYTHONTZPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].endswith("run: pip install tzdata")


# ---- windows


@pytest.mark.parametrize(
    ("window", "moment", "inside"),
    [
        ("02:00-04:00", "2026-11-15 02:00", True),
        ("02:00-04:00", "2026-11-15 04:00", False),
        ("22:00-04:00", "2026-11-15 23:59", True),
        ("22:00-04:00", "2026-11-15 03:59", True),
        ("22:00-04:00", "2026-11-15 12:00", False),
        ("Sun 02:00-04:00", "2026-11-15 03:00", True),
        ("Sun 02:00-04:00", "2026-11-16 03:00", False),
        ("Fri 22:00-04:00", "2026-11-14 03:00", True),  # the Saturday after
        ("Fri 22:00-04:00", "2026-11-13 03:00", False),
        ("Mon-Fri 00:00-24:00", "2026-11-13 23:59", True),
        ("Mon-Fri 00:00-24:00", "2026-11-14 00:00", False),
        ("sat-mon, wed 10:00-11:00", "2026-11-16 10:30", True),
        ("sat-mon, wed 10:00-11:00", "2026-11-17 10:30", False),
    ],
)
def test_what_is_in_a_window(window: str, moment: str, inside: bool) -> None:
    assert Window.parse(window).covers(datetime.fromisoformat(moment)) is inside


@pytest.mark.parametrize("text", ["", "2-4", "25:00-26:00", "Foo 02:00-04:00", "02:00-02:00", "02:00", "24:00-02:00", None])
def test_a_bad_window_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="window"):
        Window.parse(text)


# ---- jitter


@given(st.text(min_size=1), st.integers(0, 2**53), st.integers(0, 10**12))
def test_jitter_is_the_same_whoever_asks_and_within_its_limit(name: str, fire: int, most: int) -> None:
    found = jitter(name, fire, most)
    assert 0 <= found <= max(0, most - 1)
    assert jitter(name, fire, most) == found


def test_jitter_differs_between_schedules_and_times() -> None:
    minute = 60 * SECOND
    assert len({jitter("a", n * minute, minute) for n in range(100)}) > 50
    assert len({jitter(f"s{n}", 0, minute) for n in range(100)}) > 50
    assert timedelta(microseconds=max(jitter(f"s{n}", 0, minute) for n in range(100))) > timedelta(seconds=30)
