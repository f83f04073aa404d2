"""The demonstration that `./run demo engine` shows: council minutes of three towns, read, indexed, published on SQLite.

The documents are made here, always the same ones; some are damaged on purpose, because real ones are.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date, timedelta
from itertools import combinations
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from gristmill import Context, Permanent, Pipeline, Retries, Skip

if TYPE_CHECKING:
    from gristmill.mill import Mill
    from gristmill.model import Job, Run

TOWNS = ("harrow-bay", "millbrook", "oakfield")
_FLAKY = "2023-02-21.txt"  # the file that the archive does not give out at the first request
_ALIKE = 0.9  # share of equal fingerprint parts from which two documents count as copies

# ---- the pipeline: find → read each → index → publish

minutes = Pipeline("minutes")


@minutes.stage(queue="find")
def find(ctx: Context, folder: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Every document of one town. Reading starts while this still looks."""
    for path in sorted(Path(folder).glob("*.txt")):
        yield path.name, {"path": str(path)}


@minutes.stage(
    after=find,
    each=True,
    queue="read",
    timeout=30,
    need=0.5,
    retries=Retries(0, by_error={ConnectionError: Retries(3, delays=[1, 5])}),
)
def read(ctx: Context, path: str) -> dict[str, Any]:
    """What one document says: its words, its votes, and a fingerprint to find copies by."""
    if ctx.key == _FLAKY and ctx.subject == TOWNS[0] and ctx.attempt == 1:
        ctx.logger.warning("the archive closed the connection after 0 bytes")
        raise ConnectionError("the archive does not answer")
    text = Path(path).read_bytes().decode()
    if not text.strip():
        raise Permanent("empty file")
    if text.startswith("DRAFT"):
        raise Skip("a draft, not adopted yet")
    words = re.findall(r"[a-z]+", text.lower())
    return {
        "words": len(words),
        "votes": Counter(re.findall(r"motion (carried|rejected)", text)),
        "matters": Counter(re.findall(r"The council discussed ([^.]+)", text)),
        "speakers": Counter(re.findall(r"Council member (\w+)", text)),
        "print": fingerprint(words),
    }


@minutes.stage(after=read)
def index(ctx: Context) -> dict[str, Any]:
    """All documents of the town together; those that could not be read are simply not among them."""
    words = 0
    counts: dict[str, Counter[str]] = {"votes": Counter(), "matters": Counter(), "speakers": Counter()}
    prints: dict[str, list[int]] = {}
    for key, document in ctx.results("read"):
        words += document["words"]
        prints[key] = document["print"]
        for what, counter in counts.items():
            counter.update(document[what])
    return {"words": words, **{what: dict(c.most_common(5)) for what, c in counts.items()}, "copies": copies(prints)}


@minutes.stage(after=index)
def publish(ctx: Context, folder: str) -> str:
    """A page for people."""
    [(_, found)] = ctx.results("index")
    stage = ctx.counts("read")
    lines = [
        f"# Minutes of {ctx.subject}",
        f"{stage.completed} documents, {found['words']:,} words; {stage.failed} could not be read.",
    ]
    for what in ("votes", "matters", "speakers"):
        lines += [f"\n## {what.title()}\n", *(f"- {name}: {number}" for name, number in found[what].items())]
    page = Path(folder).parent / f"{ctx.subject}.md"
    page.write_text("\n".join(lines) + "\n")
    return str(page)


def fingerprint(words: Sequence[str], parts: int = 64) -> list[int]:
    """MinHash over groups of three words: the share of equal parts is about the share of equal text."""
    hashes = {crc32(" ".join(words[n : n + 3]).encode()) for n in range(len(words) - 2)}
    return [min((value * (2 * n + 1) * 0x9E3779B1) & 0xFFFFFFFF for value in hashes) for n in range(parts)]


def copies(prints: dict[str, list[int]]) -> list[tuple[str, str, float]]:
    found = []
    for one, other in combinations(sorted(prints), 2):
        alike = sum(a == b for a, b in zip(prints[one], prints[other], strict=True)) / len(prints[one])
        if alike >= _ALIKE:
            found.append((one, other, alike))
    return found


# ---- the documents


def make_documents(folder: Path, number: int) -> None:
    """Minutes of each town, the same at every call. A few are empty, damaged, drafts, or filed twice."""
    rng = Random(1729)
    for town in TOWNS:
        (folder / town).mkdir(parents=True, exist_ok=True)
    files = [(folder / town, date(2023, 1, 3) + timedelta(weeks=week)) for week in range(number) for town in TOWNS]
    for place, day in files[: number - len(TOWNS)]:
        (place / f"{day}.txt").write_text(document(rng, place.name, day))
    for place, day in files[6:9]:
        amended = (place / f"{day}.txt").read_text() + "Amended: the list of those present.\n"
        (place / f"{day}-amended.txt").write_text(amended)
    for place, day in files[10:13]:
        (place / f"{day}.txt").write_text("")
    for place, day in files[15:17]:
        (place / f"{day}.txt").write_text("DRAFT " + document(rng, place.name, day))
    place, day = files[13]
    (place / f"{day}.txt").write_bytes((place / f"{day}.txt").read_bytes()[:900] + b"\xff\xfe\x00\x81 scan damaged")


_PEOPLE = ("Abbott", "Bianchi", "Castillo", "Dietrich", "Evans", "Farouk", "Grant", "Hayashi", "Iversen", "Jansen")
_MATTERS = (
    "the resurfacing of Mill Road",
    "the annual budget of the public library",
    "a variance for the parking lot behind the harbour office",
    "the contract for collecting household waste",
    "new lighting along the river footpath",
    "the replacement of two water mains",
    "the lease of the old schoolhouse",
    "a grant for the volunteer fire brigade",
    "speed limits near the elementary school",
    "the zoning of the northern meadow",
)
_REMARKS = (
    "asked for the estimate in writing before the next meeting",
    "reminded the council that residents along the street were promised an answer",
    "thanked the staff for their report and moved approval",
    "wished it recorded that the drainage had failed twice last winter",
    "noted that the insurance covers only part of the expense",
    "suggested a public hearing before anything is signed",
    "spoke against the proposal, citing the traffic study",
)


def document(rng: Random, town: str, day: date) -> str:
    """One meeting of a council."""
    council = rng.sample(_PEOPLE, 7)
    lines = [
        f"Minutes of the Town Council of {town.replace('-', ' ').title()}, {day:%B %d, %Y}",
        f"Present: {', '.join(council)}. The mayor called the meeting to order at {rng.randint(5, 7)}:30 p.m.",
    ]
    for item, matter in enumerate(rng.sample(_MATTERS, rng.randint(4, 7)), 1):
        lines.append(f"\n{item}. The council discussed {matter}.")
        lines += [f"Council member {rng.choice(council)} {rng.choice(_REMARKS)}." for _ in range(rng.randint(4, 12))]
        ayes = rng.randint(2, 7)
        lines.append(f"Ayes {ayes}, nays {7 - ayes}: motion {'carried' if ayes > 3 else 'rejected'}.")
    return "\n".join([*lines, "\nThere being no further business, the meeting was adjourned.\n"])


# ---- showing it


def main(argv: Sequence[str] | None = None) -> int:
    from argparse import ArgumentParser
    from tempfile import mkdtemp

    from gristmill.cli.show import never_fail_on_a_letter

    never_fail_on_a_letter()
    parser = ArgumentParser(prog="./run demo engine", description="Council minutes of three towns, through a pipeline.")
    parser.add_argument("--documents", type=int, default=200, metavar="N", help="how many to make (default: 200)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where (default: a new folder for temporary files)")
    given = parser.parse_args(argv)
    if not 30 <= given.documents <= 100_000:
        parser.error("--documents wants a number from 30 to 100,000")
    folder = given.folder or Path(mkdtemp(prefix="gristmill-demo-"))
    try:
        show(folder.absolute(), given.documents)
    except KeyboardInterrupt:
        return 130
    return 0


def show(folder: Path, documents: int) -> None:
    from gristmill.mill import Mill

    print(f"Making {documents} council minutes of {len(TOWNS)} towns in {folder}")
    make_documents(folder, documents)
    url = f"sqlite:///{folder}/demo.db"
    with Mill.open(url, minutes) as mill:
        runs = [mill.start(minutes, town, args={"folder": str(folder / town)}).id for town in TOWNS]
        print("Starting a run of find → read each → index → publish for each town\n", flush=True)
        before = time.monotonic()
        ended = work_and_watch(mill, runs)
        report(mill, ended, time.monotonic() - before)
        damaged = [job for job in mill.jobs(state="failed") if job.error_class == "UnicodeDecodeError"]
    print_next(url, ended, damaged)


def work_and_watch(mill: Mill, runs: Sequence[int]) -> list[Run]:
    """A worker in a thread of this process (its jobs run in processes of their own), and what it does, live."""
    from gristmill.cli.live import follow

    worker = mill.worker()
    with ThreadPoolExecutor(1) as threads:
        working: Future[None] = threads.submit(worker.run, "drained")

        def look() -> list[Run]:
            over = working.done()
            found = [mill.run(number) for number in runs]
            if over and not all(run.terminal for run in found):
                working.result()
                raise RuntimeError("the worker ended before the runs did")
            return found

        try:
            return follow(look, sys.stdout)
        except BaseException:
            worker.stop()
            raise


def report(mill: Mill, runs: Sequence[Run], seconds: float) -> None:
    from gristmill.cli.show import count, heading, line

    line()
    heading("What was found")
    print_towns(runs)
    line()
    heading("What could not be read (the rest went on without it)")
    print_failed([job for run in runs for job in mill.jobs(run=run.id, state="failed", limit=20)])
    line()
    heading("What else")
    for run in runs:
        for one, other, alike in run.result("index")["copies"]:
            line(f"  {run.subject}: {one} and {other} are {alike:.0%} alike")
    for run in runs:
        for job in mill.jobs(run=run.id, stage="read", state="completed", limit=100_000):
            if job.errors:
                first = mill.attempts(job.id)[-1]
                line(f"  {job.subject}: {job.key} needed {job.errors + 1} attempts: {first.error}")
    jobs = sum(stage.done for run in runs for stage in run.stages)
    line(f"  {count(jobs)} jobs in {seconds:.1f} s, start-up and a retry after 1 s included: {jobs / seconds:,.0f} jobs/s")
    line(f"  pages written: {runs[0].result('publish')} …")


def print_towns(runs: Sequence[Run]) -> None:
    from gristmill.cli.show import Column, count, table

    numbers = ("documents", "read", "failed", "skipped", "words", "motions carried", "rejected")
    columns = [Column("town"), *(Column(title, right=True) for title in numbers), Column("most discussed", free=True)]
    rows = []
    for run in runs:
        stage, found = run.stage("read"), run.result("index")
        votes = [found["votes"].get(what, 0) for what in ("carried", "rejected")]
        values = [stage.total, stage.completed, stage.failed, stage.skipped, found["words"], *votes]
        rows.append([run.subject, *map(count, values), next(iter(found["matters"]))])
    table(columns, rows, "  ")


def print_failed(failed: Sequence[Job]) -> None:
    from gristmill.cli.show import Column, table

    columns = [Column("job", right=True), Column("town"), Column("document"), Column("reason", free=True)]
    table(columns, [[str(job.id), job.subject or "", job.key or "", job.error or ""] for job in failed], "  ")


def print_next(url: str, runs: Sequence[Run], damaged: Sequence[Job]) -> None:
    """Commands that work when they are pasted here."""
    from gristmill.cli.show import heading, line

    command = Path(sys.executable).with_name("gristmill")
    if command.is_relative_to(Path.cwd()):
        command = command.relative_to(Path.cwd())
    line()
    heading("Everything about it is in one SQLite file. Look around:")
    shows = [f"job show {job.id}" for job in damaged]
    for rest in ("status", f"run show {runs[0].id}", "job list --state failed", *shows):
        line(f"  {command} --database {url} {rest}")


if __name__ == "__main__":
    sys.exit(main())
