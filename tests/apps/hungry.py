"""Tasks that ask something of the machine they run on."""

from __future__ import annotations

from pathlib import Path

from gristmill import Context, Pipeline, task
from tests.apps.barriers import mark, wait_for


def _hold(ctx: Context, folder: Path, name: str) -> None:
    """Says that it runs, waits until it may end, and says so."""
    mark(folder / "log", f"+{name}")
    wait_for(folder / f"end-{name}")
    mark(folder / "log", f"-{name}")


@task
def plain(ctx: Context, folder: Path, name: str) -> None:
    _hold(ctx, folder, name)


@task
def quick(ctx: Context, n: int = 0) -> int:
    return n


@task(needs={"gpu"})
def paint(ctx: Context, n: int = 0) -> int:
    return n


@task(needs={"gpu", "region=eu"})
async def paint_abroad(ctx: Context, n: int = 0) -> int:
    return n


@task(cpu=2)
def wide(ctx: Context, folder: Path, name: str) -> None:
    _hold(ctx, folder, name)


@task(memory="600MB")
def big(ctx: Context, folder: Path, name: str) -> None:
    _hold(ctx, folder, name)


@task(memory="200MB")
def small(ctx: Context, folder: Path, name: str) -> None:
    _hold(ctx, folder, name)


@task(queue="ocr")
def ocr(ctx: Context, folder: Path, name: str) -> None:
    _hold(ctx, folder, name)


@task(memory=["150MB", "400MB", "2GB"])
def grows(ctx: Context, mib: int) -> int:
    """Needs so much memory."""
    return len(bytearray(mib << 20)) >> 20


album = Pipeline("album")


@album.stage
def find(ctx: Context, pictures: int = 3) -> object:
    for n in range(pictures):
        yield str(n), {"n": n}


@album.stage(after=find, each=True, needs="gpu", memory="200MB")
def draw(ctx: Context, n: int) -> int:
    return n


@album.stage(after=draw)
def bind(ctx: Context) -> str:
    return "bound"
