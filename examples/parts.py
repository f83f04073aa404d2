"""A long document is one item whose pages are parts: jobs of their own, with their own time limit and retries.

It prints:

    completed_with_errors: 2 documents
    short: 2 pages, none missing
    long: 11 pages, missing: 07
    job 3 had 12 parts, called again when the last had ended: attempt 2
"""

from tempfile import TemporaryDirectory

from gristmill import Context, Mill, Permanent, Pipeline

PAGES = {"short": 2, "long": 12}

scans = Pipeline("scans")


@scans.stage
def find(ctx: Context):
    yield from PAGES


@scans.stage(after=find, each=True, queue="documents")
def read(ctx: Context) -> str:
    numbers = range(1, PAGES[ctx.key] + 1)
    pages = ctx.parts(page, ((f"{number:02}", {"document": ctx.key, "number": number}) for number in numbers))
    # From here on all pages have ended.
    words = dict(pages)
    return f"{len(words)} pages, {'missing: ' + ', '.join(pages.failed) if pages.failed else 'none missing'}"


@read.part(queue="pages", timeout=60, retries=2, need=0.9)
def page(ctx: Context, document: str, number: int) -> str:
    if number == 7:
        raise Permanent("too dark to read")
    return f"page {number} of {document}"


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/parts.db", scans) as mill:
        run = mill.start(scans, "archive")
        mill.work(until="drained", slots=1)
        run = mill.run(run.id)
        print(f"{run.state}: {run.stage('read').total} documents")
        for key, said in sorted(mill.results(run, "read"), reverse=True):
            print(f"{key}: {said}")
        [long] = [job for job in mill.jobs(run=run.id) if job.key == "long"]
        print(f"job {long.id} had {long.parts} parts, called again when the last had ended: attempt {long.attempt}")
