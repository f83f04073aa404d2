"""Adopting work that was done but not recorded: a picture is there, though the ledger (put back from a backup, say) has
its job still queued.

It prints:

    would adopt: queued → completed, result 3
    mended: 1
    a.jpg 3 False
    b.jpg 3 True
    completed
"""

from pathlib import Path

from gristmill import Context, Mill, Pipeline

album = Pipeline("album")


@album.stage
def find(ctx: Context, names: list[str]):
    yield from names


@album.stage(after=find, each=True, queue="shrink")
def shrink(ctx: Context) -> int:
    return Path(f"small-{ctx.key}").write_text("abc")


@shrink.probe
def is_there(ctx: Context) -> int | None:
    """False or None: it is not there; True: it is; anything else: it is, and this is the item's result."""
    file = Path(f"small-{ctx.key}")
    return file.stat().st_size if file.exists() else None


if __name__ == "__main__":
    with Mill.open("sqlite:///probe.db", album) as mill:
        run = mill.start(album, "summer", args={"names": ["a.jpg", "b.jpg"]})
        mill.work(until="drained", slots=1, queues=["default"])  # found, not shrunk
        Path("small-b.jpg").write_text("abc")

        for repair in mill.reconcile(dry_run=True):
            print(f"would {repair.what}: {repair.detail}")
        print("mended:", len(mill.reconcile()))

        mill.work(until="drained", slots=1)
        for job in sorted(mill.jobs(run=run.id, stage="shrink"), key=lambda job: job.key or ""):
            print(job.key, job.result, job.adopted)
        print(mill.run(run.id).state)
