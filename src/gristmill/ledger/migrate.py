"""Bringing a database to a schema: Alembic, called as a library.

There is the ledger's history, and one for each application that keeps tables of its own in the same database. Each has
its own table for its version. They move together: the ledger first on the way up, and last on the way down.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, inspect

from gristmill.application import Migrations
from gristmill.errors import Invalid, did_you_mean
from gristmill.ledger.columns import REVISION, VERSION_TABLE
from gristmill.ledger.schema import metadata
from gristmill.ledger.standing import LEDGER, head
from gristmill.ledger.store import Ledger

_HERE = Path(__file__).parent / "migrations"


class Step(NamedTuple):
    """A revision of a history."""

    revision: str
    what: str
    name: str


def _config(own: Migrations | None, connection: Any = None) -> Config:
    if own is not None and not own.folder.is_dir():
        raise Invalid(f"migrations {own.name!r}: there is no folder {own.folder}")
    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    if own is not None:
        config.set_main_option("version_locations", str(own.folder).replace("%", "%%"))
        for name in ("path_separator", "version_path_separator"):  # of newer and of older versions of Alembic
            config.set_main_option(name, "os")
        if os.pathsep in str(own.folder):
            raise Invalid(f"migrations {own.name!r}: the path {own.folder} has a {os.pathsep!r}, which Alembic cannot read")
    config.attributes["connection"] = connection
    config.attributes["metadata"] = metadata if own is None else own.metadata
    config.attributes["version_table"] = VERSION_TABLE if own is None else own.version_table
    return config


def upgrade(url: str, revision: str = "head", own: Sequence[Migrations] = (), of: str | None = None) -> None:
    """Moves all histories up, or with `of` the one that is named."""
    _move(url, command.upgrade, revision, _chosen(revision, own, of), own)


def downgrade(url: str, revision: str = "-1", own: Sequence[Migrations] = (), of: str | None = None) -> None:
    _move(url, command.downgrade, revision, _chosen(revision, own, of)[::-1], own)


def _chosen(revision: str, own: Sequence[Migrations], of: str | None) -> list[Migrations | None]:
    """The histories that a move is about; None: the ledger's."""
    named: dict[str, Migrations | None] = {LEDGER: None} | {history.name: history for history in own}
    if of is not None:
        if of not in named:
            raise Invalid(f"there is no history {of!r}{did_you_mean(of, named)}; there is: {', '.join(named)}")
        return [named[of]]
    if own and revision not in ("head", "base"):
        raise Invalid(f"{revision!r} of which history? Say --of NAME; there is: {', '.join(named)}")
    return list(named.values())


def _move(url: str, move: Any, revision: str, histories: Sequence[Migrations | None], own: Sequence[Migrations]) -> None:
    ledger = Ledger(url)
    try:
        ledger.revision()  # a database that is not there is said so in one line, before Alembic starts
        with ledger.exclusively() as connection:
            for history in reversed(own):
                for view in reversed(history.views):
                    connection.exec_driver_sql(f"DROP VIEW IF EXISTS {view}")
            for each in histories:
                _move_one(_config(each, connection), move, revision, each)
            _make_views(connection, own)
    finally:
        ledger.close()


def _make_views(connection: Connection, own: Sequence[Migrations]) -> None:
    """Of those whose tables, and the ledger's, are what the queries were written for."""
    if _revision(connection, VERSION_TABLE) != REVISION:
        return
    for history in own:
        if history.views and _revision(connection, history.version_table) == head(history):
            for view, query in history.views.items():
                connection.exec_driver_sql(f"CREATE VIEW {view} AS {query}", execution_options={"no_parameters": True})


def _revision(connection: Connection, table: str) -> str | None:
    """The revision in this transaction, which others do not see yet."""
    return MigrationContext.configure(connection, opts={"version_table": table}).get_current_revision()


def _move_one(config: Config, move: Any, revision: str, history: Migrations | None) -> None:
    try:
        move(config, revision)
    except CommandError as error:
        whose = "the schema" if history is None else f"the tables of {history.name!r}"
        raise Invalid(f"cannot move {whose} to {revision!r}: {error}") from None


def history(own: Sequence[Migrations] = ()) -> list[Step]:
    """All revisions, newest first, with what each one does; the ledger's come first."""
    found: list[Step] = []
    for each in (None, *own):
        scripts = ScriptDirectory.from_config(_config(each))
        name = LEDGER if each is None else each.name
        found += [Step(script.revision, script.doc, name) for script in scripts.walk_revisions()]
    return found


def head_by_alembic(own: Migrations) -> str | None:
    """The revision that an application's code needs, whatever its history looks like."""
    try:
        return ScriptDirectory.from_config(_config(own)).get_current_head()
    except CommandError as error:
        raise Invalid(f"migrations {own.name!r} in {own.folder}: {error}") from None


def differences(engine: Engine, own: Sequence[Migrations] = ()) -> list[str]:
    """How the database's tables differ from the ones this code describes; empty when they agree."""
    from alembic.autogenerate import compare_metadata

    found: list[Any] = []
    with engine.connect() as connection:
        for described, table in [(metadata, VERSION_TABLE), *((each.metadata, each.version_table) for each in own)]:
            if described is None:
                continue
            theirs = None if described is metadata else set(described.tables)

            def is_of_it(name: str | None, kind: str, _: Any, theirs: set[str] | None = theirs) -> bool:
                return kind != "table" or ((name or "").startswith("gm_") if theirs is None else name in theirs)

            options = {"version_table": table, "include_name": is_of_it, "compare_type": True}
            found += compare_metadata(MigrationContext.configure(connection, opts=options), described)
        there = set(inspect(connection).get_view_names())
    missing = [f"the view {view!r} is missing" for each in own for view in each.views if view not in there]
    return [str(difference) for difference in found] + missing
