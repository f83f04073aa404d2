"""For those who look on: tokens, events in the order of their commits, what was done in each minute.

Only tables are added: code for 0001 works on, but says nothing of what it changes and counts no minutes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_COUNTS = ("completed", "completed_with_errors", "failed", "skipped", "cancelled", "retried", "ran", "waited", "waits")
_BUCKETS = [f"{what}_{n}" for what in ("ran", "waited") for n in range(13)]


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "gm_token",
        sa.Column("id", number, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="gm_token_role"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
        sqlite_autoincrement=True,
    )
    alive = sa.text("revoked_at IS NULL")
    op.create_index("gm_token_name", "gm_token", ["name"], unique=True, sqlite_where=alive, postgresql_where=alive)
    op.create_table(
        "gm_event",
        sa.Column("id", number, nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("data", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("place"),
        sqlite_autoincrement=True,
    )
    new = sa.text("place IS NULL")
    op.create_index("gm_event_new", "gm_event", ["id"], sqlite_where=new, postgresql_where=new)
    zero = sa.text("0")
    op.create_table(
        "gm_minute",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("queue_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("task_id", sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), server_default=zero, nullable=False) for name in (*_COUNTS, *_BUCKETS)),
        sa.PrimaryKeyConstraint("minute", "worker_id", "queue_id", "task_id"),
        postgresql_with={"fillfactor": "50"},
    )


def downgrade() -> None:
    op.drop_table("gm_minute")
    op.drop_index("gm_event_new", table_name="gm_event")
    op.drop_table("gm_event")
    op.drop_index("gm_token_name", table_name="gm_token")
    op.drop_table("gm_token")
