from pathlib import Path
from gristmill import Context, Mill, Permanent, Pipeline, Retries, task

wordcount = Pipeline("wordcount")


@wordcount.stage(queue="find")
def find(ctx: Context, folder: str):
    """Each item yielded becomes a job of the `each` stages after this one, while this one is still looking."""
    for path in sorted(Path(folder).rglob("*.txt")):
        yield path.name, {"path": str(path)}            # key, arguments


@wordcount.stage(after=find, each=True, queue="count", timeout=30, need=0.5,
                 retries=Retries(3, delays=[1, 5, 15]))
def count(ctx: Context, path: str) -> int:
    text = Path(path).read_text()
    if not text.strip():
        raise Permanent("empty file")                    # never retried
    return len(text.split())


@wordcount.stage(after=count)
def total(ctx: Context) -> int:
    return sum(result for key, result in ctx.results("count"))


@task(queue="mail")
async def greet(ctx: Context, name: str) -> str:         # a job on its own, no pipeline
    return f"hello {name}"


if __name__ == "__main__":
    with Mill.open("sqlite:///wordcount.db", wordcount, greet) as mill:
        run = mill.start("wordcount", "books", args={"folder": "texts"}, priority="high")
        job = mill.enqueue(greet, args={"name": "world"})
        mill.work(until="drained")                       # a worker here, until nothing is queued or waits to be retried
        run = mill.run(run.id)
        print(run.state, run.stage("count").completed, run.stage("count").failed, run.result("total"))
        print(mill.job(job.id).result)
