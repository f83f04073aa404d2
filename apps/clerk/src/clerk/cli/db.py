"""`db upgrade|current|history|migrate|downgrade|grants`: the schema of the database, and who may do what in it."""

from __future__ import annotations

import click

from clerk.cli.app import Command, Place, confirm, line, pass_place, refuse_silence, yes_option


class _Group(click.Group):
    command_class = Command


@click.group(cls=_Group)
def db() -> None:
    """Bring the database to the schema that this version needs."""


@db.command()
@pass_place
def upgrade(place: Place) -> None:
    """Bring the database up to date; a new SQLite file is made."""
    _pass_on(place, "upgrade")


@db.command()
@pass_place
def current(place: Place) -> None:
    """Show which schema the database has, and which one is needed."""
    _pass_on(place, "current")


@db.command()
@pass_place
def history(place: Place) -> None:
    """List all revisions of the schema, newest first."""
    _pass_on(place, "history")


@db.command(short_help="Write a new revision, for who changes clerk's tables.")
@click.option("-m", "--message", required=True, metavar="MSG", help="What it changes.")
@pass_place
def migrate(place: Place, message: str) -> None:
    """Write a new revision with what the database lacks of the tables that clerk describes. Read it before you use it."""
    from clerk.commands import schema

    place.say(f"Wrote {schema.new_revision(place.config, message)}")


@db.command(short_help="Take clerk's tables back to an older revision.")
@click.argument("revision", metavar="[REV]", default="-1")
@yes_option
@pass_place
def downgrade(place: Place, revision: str, yes: bool) -> None:
    """Take clerk's tables back to REV (default: one step; base: remove them and what is in them)."""
    refuse_silence(yes)
    if not yes:
        confirm("Going back deletes what older versions have no place for. Go on?")
    _pass_on(place, "downgrade", "--yes", "--of", "clerk", "--", revision)


@db.command(short_help="Print what a worker's role needs on PostgreSQL.")
@click.argument("role")
@pass_place
def grants(place: Place, role: str) -> None:
    """Print the GRANTs that ROLE needs to work: SELECT, INSERT and UPDATE.

    Nobody but the pruner may delete sites, documents, runs or jobs; only what the engine itself clears as it works.
    """
    from clerk.db import grants

    _pass_on(place, "grants", "--for", "hand", "--", role)
    for statement in grants(role):
        line(statement)


def _pass_on(place: Place, *words: str) -> None:
    """The engine moves its tables and clerk's in one step."""
    from clerk.commands import schema

    for text in schema.moved(place.config, *words):
        line(text)
