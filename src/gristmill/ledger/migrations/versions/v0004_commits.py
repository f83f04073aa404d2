"""The number of each connection's last transaction, to tell after an outage whether it was committed.

Only a table is added: code for 0001 works on, and believes what PostgreSQL says of its own numbers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "gm_commit",
        sa.Column("connection", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("connection"),
        postgresql_with={"fillfactor": "50"},
    )


def downgrade() -> None:
    op.drop_table("gm_commit")
