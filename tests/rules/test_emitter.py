"""The child's end of fan-out: every item is checked, though most of them only by the shape that they share with others."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import Field

from gristmill import Context, Pipeline
from gristmill.errors import Invalid
from gristmill.execution.emitter import Emitter
from gristmill.registry import Registry

books = Pipeline("books")


@books.stage
def pages(ctx: Context) -> Any: ...


@books.stage(after=pages, each=True)
def page(ctx: Context, n: int, day: date | None = None, few: Annotated[int, Field(le=3)] = 1, text: Any = None) -> None: ...


class Job:
    job, attempt = 1, 1


@pytest.fixture
def emitter() -> Emitter:
    return Emitter(Job(), [["page", page.name]], Registry(books), {}, lambda *_: None)  # type: ignore[arg-type]


def sent(emitter: Emitter) -> list[str | None]:
    rest = emitter.rest()
    return [args for _, args, _ in rest[1]] if rest else []


def test_each_value_is_converted_whatever_came_before(emitter: Emitter) -> None:
    for key, n in (("a", 1), ("b", "2"), ("c", 3), ("d", "4")):
        emitter.add((key, {"n": n}))
    emitter.add(("e", {"n": 5, "day": date(2026, 1, 2)}))
    emitter.add(("f", {"n": 6, "day": date(2026, 1, 3), "text": [1]}))
    assert sent(emitter)[:4] == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}']


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"n": "1"}, {"n": "one"}),
        ({"n": 1}, {"n": 1.5}),
        ({"n": 1, "few": 3}, {"n": 1, "few": 4}),  # the same names and types
        ({"n": 1, "text": "x"}, {"n": 1, "text": object()}),
        ({"n": 1, "text": 0.5}, {"n": 1, "text": float("nan")}),  # the same names and types
        ({"n": 1}, {}),
        ({"n": 1}, {"n": 1, "m": 2}),
    ],
)
def test_a_bad_item_is_refused_after_good_ones(emitter: Emitter, good: dict[str, Any], bad: dict[str, Any]) -> None:
    for key in "abc":
        emitter.add((key, good))
    with pytest.raises(Invalid):
        emitter.add(("d", bad))
    assert len(sent(emitter)) == 3


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "\x00", 7, None, "x" * 5000])
def test_a_bad_key_is_refused(emitter: Emitter, key: Any) -> None:
    with pytest.raises(Invalid, match="key"):
        emitter.add((key, {"n": 1}))


@pytest.mark.parametrize(("returned", "said"), [(None, "needs argument 'n'"), ([1, 2], "argument 'n'"), ({"m": 1}, "'m'")])
def test_who_returns_what_should_be_yielded_is_told_so(emitter: Emitter, returned: object, said: str) -> None:
    with pytest.raises(Invalid, match=f"{said}.*; what a stage returns is one item, and each that it yields is one"):
        emitter.pass_on(returned)
