"""What has ended goes when no rule keeps it: here the two newest reports, and failed ones for a week.

It prints:

    before: 5 reports, 4 runs
    would go: 1 run, 3 jobs
    after: 3 reports, 3 runs
    last good run: 1
"""

from datetime import timedelta
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Permanent, Pipeline, Retention, task

site = Pipeline("site", keep=Retention(count=2))  # of each subject; its last run and its last good one always stay


@site.stage
def fetch(ctx: Context, broken: bool) -> None:
    if broken:
        raise Permanent("not there")


@task(keep=[Retention(count=2), Retention(state="failed", age=timedelta(days=7))])
def report(ctx: Context, number: int) -> int:
    if number == 0:
        raise Permanent("no such report")
    return number


def counts(mill: Mill) -> str:
    return f"{len(mill.jobs(task='report'))} reports, {len(mill.runs())} runs"


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/retention.db", site, report) as mill:
        for broken in (False, True, True, True):
            mill.start(site, "example.org", args={"broken": broken})
            mill.work(until="drained", slots=1)
        mill.enqueue_many(report, [{"number": number} for number in range(5)])
        mill.work(until="drained", slots=1)
        print("before:", counts(mill))
        would = mill.prune(dry_run=True)
        print(f"would go: {would.runs} run, {would.jobs} jobs")
        mill.prune()
        print("after:", counts(mill))
        print("last good run:", mill.subject("site", "example.org").last_good_run)
