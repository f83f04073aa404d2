"""Parts as they are declared: named after what they are parts of, known with it, refused where they make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill import Context, Invalid, Pipeline, Retries, task
from gristmill.pipeline import Part
from gristmill.registry import Registry, pieces_of

scans = Pipeline("scans")


@scans.stage(queue="documents")
def read(ctx: Context, path: str) -> None: ...


@read.part(queue="pages", timeout=5, retries=2, need=0.5, formerly=["scans.sheet"])
def page(ctx: Context, number: int, tongue: str = "eng") -> str:
    return f"{tongue} {number}"


@read.part
def cover(ctx: Context) -> None: ...


@task(queue="sums")
def add(ctx: Context) -> None: ...


@add.part(name="one")
async def one_of_them(ctx: Context) -> None: ...


def test_a_part_is_a_task_of_its_own() -> None:
    assert isinstance(page, Part)
    assert (page.name, page.part_name, page.queue, page.timeout) == ("scans.read.page", "page", "pages", 5.0)
    assert (page.retries, page.need.share, page.of) == (Retries(2), 0.5, read)
    assert page(Context(), number=7) == "eng 7"
    assert repr(page) == "<part 'scans.read.page'>"


def test_its_queue_is_by_default_that_of_what_it_is_a_part_of() -> None:
    assert (cover.queue, one_of_them.queue) == ("documents", "sums")
    assert (one_of_them.name, one_of_them.is_async) == ("add.one", True)
    assert cover.need.met(0, 0)
    assert not cover.need.met(0, 1)


@pytest.mark.parametrize("parts", [[scans, add], [read, add], [page, one_of_them], list(pieces_of(globals()))])
def test_it_is_known_with_what_it_is_a_part_of(parts: list[Any]) -> None:
    registry = Registry(*parts)
    assert {"scans.read", "scans.read.page", "scans.read.cover", "scans.sheet", "add", "add.one"} == set(registry.tasks)
    assert registry.queues() == {"documents", "pages", "sums"}


def test_a_run_takes_arguments_that_only_a_part_names() -> None:
    assert scans.check_args({"path": "a", "tongue": "deu"}) == {"path": "a", "tongue": "deu"}
    with pytest.raises(Invalid, match="did you mean 'tongue'"):
        scans.check_args({"path": "a", "tonge": "deu"})
    with pytest.raises(Invalid, match="argument 'number'"):
        scans.check_args({"path": "a", "number": "x"})


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(Invalid, match="is a part itself, and cannot have parts"):
        page.part(lambda ctx: None)
    with pytest.raises(Invalid, match="has a part 'page' already"):
        read.part(name="page")(lambda ctx: None)
    with pytest.raises(Invalid, match="must not contain"):
        read.part(name="a.b")(lambda ctx: None)
    with pytest.raises(Invalid, match="need must be a count"):
        read.part(name="x", need=-1)(lambda ctx: None)
    with pytest.raises(Invalid, match="is a generator"):

        @read.part
        def many(ctx: Context) -> Any:
            yield "a"
