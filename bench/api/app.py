"""The application that is served and worked on: that of `bench.lists`, one with limits, and jobs that do nothing."""

from __future__ import annotations

from bench.apps import nothing
from bench.lists import mail, rare, site
from gristmill import Context, Limit, task


@task(name="polite", queue="polite", limit=Limit("host", per="host", at_once=2, breaker=5))
def polite(ctx: Context, host: str) -> None: ...


ALL = (site, mail, rare, polite, nothing)
