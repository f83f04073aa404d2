"""An application for the tests of the command line: a pipeline that counts the letters of files, and a few tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from gristmill import Context, Permanent, Pipeline, Skip, task

letters = Pipeline("letters")


@letters.stage(queue="find")
def find(ctx: Context, folder: str) -> Iterator[tuple[str, dict[str, str]]]:
    for path in sorted(Path(folder).glob("*.txt")):
        yield path.name, {"path": str(path)}


@letters.stage(after=find, each=True, queue="count")
def count(ctx: Context, path: str) -> int:
    text = Path(path).read_text()
    if not text:
        raise Permanent("empty file")
    if text.startswith("skip"):
        raise Skip("not wanted")
    if text.startswith("bad"):
        print("printed before the end")
        ctx.logger.warning("logged before the end")
        raise ValueError("bad text\nin two lines \x1b[31m")
    return len(text)


@letters.stage(after=count)
def total(ctx: Context) -> int:
    return sum(result for _, result in ctx.results("count"))


@task(queue="mail")
async def greet(ctx: Context, name: str, times: int = 1, style: Literal["1", "2"] | None = None) -> list[Any]:
    return [name, times, style]


@task
def anything(ctx: Context, **values: Any) -> dict[str, Any]:
    return values


@task(queue="slow")
def hold(ctx: Context, started: str, release: str) -> str:
    """Says through one FIFO that it runs, and waits at another."""
    Path(started).write_text("running")
    return Path(release).read_text()


held = Pipeline("held")


@held.stage(name="hold", queue="slow")
def hold_stage(ctx: Context, started: str, release: str) -> str:
    Path(started).write_text("running")
    return Path(release).read_text()
