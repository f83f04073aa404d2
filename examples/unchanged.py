"""A daily run costs what changed: items whose fingerprint was done before end `skipped`.

It prints:

    Monday     3 read, 0 unchanged
    Tuesday    1 read, 2 unchanged
    new reader 3 read, 0 unchanged
"""

from hashlib import sha256
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Pipeline

gazette = Pipeline("gazette")


@gazette.stage
def pages(ctx: Context, texts: dict, reader: str):
    for key, text in texts.items():
        yield key, {"text": text}


@gazette.stage(after=pages, each=True)
def read(ctx: Context, text: str, reader: str) -> int:
    ctx.skip_unchanged(sha256(text.encode()).hexdigest(), reader)  # what goes in, and the version of what is done to it
    return len(text.split())


if __name__ == "__main__":
    monday = {"front": "mayor opens bridge", "sport": "home team loses", "weather": "rain"}
    tuesday = monday | {"sport": "home team wins"}
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/gazette.db", gazette) as mill:
        for day, texts, reader in [("Monday", monday, "v1"), ("Tuesday", tuesday, "v1"), ("new reader", tuesday, "v2")]:
            run = mill.start(gazette, "the town", args={"texts": texts, "reader": reader})
            mill.work(until="drained", slots=1)
            stage = mill.run(run.id).stage("read")
            print(f"{day:10} {stage.completed} read, {stage.skipped} unchanged")
