"""clerk's own tables, beside the ledger's in the same database. What moves is read from the ledger; here is what people say
of a site, what is known of its documents, and what of a site's state is asked for by the thousand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    false,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

metadata = MetaData()
_ZERO = text("0")


class Moment(TypeDecorator[datetime]):
    """A time: `timestamptz` on PostgreSQL; on SQLite ISO text with its offset, as the ledger's views write it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone, so it is no moment")
        return _iso(value) if dialect.name == "sqlite" else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return (datetime.fromisoformat(value) if isinstance(value, str) else value).astimezone(UTC)


def _iso(value: datetime) -> str:
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


site = Table(
    "clerk_site",
    metadata,
    Column("subdomain", Text, primary_key=True),
    # What an operator says.
    Column("name", Text, nullable=False),
    Column("state", Text),
    Column("country", Text),
    Column("kind", Text),
    Column("scraper", Text, nullable=False),
    Column("start_year", Integer),
    Column("extra", Text, nullable=False, server_default="{}"),  # JSON: settings of the fetcher
    Column("lat", Text),
    Column("lng", Text),
    Column("created_at", Moment, nullable=False),
    # Where it is: a copy of what the ledger says of its latest run, written in the transactions that change that.
    Column("run_id", BigInteger),
    Column("current_stage", Text),
    Column("outcome", Text),  # of the run, once it has ended: completed, unchanged, no_documents, failed, cancelled
    Column("started_at", Moment),
    Column("updated_at", Moment),
    Column("last_error_stage", Text),
    Column("last_error_message", Text),
    Column("last_error_at", Moment),
    Column("extracted_pages", Integer, nullable=False, server_default=_ZERO),
    Column("extraction_pages", Integer, nullable=False, server_default=_ZERO),  # that it is to extract in this run
    # What it has.
    Column("pages", Integer, nullable=False, server_default=_ZERO),
    Column("unpublished", Boolean, nullable=False, server_default=false()),  # meetings.db is newer than what is published
    Column("last_updated", Moment),  # the end of its last run
    Column("last_deployed", Moment),
    Column("last_extracted", Moment),
    CheckConstraint(
        "current_stage IN ('fetch', 'ocr', 'compilation', 'extraction', 'deploy', 'completed')", name="clerk_site_stage"
    ),
    CheckConstraint("length(last_error_message) <= 500", name="clerk_site_error"),
)
Index("idx_sites_current_stage", site.c.current_stage)
Index("idx_sites_updated_at", site.c.updated_at)
Index("clerk_site_turn", site.c.last_updated, site.c.subdomain)  # whose turn it is

# One row per run. It outlives the ledger's, which are pruned, and says which runs somebody has purged.
run = Table(
    "clerk_run",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("subdomain", Text, ForeignKey("clerk_site.subdomain"), nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("finished_at", Moment),
    Column("outcome", Text),
    Column("error", Text),
    Column("returns", Integer, nullable=False, server_default=_ZERO),  # jobs given back, since nobody could work here
    Column("purged", Boolean, nullable=False, server_default=false()),
    Column("listed", Moment),  # when its source had listed all; NULL: it was not asked, or broke off
)
Index("idx_job_tracking_site_id", run.c.subdomain, run.c.run_id)
Index("clerk_run_finished", run.c.finished_at)

document = Table(
    "clerk_document",
    metadata,
    Column("subdomain", Text, ForeignKey("clerk_site.subdomain"), primary_key=True),
    Column("key", Text, primary_key=True),  # kind/meeting/date
    Column("kind", Text, nullable=False),
    Column("meeting", Text, nullable=False),
    Column("date", Text, nullable=False),  # a second one of that day ends in -2
    Column("url", Text),  # NULL: it was found in the storage, not at a source
    Column("sha256", Text),  # NULL: it was never here
    Column("etag", Text),
    Column("modified", Text),
    Column("content_type", Text),
    Column("state", Text, nullable=False),
    Column("error", Text),
    Column("backend", Text),  # that was to read it
    Column("pages", Integer, nullable=False, server_default=_ZERO),
    Column("page_errors", Text, nullable=False, server_default="{}"),  # JSON: number of the page, and why it has no text
    Column("fetched_at", Moment),
    Column("read_at", Moment),
    Column("run_id", BigInteger),  # the last that did something with it
    CheckConstraint("state IN ('missing', 'fetched', 'read', 'failed')", name="clerk_document_state"),
    CheckConstraint("state = 'missing' OR sha256 IS NOT NULL", name="clerk_document_here"),
)
