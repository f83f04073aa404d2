"""A shelf."""

import sqlalchemy as sa
from alembic import op

revision = "s1"
down_revision = None


def upgrade() -> None:
    op.create_table("shelf", sa.Column("book", sa.Text, primary_key=True), sa.Column("job", sa.BigInteger))


def downgrade() -> None:
    op.drop_table("shelf")
