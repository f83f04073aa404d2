"""A task that the application in `everyday` does not know, on the same queue."""

from __future__ import annotations

from gristmill import Context, task


@task
def strange(ctx: Context) -> str:
    return "known here"
