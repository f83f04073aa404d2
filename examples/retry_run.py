"""One page of three cannot be read. It is mended, and only that page and what depends on it are run again.

It prints:

    first:  completed_with_errors, 2 pages, 5 words; it read ['a.txt', 'c.txt']
    would:  {'read': {'failed': 1}} and then ('total',)
    second: completed, 3 pages, 8 words; it read ['b.txt']
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Permanent, Pipeline

book = Pipeline("book")


@book.stage
def find(ctx: Context, folder: Path):
    for path in sorted(folder.glob("*.txt")):
        yield path.name, {"path": str(path)}


@book.stage(after=find, each=True)
def read(ctx: Context, path: Path, folder: Path) -> int:
    text = path.read_text()
    if not text:
        raise Permanent("empty page")
    with (folder / "was.read").open("a") as log:
        log.write(f"{path.name}\n")
    return len(text.split())


@book.stage(after=read)
def total(ctx: Context) -> int:
    return sum(words for _, words in ctx.results("read"))


def said(mill: Mill, number: int, folder: Path) -> str:
    mill.work(until="drained", slots=1)
    run = mill.run(number)
    log = folder / "was.read"
    was_read = sorted(log.read_text().split())
    log.unlink()
    return f"{run.state}, {run.stage('read').completed} pages, {run.result('total')} words; it read {was_read}"


if __name__ == "__main__":
    with TemporaryDirectory() as name, Mill.open(f"sqlite:///{name}/book.db", book) as mill:
        folder = Path(name)
        for page, text in {"a": "one two", "b": "", "c": "three four five"}.items():
            (folder / f"{page}.txt").write_text(text)
        run = mill.start(book, "novel", args={"folder": name})
        print("first: ", said(mill, run.id, folder))
        (folder / "b.txt").write_text("six seven eight")
        would = mill.retry_run(run.id, dry_run=True)
        print("would: ", would.items, "and then", would.after)
        mill.retry_run(run.id)
        print("second:", said(mill, run.id, folder))
