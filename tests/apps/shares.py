"""Queues that share a worker, and jobs that write down the order in which they start."""

from __future__ import annotations

from pathlib import Path

from gristmill import Context, task
from tests.apps.barriers import mark


@task(queue="big")
def big(ctx: Context, folder: Path) -> None:
    mark(folder / "order", "big")


@task(queue="middle")
def middle(ctx: Context, folder: Path) -> None:
    mark(folder / "order", "middle")


@task(queue="small")
def small(ctx: Context, folder: Path) -> None:
    mark(folder / "order", "small")
