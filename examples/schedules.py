"""Work that starts by the clock: a job each night, and once an hour the sites that were not looked at for longest.

It prints:

    clean:  At 03:00 every day (Europe/Berlin), next 2026-11-16 02:00 UTC
    sweep:  At the start of every hour (UTC), next 2026-11-15 13:00 UTC
    13:00   sweep started a.org, b.org
    14:00   sweep started c.org
    02:00   clean started job 4: removed what is older than 30 days
"""

from datetime import UTC, datetime
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Pipeline, Schedule, task
from gristmill.clock import FrozenClock

site = Pipeline("site")


@site.stage
def fetch(ctx: Context) -> str:
    return ctx.subject


@task
def clean(ctx: Context, days: int) -> str:
    return f"removed what is older than {days} days"


nightly = Schedule("clean", cron="0 3 * * *", tz="Europe/Berlin", task=clean, args={"days": 30})
hourly = Schedule("sweep", cron="@hourly", pipeline=site, not_within=20 * 3600, batch=2)


if __name__ == "__main__":
    clock = FrozenClock(datetime(2026, 11, 15, 12, tzinfo=UTC))  # `gristmill up` goes by the database's clock
    with (
        TemporaryDirectory() as folder,
        Mill.open(f"sqlite:///{folder}/s.db", site, clean, nightly, hourly, clock=clock) as mill,
    ):
        for name in ("a.org", "b.org", "c.org"):
            mill.set_subject(site, name)
        mill.declare_schedules()  # a worker does this when it starts,
        scheduler = mill.scheduler()  # and has one of these
        for entry in mill.schedules():
            print(f"{entry.name}:  {entry.when}, next {entry.next_at:%Y-%m-%d %H:%M} UTC")
        for _ in range(14):
            clock.advance(3600)
            scheduler.run()
        mill.work(until="drained", slots=1)
        for fired in reversed(mill.schedule_history()):
            started = fired.detail or f"job {fired.job}: {mill.job(fired.job).result}"
            print(f"{fired.fire_at:%H:%M}   {fired.schedule} {fired.outcome} {started}")
