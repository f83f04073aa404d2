"""Books, and how many words each has."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table("book", sa.Column("title", sa.Text, primary_key=True), sa.Column("words", sa.Integer, nullable=False))


def downgrade() -> None:
    op.drop_table("book")
