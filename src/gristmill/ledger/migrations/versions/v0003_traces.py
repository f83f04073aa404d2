"""The trace that a job or run was asked for in, where traces are on.

Only a table is added: code for 0001 works on, and tells nobody of what it does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "gm_trace",
        sa.Column("kind", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "number"),
    )
    op.create_index("gm_trace_age", "gm_trace", ["at"])


def downgrade() -> None:
    op.drop_index("gm_trace_age", table_name="gm_trace")
    op.drop_table("gm_trace")
