"""When a run had heard all that its source lists

Runs of before do not say: the next one of each site asks for all years once, by conditional requests.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    moment = sa.Text() if op.get_bind().dialect.name == "sqlite" else sa.DateTime(timezone=True)
    op.add_column("clerk_run", sa.Column("listed", moment))


def downgrade() -> None:
    op.drop_column("clerk_run", "listed")
