"""Values as people type them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import Context, task
from gristmill.cli.values import duration, job_arguments, moment, number, since, wants_text
from tests.cli.conftest import APP, Cli


class Colour(StrEnum):
    RED = "red"


@task
def typed(
    ctx: Context,
    name: str = "",
    count: int = 0,
    share: float = 0,
    maybe: str | None = None,
    path: Path = Path(),
    tags: list[str] | None = None,
    flag: bool = False,
    free: Any = None,
) -> None: ...


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("name=007", "007"),
        ("name=5", "5"),
        ("name=true", "true"),
        ('name="quoted"', '"quoted"'),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("name=null", "null"),
        ("maybe=5", "5"),
        ("maybe=null", None),
        ("path=5", "5"),
        ("count=5", 5),
        ("share=0.5", 0.5),
        ('tags=["a", "b"]', ["a", "b"]),
        ("flag=true", True),
        ("free=5", 5),
        ("free=text", "text"),
        ('free={"a": [1, null]}', {"a": [1, None]}),
        ("free=007", "007"),
        ("free=NaN", "NaN"),
        ("free={broken", "{broken"),
        ("free=" + "[" * 50_000, "[" * 50_000),
        ("unknown=5", 5),
    ],
)
def test_an_argument_is_json_else_text_and_stays_text_where_text_is_wanted(pair: str, value: Any) -> None:
    assert list(job_arguments([pair], typed).values()) == [value]


@pytest.mark.parametrize(
    ("hint", "wants"),
    [
        (str, True),
        (Path, True),
        (Colour, True),
        (Literal["1", "2"], True),
        (Annotated[str, "a name"], True),
        (str | None, True),
        (str | int, False),
        (int, False),
        (list[str], False),
        (Literal[1, "2"], False),
        (Any, False),
    ],
    ids=str,
)
def test_which_hints_want_text(hint: Any, wants: bool) -> None:
    assert wants_text(hint) is wants


def test_arguments_reach_the_job_as_its_hints_say(made: Cli) -> None:
    enqueue = ["-A", APP, "enqueue", "greet", "--arg", "name=007", "--arg", "times=3", "--arg", "style=2"]
    assert made.run(*enqueue, "--json").json["args"] == {"name": "007", "times": 3, "style": "2"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("10m", 600),
        ("10 min", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@given(st.text())
def test_any_other_text_is_refused_with_a_clear_error(text: str) -> None:
    for parse in (duration, moment, since, number()):
        with contextlib.suppress(click.BadParameter):
            assert parse(text) is not None


def test_since_is_a_moment_ago() -> None:
    assert abs(datetime.now(UTC) - timedelta(hours=2) - since("2h")) < timedelta(seconds=5)


def test_a_moment_without_a_zone_is_local() -> None:
    assert moment("2027-01-31T14:30Z") == datetime(2027, 1, 31, 14, 30, tzinfo=UTC)
    assert moment("2027-01-31T14:30") == datetime(2027, 1, 31, 14, 30).astimezone()
    assert moment("2027-01-31").tzinfo is not None
