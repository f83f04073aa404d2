"""What is asked for by those who look: a job of its own by its key, the last that failed, what failed since some time, and
how many wait in each queue outside the line.

Only indexes change, and code for 0001 works on. A job that has no key of its own, does not wait outside the line and
succeeds is in none of them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_HAS_KEY = sa.text("stage_id IS NULL AND unique_name IS NOT NULL")
_FAILED = sa.text("fingerprint IS NOT NULL")
_WAITS = sa.text("run_at IS NOT NULL")


def upgrade() -> None:
    op.create_index(
        "gm_job_own_key",
        "gm_job",
        ["task_id", "unique_name", "id"],
        sqlite_where=_HAS_KEY,
        postgresql_where=_HAS_KEY,
    )
    op.create_index("gm_job_failed", "gm_job", ["id"], sqlite_where=_FAILED, postgresql_where=_FAILED)
    op.create_index(
        "gm_attempt_when",
        "gm_attempt",
        ["ended_at", "fingerprint"],
        sqlite_where=_FAILED,
        postgresql_where=_FAILED,
    )
    op.create_index(
        "gm_job_later", "gm_job", ["run_at", "queue_id"], sqlite_where=_WAITS, postgresql_where=_WAITS
    )  # the same with the queue, so that they are counted without a look at each
    op.drop_index("gm_job_due", table_name="gm_job", sqlite_where=_WAITS, postgresql_where=_WAITS)


def downgrade() -> None:
    op.create_index("gm_job_due", "gm_job", ["run_at"], sqlite_where=_WAITS, postgresql_where=_WAITS)
    op.drop_index("gm_job_later", table_name="gm_job", sqlite_where=_WAITS, postgresql_where=_WAITS)
    op.drop_index("gm_attempt_when", table_name="gm_attempt")
    op.drop_index("gm_job_failed", table_name="gm_job")
    op.drop_index("gm_job_own_key", table_name="gm_job")
