"""Arguments: checked and converted by type hints when work is asked for, turned back into types when it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional
from uuid import UUID

import orjson
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.binding import Parameters, check_key, encode
from gristmill.errors import Invalid
from gristmill.settings import KEY_LIMIT, PAYLOAD_LIMIT


@dataclass
class Point:
    x: int
    y: float = 0.0


class Page(pydantic.BaseModel):
    url: str
    depth: int = 0


class Colour(Enum):
    RED = "red"


NOON = datetime(2024, 2, 29, 12, 0, tzinfo=UTC)


def taking(hint: Any) -> Parameters:
    """The parameters of a function that takes one argument of this type."""

    def function(ctx: Any, value: Any) -> None: ...

    function.__annotations__["value"] = hint
    return Parameters(function, "task 'x'")


def there_and_back(hint: Any, value: Any) -> Any:
    """What the function gets when the caller gave `value`: checked, stored as JSON, read, converted."""
    parameters = taking(hint)
    stored = encode(parameters.check({"value": value}), "the arguments")
    return parameters.select(orjson.loads(stored), None)["value"]


@pytest.mark.parametrize(
    ("hint", "given", "got"),
    [
        (int, 5, 5),
        (int, "5", 5),
        (int, 5.0, 5),
        (float, 5, 5.0),
        (float, "2.5", 2.5),
        (str, "text", "text"),
        (str, 5, "5"),
        (bool, "true", True),
        (bool, 0, False),
        (Path, "/a/b", Path("/a/b")),
        (Path, Path("/a/b"), Path("/a/b")),
        (datetime, NOON, NOON),
        (datetime, "2024-02-29T12:00:00Z", NOON),
        (date, date(2024, 2, 29), date(2024, 2, 29)),
        (timedelta, timedelta(minutes=5), timedelta(minutes=5)),
        (UUID, UUID(int=7), UUID(int=7)),
        (Decimal, Decimal("1.10"), Decimal("1.10")),
        (Colour, Colour.RED, Colour.RED),
        (Colour, "red", Colour.RED),
        (Literal["a", "b"], "a", "a"),
        (Optional[int], None, None),  # noqa: UP045 - people write it
        (Optional[Path], "/a", Path("/a")),  # noqa: UP045
        (int | None, "7", 7),
        (list[int], ["1", 2], [1, 2]),
        (list[Path], ["/a", Path("/b")], [Path("/a"), Path("/b")]),
        (tuple[int, str], (1, "a"), (1, "a")),
        (set[int], {3}, {3}),
        (set, {3}, {3}),
        (tuple, (1, 2), (1, 2)),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (dict, {"a": [1, None]}, {"a": [1, None]}),
        (list, [1, {"b": True}], [1, {"b": True}]),
        (Point, Point(1, 2.5), Point(1, 2.5)),
        (Point, {"x": "1"}, Point(1)),
        (list[Point], [Point(1), {"x": 2}], [Point(1), Point(2)]),
        (Page, Page(url="u", depth=2), Page(url="u", depth=2)),
        (Page, {"url": "u", "depth": "3"}, Page(url="u", depth=3)),
        (Page | None, None, None),
        (Any, {"any": ["thing"]}, {"any": ["thing"]}),
        (bytes, b"abc", b"abc"),
    ],
    ids=str,
)
def test_an_argument_arrives_as_its_hint_says(hint: Any, given: Any, got: Any) -> None:
    found = there_and_back(hint, given)
    assert found == got
    assert type(found) is type(got)


@pytest.mark.parametrize(
    ("hint", "given"),
    [
        (int, "five"),
        (int, 1.5),
        (int, None),
        (int, []),
        (Path, 5),
        (datetime, "yesterday"),
        (Optional[int], "x"),  # noqa: UP045
        (list[int], ["a"]),
        (list[int], "12"),
        (dict[str, int], {"a": "b"}),
        (Point, {"x": "a"}),
        (Point, {}),
        (Page, {"depth": 1}),
        (Literal["a"], "b"),
        (Colour, "blue"),
    ],
    ids=str,
)
def test_an_argument_of_the_wrong_type_is_refused_in_one_line(hint: Any, given: Any) -> None:
    with pytest.raises(Invalid, match="task 'x': argument 'value'") as caught:
        taking(hint).check({"value": given})
    assert "\n" not in str(caught.value)


def test_the_place_inside_an_argument_is_named() -> None:
    with pytest.raises(Invalid, match=r"argument 'value'\[1\]\['x'\]"):
        taking(list[Point]).check({"value": [{"x": 1}, {"x": "no"}]})


def test_a_parameter_without_a_hint_takes_any_json() -> None:
    def function(ctx, value): ...

    assert Parameters(function, "x").check({"value": [1, "a"]}) == {"value": [1, "a"]}


# ---- names


def function(ctx: Any, path: str, size: int = 3, *, deep: bool = False) -> None: ...


def test_unknown_and_missing_arguments_are_refused_by_name() -> None:
    parameters = Parameters(function, "task 'f'")
    with pytest.raises(Invalid, match="takes no argument 'pth'; did you mean 'path'"):
        parameters.check({"pth": "a"})
    with pytest.raises(Invalid, match="needs argument 'path'"):
        parameters.check({"size": 1})
    with pytest.raises(Invalid, match="argument names are text"):
        parameters.check({1: 2})  # type: ignore[dict-item]
    assert parameters.check({"path": "a", "deep": "yes"}) == {"path": "a", "deep": True}


def test_a_function_with_keyword_arguments_takes_anything() -> None:
    def greedy(ctx: Any, n: int, **rest: Any) -> None: ...

    parameters = Parameters(greedy, "x")
    assert parameters.check({"n": "1", "other": [2]}) == {"n": 1, "other": [2]}
    assert parameters.select({"n": 1}, {"other": 3}) == {"n": 1, "other": 3}


@pytest.mark.parametrize(
    "bad",
    [lambda: None, lambda *args: None, lambda *, ctx: None, lambda ctx, *args: None],
)
def test_a_function_that_cannot_be_called_by_name_is_refused(bad: Callable[..., Any]) -> None:
    with pytest.raises(Invalid, match="task 'x'"):
        Parameters(bad, "task 'x'")


def test_an_items_arguments_come_before_the_runs() -> None:
    parameters = Parameters(function, "x")
    run = {"path": "run", "size": 9, "unrelated": True}
    assert parameters.select({"path": "item"}, run) == {"path": "item", "size": 9}
    assert parameters.select(None, run) == {"path": "run", "size": 9}
    assert parameters.select({"path": "item", "other": 1}, None) == {"path": "item"}


def test_a_hint_that_exists_for_type_checkers_only_counts_as_any() -> None:
    def typed(ctx: Any, page: NotImported, n: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    parameters = Parameters(typed, "x")
    assert parameters.check({"page": {"a": 1}, "n": "2"}) == {"page": {"a": 1}, "n": 2}


# ---- JSON


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"a": {"b": [None, v]}}, lambda v: (v,), Point])
def test_what_has_no_json_form_is_refused_and_not_turned_into_null(value: float, wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(Invalid, match="NaN"):
        encode(wrap(value) if wrap is not Point else Point(1, value), "the result")


@pytest.mark.parametrize("value", [object(), {1: 2}, {3}, 2**70, "\ud800", b"x", [print]], ids=lambda v: type(v).__name__)
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="the result is not JSON"):
        encode(value, "the result")


def test_something_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Invalid, match="not JSON"):
        encode(endless, "the result")


def test_a_payload_may_be_one_mebibyte_and_no_more() -> None:
    assert len(encode("x" * (PAYLOAD_LIMIT - 2), "it")) == PAYLOAD_LIMIT
    with pytest.raises(Invalid, match=r"it is 1\.0 MiB of JSON; the limit is 1 MiB: store the data elsewhere"):
        encode("x" * (PAYLOAD_LIMIT - 1), "it")
    with pytest.raises(Invalid, match="MiB"):
        encode("é" * (PAYLOAD_LIMIT // 2), "it")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(JSON)
def test_json_survives_storage(value: Any) -> None:
    assert orjson.loads(encode(value, "it")) == value


# ---- keys


@pytest.mark.parametrize("key", ["a", "a b", "über/Straße.txt", "日本", "https://x.org/?a=1&b=2", "x" * KEY_LIMIT, "0"])
def test_a_key_is_any_printable_text(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("x" * (KEY_LIMIT + 1), "501 characters; the limit is 500"),
        ("a\nb", "cannot be printed"),
        ("a\x00", "cannot be printed"),
        ("\ud800", "cannot be printed"),
        (5, "must be text, not int"),
        (None, "must be text, not NoneType"),
        (b"a", "must be text, not bytes"),
    ],
    ids=repr,
)
def test_what_cannot_be_a_key_is_refused(key: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        check_key(key)
    assert "\n" not in str(caught.value)
