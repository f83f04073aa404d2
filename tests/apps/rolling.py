"""Jobs that say which checkout of Gristmill they ran under: for workers of two versions on one database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gristmill
from gristmill import Context, Pipeline

rolling = Pipeline("rolling")


@rolling.stage
def find(ctx: Context, items: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for n in range(items):
        yield f"{n:03}", {}


@rolling.stage(after=find, each=True)
def where(ctx: Context) -> str:
    time.sleep(0.02)
    return str(Path(gristmill.__file__).parent.parent)


@rolling.stage(after=where)
def count(ctx: Context) -> dict[str, int]:
    found = [place for _, place in ctx.results("where")]
    return {place: found.count(place) for place in found}
