"""What is tried again is decided by the kind of error; what failed for good is known by name, and the run goes on.

It prints:

    completed_with_errors: 2 of 5 failed in 'fetch'
    total 42 bytes
    about.html      failed     after 3 attempts: TimeoutError: no answer
    secret.html     failed     after 1 attempt:  PermissionError: not for you
"""

from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Pipeline, Retries

PAGES = {"index.html": 12, "contact.html": 10, "news.html": 20, "about.html": 0, "secret.html": 0}
mirror = Pipeline("mirror")


@mirror.stage
def find(ctx: Context):
    yield from PAGES  # keys are enough where there are no arguments


@mirror.stage(
    after=find,
    each=True,
    need=0.5,
    retries=Retries(
        0,  # an error that nobody thought of is final
        by_error={
            TimeoutError: Retries(2, delays=[0.1, 0.2]),
            ConnectionError: Retries.exponential(10, first=0.05),
            PermissionError: Retries(0),
        },
    ),
)
def fetch(ctx: Context) -> int:
    if ctx.key == "about.html":
        raise TimeoutError("no answer")
    if ctx.key == "secret.html":
        raise PermissionError("not for you")
    if ctx.key == "news.html" and ctx.attempt < 3:
        raise ConnectionResetError("the line broke")  # a ConnectionError
    return PAGES[ctx.key]


@mirror.stage(after=fetch)
def total(ctx: Context) -> int:
    return sum(size for _, size in ctx.results("fetch"))


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/retries.db", mirror) as mill:
        run = mill.start(mirror, "example.org")
        mill.work(until="drained")
        run = mill.run(run.id)
        print(f"{run.state}: {run.error}")
        print(f"total {run.result('total')} bytes")
        for job in sorted(mill.jobs(run=run.id, state="failed"), key=lambda job: job.key):
            times = f"{job.attempt} attempt{'s' * (job.attempt > 1)}:"
            print(f"{job.key:<15} {job.state:<10} after {times:<11} {job.error}")
