"""One page, many builds: a lock keeps two from publishing at once, and an older build never replaces a newer one.

It prints:

    build 3 completed
    build 1 skipped: superseded by build 3
    build 2 skipped: superseded by build 3
    build 4 completed
    the page shows build 4
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, task


@task
def publish(ctx: Context, build: int, page: str) -> None:
    with ctx.lock("page", page):
        ctx.skip_stale("page", page, version=build, label=f"build {build}")
        Path(page).write_text(f"build {build}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/builds.db", publish) as mill:
        page = f"{folder}/index.html"
        for build in (3, 1, 2, 4):
            job = mill.enqueue(publish, args={"build": build, "page": page})
            mill.work(until="drained", slots=1)
            ended = mill.job(job.id)
            print(f"build {build} {ended.state}" + (f": {ended.error}" if ended.error else ""))
        print("the page shows", Path(page).read_text())
