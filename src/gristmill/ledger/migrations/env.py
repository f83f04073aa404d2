"""Alembic's entry: runs migrations, the ledger's or an application's, on the connection that `ledger.migrate` gives."""

from alembic import context

given = context.config.attributes
context.configure(
    connection=given["connection"],
    target_metadata=given["metadata"],
    version_table=given["version_table"],
    transactional_ddl=False,  # the caller's transaction holds all of it
)
context.run_migrations()
