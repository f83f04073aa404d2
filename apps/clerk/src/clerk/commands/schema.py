"""The schema: moved by the engine's command for both, its tables and clerk's; new revisions of clerk's are written here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url

from clerk.app import database
from clerk.db import migrations
from clerk.errors import ClerkError, NoDatabase, Usage
from clerk.storage import write

if TYPE_CHECKING:
    from clerk.config import Config

_USAGE, _UNAVAILABLE = 64, 69  # exit codes of the engine's command
_ENGINE = re.compile(r"gristmill -A clerk\.app (?:--database \S+ )?")

_TEMPLATE = '''"""{message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
{upgrade}


def downgrade() -> None:
{downgrade}
'''


def moved(config: Config, *words: str) -> list[str]:
    """What the engine's command says; its errors are those of clerk."""
    done = database(config, *words)
    said = [_ENGINE.sub("clerk ", line) for line in done.stdout.splitlines()]
    if not done.returncode:
        return said
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    why = _ENGINE.sub("clerk ", lines[-1].removeprefix("Error: "))
    if done.returncode == _UNAVAILABLE:
        named = "" if "clerk db upgrade" in why else "; `clerk db upgrade` once it is there"
        raise NoDatabase(f"{why}{named}")
    raise Usage(why) if done.returncode == _USAGE else ClerkError(why)


@contextmanager
def _connected(config: Config) -> Iterator[Connection]:
    url = make_url(config.database_url)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


# ---- new revisions


def new_revision(config: Config, message: str) -> Path:
    """A file beside the others, with the difference between this database and the tables that the code describes."""
    from alembic.autogenerate import produce_migrations, render_python_code
    from alembic.migration import MigrationContext

    words = re.sub(r"[^a-z0-9]+", "_", message.lower()).strip("_")[:40]
    if not words or '"""' in message or "\\" in message:
        raise Usage(f"{message[:60]!r} says nothing that a file could be called after")
    moved(config, "check")  # or an error that says what the database needs first
    own = migrations(config.database_url)
    metadata = own.metadata
    if metadata is None:
        raise ClerkError("clerk describes no tables")
    ours = set(metadata.tables)

    def is_ours(thing: Any, name: str | None, kind: str, reflected: bool, other: Any) -> bool:
        return kind != "table" or name in ours

    newest = max(path.name[1:5] for path in own.folder.glob("v[0-9][0-9][0-9][0-9]_*.py"))
    number = f"{int(newest) + 1:04}"
    with _connected(config) as connection:
        options = {"version_table": own.version_table, "include_object": is_ours, "compare_type": False}
        found = produce_migrations(MigrationContext.configure(connection, opts=options), metadata)
    if found.upgrade_ops is None or found.upgrade_ops.is_empty():
        raise ClerkError("the database lacks nothing that clerk's tables describe; change clerk.db.tables first")
    text = _TEMPLATE.format(
        message=message,
        revision=number,
        before=newest,
        upgrade=_code(render_python_code(found.upgrade_ops)),
        downgrade=_code(render_python_code(found.downgrade_ops)),  # type: ignore[arg-type]
    )
    path = own.folder / f"v{number}_{words}.py"
    write(path, text.encode())
    return path


def _code(text: str) -> str:
    """Without Alembic's comments; these alone are not indented."""
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))
