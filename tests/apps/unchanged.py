"""A site whose pages are only read again when they have changed."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from gristmill import Context, Pipeline, task

site = Pipeline("site")


@site.stage
def find(ctx: Context, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob("*.txt")):
        yield path.name, {"path": str(path)}


@site.stage(after=find, each=True)
def read(ctx: Context, path: Path, version: int = 1) -> int:
    data = path.read_bytes()
    ctx.skip_unchanged(sha256(data).hexdigest(), version)
    if b"bad" in data:
        raise ValueError("bad")
    return len(data)


@site.stage(after=read)
def total(ctx: Context) -> int:
    return ctx.counts("read").completed


@task
def on_its_own(ctx: Context) -> None:
    ctx.skip_unchanged("x")


@task
def not_text(ctx: Context) -> None:
    ctx.skip_unchanged(b"bytes")  # type: ignore[arg-type]
