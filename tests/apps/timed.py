"""An application with schedules, for tests of real workers."""

from __future__ import annotations

from gristmill import Context, Pipeline, Schedule, task

site = Pipeline("timed-site")


@site.stage
def fetch(ctx: Context) -> str:
    return "fetched"


@task
def beat(ctx: Context, n: int) -> int:
    return n


minutely = Schedule("beat", cron="* * * * *", task=beat, args={"n": 7})
sweep = Schedule("sweep", cron="* * * * *", pipeline=site, batch=2)
