"""clerk's tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from clerk.db import older

Moment = sa.Text | sa.DateTime

revision = "0001"
down_revision = None


def upgrade() -> None:
    moment = sa.Text() if op.get_bind().dialect.name == "sqlite" else sa.DateTime(timezone=True)
    older.free_indexes(op.get_bind())
    _site(moment)
    _run(moment)
    _document(moment)


def _site(moment: Moment) -> None:
    op.create_table(
        "clerk_site",
        sa.Column("subdomain", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text()),
        sa.Column("country", sa.Text()),
        sa.Column("kind", sa.Text()),
        sa.Column("scraper", sa.Text(), nullable=False),
        sa.Column("start_year", sa.Integer()),
        sa.Column("extra", sa.Text(), server_default="{}", nullable=False),
        sa.Column("lat", sa.Text()),
        sa.Column("lng", sa.Text()),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("run_id", sa.BigInteger()),
        sa.Column("current_stage", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("started_at", moment),
        sa.Column("updated_at", moment),
        sa.Column("last_error_stage", sa.Text()),
        sa.Column("last_error_message", sa.Text()),
        sa.Column("last_error_at", moment),
        sa.Column("extracted_pages", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("extraction_pages", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("pages", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unpublished", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("last_updated", moment),
        sa.Column("last_deployed", moment),
        sa.Column("last_extracted", moment),
        sa.PrimaryKeyConstraint("subdomain"),
        sa.CheckConstraint(
            "current_stage IN ('fetch', 'ocr', 'compilation', 'extraction', 'deploy', 'completed')", name="clerk_site_stage"
        ),
        sa.CheckConstraint("length(last_error_message) <= 500", name="clerk_site_error"),
    )
    op.create_index("idx_sites_current_stage", "clerk_site", ["current_stage"])
    op.create_index("idx_sites_updated_at", "clerk_site", ["updated_at"])
    op.create_index("clerk_site_turn", "clerk_site", ["last_updated", "subdomain"])


def _run(moment: Moment) -> None:
    op.create_table(
        "clerk_run",
        sa.Column("run_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("subdomain", sa.Text(), nullable=False),
        sa.Column("started_at", moment, nullable=False),
        sa.Column("finished_at", moment),
        sa.Column("outcome", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("returns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("purged", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("run_id"),
        sa.ForeignKeyConstraint(["subdomain"], ["clerk_site.subdomain"]),
    )
    op.create_index("idx_job_tracking_site_id", "clerk_run", ["subdomain", "run_id"])
    op.create_index("clerk_run_finished", "clerk_run", ["finished_at"])


def _document(moment: Moment) -> None:
    op.create_table(
        "clerk_document",
        sa.Column("subdomain", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("meeting", sa.Text(), nullable=False),
        sa.Column("date", sa.Text(), nullable=False),
        sa.Column("url", sa.Text()),
        sa.Column("sha256", sa.Text()),
        sa.Column("etag", sa.Text()),
        sa.Column("modified", sa.Text()),
        sa.Column("content_type", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("backend", sa.Text()),
        sa.Column("pages", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("page_errors", sa.Text(), server_default="{}", nullable=False),
        sa.Column("fetched_at", moment),
        sa.Column("read_at", moment),
        sa.Column("run_id", sa.BigInteger()),
        sa.PrimaryKeyConstraint("subdomain", "key"),
        sa.ForeignKeyConstraint(["subdomain"], ["clerk_site.subdomain"]),
        sa.CheckConstraint("state IN ('missing', 'fetched', 'read', 'failed')", name="clerk_document_state"),
        sa.CheckConstraint("state = 'missing' OR sha256 IS NOT NULL", name="clerk_document_here"),
    )


def downgrade() -> None:
    op.drop_table("clerk_document")
    op.drop_table("clerk_run")
    op.drop_table("clerk_site")
    older.put_back(op.get_bind())
