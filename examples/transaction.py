"""Your rows and the ledger's in one transaction: a job is asked for with them, and ends with them.

It prints:

    nobody was invited: no such person
    1 member, 1 letter sent exactly once
"""

from tempfile import TemporaryDirectory

from sqlalchemy import text

from gristmill import Context, Mill, task


@task
def send(ctx: Context, name: str) -> None:
    with ctx.transaction() as connection, ctx.finish(connection) as mine:
        if mine:  # False: another attempt has this job by now, and nothing of this one may count
            connection.execute(text("INSERT INTO letter (name) VALUES (:name)"), {"name": name})


def invite(mill: Mill, name: str, known: set) -> None:
    with mill.transaction() as connection:  # both, or neither
        connection.execute(text("INSERT INTO member (name) VALUES (:name)"), {"name": name})
        mill.enqueue(send, args={"name": name}, connection=connection)
        if name not in known:
            raise LookupError("no such person")


if __name__ == "__main__":
    with TemporaryDirectory() as folder, Mill.open(f"sqlite:///{folder}/club.db", send) as mill:
        with mill.transaction() as connection:
            connection.execute(text("CREATE TABLE member (name text)"))
            connection.execute(text("CREATE TABLE letter (name text)"))
        try:
            invite(mill, "nobody", known={"ann"})
        except LookupError as error:
            print(f"nobody was invited: {error}")
        invite(mill, "ann", known={"ann"})
        mill.work(until="drained", slots=1)
        with mill.transaction() as connection:
            members = connection.execute(text("SELECT count(*) FROM member")).scalar()
            letters = connection.execute(text("SELECT count(*) FROM letter")).scalar()
        print(f"{members} member, {letters} letter sent exactly once")
