"""A pipeline whose second item fails: something to ask about."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill import Context, Permanent, Pipeline

stations = Pipeline("stations")


@stations.stage
def find(ctx: Context) -> Iterator[str]:
    yield "north"
    yield "south"


@stations.stage(after=find, each=True)
def visit(ctx: Context) -> None:
    if ctx.key == "south":
        raise Permanent("closed")
