"""What `strangers` became: the same task under a new name."""

from __future__ import annotations

from gristmill import Context, task


@task(formerly=["strange"])
def familiar(ctx: Context) -> str:
    return f"{ctx.task}, known by its old name"
