"""Alembic's entry: runs the migrations on the connection that `ledger.migrate` gives."""

from alembic import context

from gristmill.ledger.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=False,  # the caller's transaction holds all of it
)
context.run_migrations()
