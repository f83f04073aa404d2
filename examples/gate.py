"""A gate looks at reality before a run goes on: a folder that has not changed is not published again.

It prints:

    first:  completed, 2 pages published
    second: completed, ended early: unchanged
    third:  completed, 3 pages published
"""

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill import Context, EndRun, Mill, Pipeline

publish = Pipeline("publish")


@publish.stage
def fingerprint(ctx: Context, folder: Path) -> str:
    pages = sorted(folder.glob("*.txt"))
    return sha256(b"\0".join(page.name.encode() + b"\0" + page.read_bytes() for page in pages)).hexdigest()


@publish.gate(after=fingerprint)
def changed(ctx: Context, folder: Path) -> None:
    [(_, now)] = ctx.results("fingerprint")
    last = folder / "published"
    if last.exists() and last.read_text() == now:
        raise EndRun("unchanged")


@publish.stage(after=fingerprint)  # and so after its gate
def upload(ctx: Context, folder: Path) -> int:
    [(_, now)] = ctx.results("fingerprint")
    (folder / "published").write_text(now)
    return len(list(folder.glob("*.txt")))


def run_once(mill: Mill, folder: str) -> str:
    run = mill.start(publish, "handbook", args={"folder": folder})
    mill.work(until="drained", slots=1)
    run = mill.run(run.id)
    return (
        f"{run.state}, ended early: {run.reason}" if run.reason else f"{run.state}, {run.result('upload')} pages published"
    )


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/gate.db", publish) as mill:
        for name in ("one", "two"):
            Path(folder, f"{name}.txt").write_text(name)
        print("first: ", run_once(mill, folder))
        print("second:", run_once(mill, folder))
        Path(folder, "three.txt").write_text("three")
        print("third: ", run_once(mill, folder))
