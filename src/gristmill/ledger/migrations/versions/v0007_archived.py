"""What was archived is found, however few jobs are.

Only an index is new, and code for 0001 works on. A job is in it once somebody archives it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_ARCHIVED = sa.text("archived_at IS NOT NULL")


def upgrade() -> None:
    op.create_index("gm_job_archived", "gm_job", ["id"], sqlite_where=_ARCHIVED, postgresql_where=_ARCHIVED)


def downgrade() -> None:
    op.drop_index("gm_job_archived", table_name="gm_job")
