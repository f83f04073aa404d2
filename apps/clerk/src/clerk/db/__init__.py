"""clerk's tables and views in the ledger's database, and the SQL that keeps them in step with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from clerk.db.tables import metadata
from clerk.db.views import Kind, views
from gristmill import Migrations

__all__ = ["grants", "migrations"]

_VERSIONS: Final = Path(__file__).with_name("versions")


def migrations(url: str) -> Migrations:
    """What a database at this address needs of clerk."""
    kind: Kind = "postgresql" if url.startswith("postgres") else "sqlite"
    return Migrations("clerk", _VERSIONS, metadata, views(kind))


def grants(role: str) -> list[str]:
    """What a worker's role needs of clerk's tables on PostgreSQL, beside what it needs of the engine's, as a hand."""
    name = '"' + role.replace('"', '""') + '"'
    tables = ", ".join(metadata.tables)
    looked_at = ", ".join(["clerk_version", *views("postgresql")])
    return [f"GRANT SELECT, INSERT, UPDATE ON {tables} TO {name};", f"GRANT SELECT ON {looked_at} TO {name};"]
