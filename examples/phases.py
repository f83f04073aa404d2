"""One async job with items of its own: each is reported, some fail, and the job ends `completed_with_errors`.

It prints:

    completed_with_errors: 1 failed: c
    download: 3 of 4 completed, failed: {'c': 'connection refused'}
    convert: 2 of 3 completed, skipped: {'d': 'empty'}
    converted 2
"""

import asyncio
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, task

SIZES = {"a": 3, "b": 5, "c": -1, "d": 0}


async def download(name: str) -> int:
    await asyncio.sleep(0.01)
    if SIZES[name] < 0:
        raise ConnectionError("connection refused")
    return SIZES[name]


@task(queue="convert", timeout=60)
async def convert_all(ctx: Context, names: list[str]) -> int:
    downloads = ctx.phase("download", total=len(names))
    sizes: dict[str, int] = {}

    async def one(name: str) -> None:
        downloads.start(name)
        try:
            sizes[name] = await download(name)
            downloads.complete(name)
        except ConnectionError as error:
            downloads.fail(name, error)  # the others go on

    await asyncio.gather(*map(one, names))
    converting = ctx.phase("convert", total=len(sizes))
    done = 0
    for name, size in sorted(sizes.items()):
        ctx.progress(done, len(sizes), f"converting {name}")
        if size == 0:
            converting.skip(name, "empty")
        else:
            converting.complete(name)
            done += 1
    return done


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/phases.db", convert_all) as mill:
        job = mill.enqueue(convert_all, args={"names": sorted(SIZES)})
        mill.work(until="drained")
        job = mill.job(job.id)
        print(f"{job.state}: {job.error}")
        first, second = job.progress["phases"]["download"], job.progress["phases"]["convert"]
        print(f"download: {len(first['completed'])} of {first['total']} completed, failed: {first['failed']}")
        print(f"convert: {len(second['completed'])} of {second['total']} completed, skipped: {second['skipped']}")
        print("converted", job.result)
