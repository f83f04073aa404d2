"""Settings: one table, documented, from the call, then the environment, then the default."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gristmill.errors import Invalid
from gristmill.settings import DEFAULT_DATABASE, HELP, WorkerSettings, database_url, worker_settings

NAMES = [field.name for field in fields(WorkerSettings)]


def test_every_setting_is_documented_and_nothing_else_is() -> None:
    assert list(HELP) == NAMES
    assert all(len(text) > 10 for text in HELP.values())


def test_defaults_are_valid() -> None:
    assert worker_settings({}) == WorkerSettings()


def test_a_given_value_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"GRISTMILL_SLOTS": "3", "GRISTMILL_LEASE": "12.5"}
    assert worker_settings(environ).slots == 3
    assert worker_settings(environ, slots=7).slots == 7
    assert worker_settings(environ, slots=None).slots == 3
    assert worker_settings(environ).lease == 12.5
    assert worker_settings(environ).grace == WorkerSettings().grace


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_can_come_from_the_environment(name: str) -> None:
    default = getattr(WorkerSettings(), name)
    text, value = ("yes", True) if isinstance(default, bool) else ("a=5, b=6", ("a=5", "b=6")) if default == () else ("5", 5)
    assert getattr(worker_settings({f"GRISTMILL_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("YES", True), ("0", False), ("no", False), ("False", False)]
)
def test_yes_and_no_may_be_written_in_several_ways(text: str, value: bool) -> None:
    assert worker_settings({"GRISTMILL_STRICT": text}).strict is value


@pytest.mark.parametrize(
    ("name", "text"),
    [("SLOTS", "two"), ("SLOTS", "1.5"), ("SLOTS", ""), ("LEASE", "long"), ("STRICT", "perhaps"), ("STRICT", "")],
)
def test_a_value_that_cannot_be_read_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(Invalid, match=f"GRISTMILL_{name}="):
        worker_settings({f"GRISTMILL_{name}": text})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", 0),
        ("slots", 1025),
        ("async_slots", 0),
        ("lease", 0.1),
        ("lease", float("nan")),
        ("lease", float("inf")),
        ("poll", 0),
        ("grace", -1),
        ("prefetch", 11),
        ("batch", 0),
        ("memory_mib", -1),
        ("recycle", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(Invalid, match=f"setting '{name}' must be from"):
        worker_settings({}, **{name: value})


def test_a_poll_must_fit_into_a_lease_three_times() -> None:
    assert worker_settings({}, lease=3, poll=1).poll == 1
    with pytest.raises(Invalid, match="a third"):
        worker_settings({}, lease=2.9, poll=1)


def test_an_unknown_setting_is_refused_with_a_hint() -> None:
    with pytest.raises(Invalid, match="unknown setting 'slot'; did you mean 'slots'"):
        worker_settings({}, slot=3)


def test_the_database_is_the_given_one_then_the_environments_then_a_file_here() -> None:
    ours, common = {"GRISTMILL_DATABASE_URL": "sqlite:///a"}, {"DATABASE_URL": "sqlite:///b"}
    assert database_url("sqlite:///c", {**ours, **common}) == "sqlite:///c"
    assert database_url(None, {**ours, **common}) == "sqlite:///a"
    assert database_url(None, common) == "sqlite:///b"
    assert database_url(None, {}) == DEFAULT_DATABASE
