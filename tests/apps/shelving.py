"""An application that keeps tables of its own in the ledger's database."""

from pathlib import Path

from sqlalchemy import BigInteger, Column, MetaData, Table, Text, text

from gristmill import Context, Migrations, task

metadata = MetaData()
shelf = Table("shelf", metadata, Column("book", Text, primary_key=True), Column("job", BigInteger), Column("colour", Text))
VIEWS = {
    "shelf_jobs": "SELECT s.book, s.colour, j.state FROM shelf s JOIN gristmill_jobs j ON j.id = s.job WHERE '%' <> ':x'"
}
tables = Migrations("shelves", Path(__file__).with_name("shelves"), metadata, views=VIEWS)


@task
def put(ctx: Context, book: str) -> None:
    with ctx.transaction() as connection, ctx.finish(connection) as mine:
        if mine:
            connection.execute(text("INSERT INTO shelf (book, job) VALUES (:book, :job)"), {"book": book, "job": ctx.job})
