"""Bringing a database to a schema: Alembic, called as a library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from gristmill.errors import Invalid
from gristmill.ledger.schema import VERSION_TABLE, metadata
from gristmill.ledger.store import Ledger


def _config(**attributes: Any) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes.update(attributes)
    return config


def upgrade(url: str, revision: str = "head") -> None:
    _move(url, command.upgrade, revision)


def downgrade(url: str, revision: str = "-1") -> None:
    _move(url, command.downgrade, revision)


def _move(url: str, move: Any, revision: str) -> None:
    from alembic.util.exc import CommandError

    ledger = Ledger(url)
    try:
        ledger.revision()  # a database that is not there is said so in one line, before Alembic starts
        with ledger.exclusively() as connection:
            move(_config(connection=connection), revision)
    except CommandError as error:
        raise Invalid(f"cannot move the schema to {revision!r}: {error}") from None
    finally:
        ledger.close()


def history() -> list[tuple[str, str]]:
    """All revisions, newest first, with what each one does."""
    scripts = ScriptDirectory.from_config(_config())
    return [(script.revision, script.doc) for script in scripts.walk_revisions()]


def differences(engine: Engine) -> list[str]:
    """How the database's tables differ from the ones this code describes; empty when they agree."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def ours(name: str | None, kind: str, _: Any) -> bool:
        return kind != "table" or (name or "").startswith("gm_")

    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "include_name": ours, "compare_type": True}
        found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    return [str(difference) for difference in found]
