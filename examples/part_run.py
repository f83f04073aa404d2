"""The same subject once more, but not from the beginning: some stages stand for the last good run.

It prints:

    whole: ['find', 'read a', 'read b', 'total'] 2 pages
    from:  ['total'] 2 pages
    only:  ['read b', 'total'] 2 pages
    find:  taken from run 1
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Pipeline

site = Pipeline("site")


def note(folder: Path, what: str) -> None:
    with (folder / "log").open("a") as log:
        log.write(f"{what}\n")


@site.stage
def find(ctx: Context, folder: Path):
    note(folder, "find")
    yield from ("a", "b")


@site.stage(after=find, each=True)
def read(ctx: Context, folder: Path) -> str:
    note(folder, f"read {ctx.key}")
    return f"text of {ctx.key}"


@site.stage(after=read)
def total(ctx: Context, folder: Path) -> int:
    note(folder, "total")
    return len(list(ctx.results("read")))


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/site.db", site) as mill:
        log = Path(folder, "log")
        for name, part in {
            "whole": {"args": {"folder": folder}},
            "from": {"from_stage": total},
            "only": {"only": {"read": "b*", "total": None}},  # of `read`, only these items
        }.items():
            log.unlink(missing_ok=True)
            run = mill.start(site, "example.org", **part)
            mill.work(run=run, slots=1)  # only this run, here and now, until it ends
            run = mill.run(run.id)
            print(f"{name}:".ljust(6), sorted(log.read_text().splitlines()), run.result("total"), "pages")
        print("find:  taken from run", run.stage("find").taken_from)
