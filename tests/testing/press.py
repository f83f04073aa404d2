"""An application to be tested: every kind of function, every outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from gristmill import Context, EndRun, Later, Permanent, Pipeline, Retries, Skip, Unspent, task

press = Pipeline("press")


@press.stage(queue="find")
def find(ctx: Context, pages: list[str]) -> Generator[tuple[str, dict[str, Any]], None, int]:
    for page in pages:
        yield page, {"page": page}
    return len(pages)


@press.stage(after=find, each=True, retries=Retries(2, delays=[60, 600]))
def read(ctx: Context, page: str, year: int) -> str:
    if page == "blank":
        raise Skip("nothing on it")
    if page == "torn":
        raise Permanent("half of it is missing")
    if page == "stuck" and ctx.attempt < 3:
        raise OSError("paper jam")
    return f"{page} of {year}"


@press.stage(after=read)
async def bind(ctx: Context) -> list[str]:
    return [text for _, text in ctx.results("read")]


@task
def outcome(ctx: Context, kind: str) -> str:
    if kind == "later":
        raise Later(30)
    if kind == "unspent":
        raise Unspent("no paper", pause=90)
    if kind == "end_run":
        raise EndRun("unchanged")
    if kind == "exit":
        raise SystemExit(3)
    ctx.progress(1, 3, "going")
    pages = ctx.phase("pages", total=2)
    pages.complete("a")
    if kind == "errors":
        pages.fail("b", "torn")
    return "done"


@task(queue="mail", retries=1)
async def greet(ctx: Context, name: str, on: date | None = None, into: Path = Path("out")) -> str:
    return f"hello {name} {on and on.year} {into.name}"


@task
def patient(ctx: Context) -> str:
    """Comes back twice."""
    if ctx.attempt < 3:
        raise Later(3600)
    return f"after {ctx.attempt}"


@task
def tired(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Unspent("no paper", pause=90)
    return ctx.attempt


stream = Pipeline("stream")


@stream.stage
async def numbers(ctx: Context, most: int) -> AsyncIterator[str]:
    for n in range(most):
        yield f"{n:05}"


@stream.stage(after=numbers, each=True, need=0)
def number(ctx: Context) -> None:
    if ctx.key == "00002":
        raise EndRun("enough")


double = Pipeline("double")


@double.stage
def twice(ctx: Context) -> Iterator[str]:
    for _ in range(600):
        yield "same"


@double.stage(after=twice, each=True)
def never(ctx: Context) -> None: ...


@double.stage(after=never)
def end(ctx: Context) -> None: ...
