"""An application with a table of its own in the ledger's database. A book's row and the end of its job are one commit.

It prints:

    Emma 4
    long books: Emma
"""

from pathlib import Path

from sqlalchemy import text

from gristmill import Context, Migrations, Mill, task

tables = Migrations(
    "library",
    Path(__file__).with_name("library"),  # the folder of the revisions
    views={"long_book": "SELECT title FROM book WHERE words > 3"},
)


@task
def count(ctx: Context, title: str, body: str):
    with ctx.transaction() as connection, ctx.finish(connection) as mine:
        if mine:
            row = {"title": title, "words": len(body.split())}
            connection.execute(text("INSERT INTO book VALUES (:title, :words)"), row)


if __name__ == "__main__":
    with Mill.open("sqlite:///library.db", tables, count) as mill:  # a new file gets both schemas
        mill.enqueue(count, args={"title": "Emma", "body": "handsome, clever, and rich"})
        mill.work(until="drained")
        with mill.transaction() as connection:
            for title, words in connection.execute(text("SELECT * FROM book")):
                print(title, words)
            print("long books:", *connection.execute(text("SELECT title FROM long_book")).scalars())
