"""Books have a colour."""

import sqlalchemy as sa
from alembic import op

revision = "s2"
down_revision = "s1"


def upgrade() -> None:
    op.add_column("shelf", sa.Column("colour", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("shelf") as shelf:
        shelf.drop_column("colour")
