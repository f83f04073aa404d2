"""How many attempts failed, by the class of the error.

Only a table is added: code for 0001 works on, and does not count them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "gm_failure",
        sa.Column("error_class", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("error_class", "worker_id"),
        postgresql_with={"fillfactor": "50"},
    )


def downgrade() -> None:
    op.drop_table("gm_failure")
