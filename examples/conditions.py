"""Stages that run only if, and jobs that are worth nothing when they are late.

It prints:

    completed
    shrink     2 done, 1 skipped
    announce   0 done, 1 skipped: its condition was not met
    remind     skipped: not started within 0.05 s
"""

import time
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Pipeline, task

album = Pipeline("album")


@album.stage
def find(ctx: Context, names: list):
    yield from names


@album.stage(after=find, each=True, when=lambda ctx: ctx.key.endswith(".jpg"))
def shrink(ctx: Context) -> str:
    return f"small-{ctx.key}"


@album.stage(after=shrink, when=lambda ctx, public=False: public)
def announce(ctx: Context) -> str:
    return "announced"


@task(within=0.05)
def remind(ctx: Context) -> str:
    return "it begins now"


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/album.db", album, remind) as mill:
        run = mill.start(album, "summer", args={"names": ["a.jpg", "b.jpg", "notes.txt"]})
        late = mill.enqueue(remind)
        time.sleep(0.1)  # nobody works yet
        mill.work(until="drained", slots=1)
        run = mill.run(run.id)
        print(run.state)
        shrunk = run.stage("shrink")
        print(f"shrink     {shrunk.completed} done, {shrunk.skipped} skipped")
        (said,) = mill.jobs(run=run.id, stage="announce")
        print(f"announce   0 done, 1 skipped: {said.error}")
        said = mill.job(late.id)
        print(f"remind     {said.state}: {said.error}")
