"""SQL of the application that runs with the end of every job, whatever ends it: here also a cancellation by a person.

It prints:

    a completed
    b failed
    c cancelled
"""

from sqlalchemy import text

from gristmill import Context, Mill, Permanent, Pipeline

letters = Pipeline("letters")


@letters.stage
def sort(ctx: Context, names: list[str]):
    yield from names


@letters.stage(
    after=sort,
    each=True,
    queue="post",
    on_terminal="UPDATE letter SET state = jobs.state FROM jobs WHERE jobs.key = letter.name",
)
def send(ctx: Context) -> None:
    if ctx.key == "b":
        raise Permanent("no stamp")


if __name__ == "__main__":
    with Mill.open("sqlite:///terminal.db", letters) as mill:
        with mill.transaction() as connection:
            connection.execute(text("CREATE TABLE letter (name text, state text)"))
            connection.execute(text("INSERT INTO letter (name) VALUES ('a'), ('b'), ('c')"))
        mill.start(letters, "today", args={"names": ["a", "b", "c"]})
        mill.work(until="drained", slots=1, queues=["default"])  # sorted, not sent
        (last,) = [job for job in mill.jobs(stage="send") if job.key == "c"]
        mill.cancel_job(last.id)
        mill.work(until="drained", slots=1)
        with mill.transaction() as connection:
            for name, state in connection.execute(text("SELECT * FROM letter ORDER BY name")):
                print(name, state)
