"""Jobs say what they need of a machine; workers say what they have, and take what fits.

It prints:

    a worker without labels: thumbnails completed, upscale queued
    why: job 2 (upscale) waits: queue 'default' has no running worker with label gpu
    a worker with a GPU: upscale completed
    archive needed 2 attempts: 150 MB were too little for 'cats', 600 MB were not
"""

import logging
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, task


@task
def thumbnails(ctx: Context) -> int:
    return 12


@task(needs={"gpu"})
def upscale(ctx: Context) -> str:
    return "larger"


@task(memory=["150MB", "600MB"])
def archive(ctx: Context, name: str) -> int:
    return len(bytearray(300 << 20))


def main() -> None:
    logging.getLogger("gristmill").setLevel(logging.ERROR)  # the first worker warns of what it leaves queued
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/needs.db", thumbnails, upscale, archive) as mill:
        small, gpu = mill.enqueue(thumbnails).id, mill.enqueue(upscale).id
        said = []

        def look(now: float) -> float:  # while a worker runs
            said.append(mill.why(job=gpu).sentence)
            return 60

        mill.work(until="idle", slots=1, tickers=[look])
        print(f"a worker without labels: thumbnails {mill.job(small).state}, upscale {mill.job(gpu).state}")
        print(f"why: {said[0]}")
        mill.work(until="drained", slots=1, labels=["gpu"])
        print(f"a worker with a GPU: upscale {mill.job(gpu).state}")
        cats = mill.enqueue(archive, args={"name": "cats"}).id
        mill.work(until="drained", slots=1, jobs_mib=1024)
        print(f"archive needed {mill.job(cats).attempt} attempts: 150 MB were too little for 'cats', 600 MB were not")


if __name__ == "__main__":
    main()
