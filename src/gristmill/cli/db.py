"""`db upgrade|current|history|downgrade|check|grants`: the schema of the database, and who may do what in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Group, Place, as_json, pass_place
from gristmill.cli.exits import FAILED, OK
from gristmill.cli.show import Column

if TYPE_CHECKING:
    from gristmill.ledger.store import Ledger


@click.group(cls=Group)
def db() -> None:
    """Bring the database to the schema that this version needs."""


@db.command()
@click.argument("revision", default="head")
@pass_place
def upgrade(place: Place, revision: str) -> None:
    """Bring the database up to REVISION (default: the newest)."""
    from gristmill.ledger.migrate import upgrade

    before = _revision(place)
    upgrade(place.url, revision)
    _say_change(place, before)


@db.command(short_help="Take the database back to an older revision.")
@click.argument("revision", default="-1")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_place
def downgrade(place: Place, revision: str, yes: bool) -> None:
    """Take the database back to REVISION (default: one step; `base`: remove all tables and what is in them)."""
    from gristmill.ledger.migrate import downgrade

    before = _revision(place)
    if before is None:
        return show.line(f"{place.shown()} has no schema; nothing to do")
    if not yes and show.is_terminal(sys.stdin):
        click.confirm(
            f"{place.shown()} is at {before}. Going back deletes what older versions have no place for. Go on?", abort=True
        )
    downgrade(place.url, revision)
    return _say_change(place, before)


@db.command(short_help="Show which schema the database has, and which is needed.")
@as_json
@pass_place
def current(place: Place, json_wanted: bool) -> None:
    """Show which schema the database has, and which one this version needs."""
    from gristmill.ledger.schema import REVISION

    found = _revision(place)
    ok = found is not None and _accepts(place, found)
    if json_wanted:
        return show.document({"database": place.shown(), "revision": found, "needed": REVISION, "ok": ok})
    if ok:
        return show.line(
            f"{found} ({'what this version needs' if found == REVISION else 'newer, and accepts this version'})"
        )
    if found is not None and found > REVISION:
        return show.line(f"{found}; it does not accept this version, which is made for {REVISION}; update Gristmill here")
    return show.line(f"{found or 'no schema'}; this version needs {REVISION}; run: {place.command('db', 'upgrade')}")


@db.command()
@as_json
@pass_place
def history(place: Place, json_wanted: bool) -> None:
    """List all revisions of the schema, newest first."""
    from gristmill.ledger.migrate import history

    revisions = history()
    if json_wanted:
        return show.document([{"revision": revision, "what": what} for revision, what in revisions])
    return show.table([Column("revision"), Column("what", free=True)], revisions)


@db.command(short_help="Compare the tables with those this version describes.")
@as_json
@pass_place
def check(place: Place, json_wanted: bool) -> int:
    """Compare the database's tables with those this version describes; exit 1 when they differ."""
    from gristmill.ledger.migrate import differences

    place.refuse_new_file()
    with _ledger(place) as ledger:
        ledger.check_schema()
        found = differences(ledger.engine)
    if json_wanted:
        show.document({"database": place.shown(), "ok": not found, "differences": found})
    else:
        for difference in found:
            show.line(difference)
        show.line(f"{show.plural(len(found), 'difference')}" if found else f"{place.shown()} is as it should be")
    return FAILED if found else OK


@db.command(short_help="Print what a role of PostgreSQL needs; --apply gives it.")
@click.argument("role")
@click.option("--for", "purpose", default="worker", metavar="WHAT", help="worker (default), api or reader.")
@click.option("--apply", is_flag=True, help="Give it, instead of printing it.")
@as_json
@pass_place
def grants(place: Place, role: str, purpose: str, apply: bool, json_wanted: bool) -> None:
    """Print the least that ROLE needs on PostgreSQL, as GRANTs.

    A worker may do what an application can; the API only asks for work and acts on it; a reader looks. Do it again
    after an upgrade.
    """
    from gristmill.cli.values import one_of
    from gristmill.ledger.grants import PURPOSES, grants

    one_of("purpose", PURPOSES)(purpose)
    with _ledger(place) as ledger:
        found = grants(ledger, role, purpose, apply=apply)
    if json_wanted:
        return show.document({"role": role, "for": purpose, "applied": apply, "statements": found})
    for statement in found if not apply else ():
        show.line(statement)
    return show.line(f"{role} may now do in {place.shown()} what {purpose} needs") if apply else None


@contextmanager
def _ledger(place: Place) -> Iterator[Ledger]:
    from gristmill.ledger.store import Ledger

    ledger = Ledger(place.url)
    try:
        yield ledger
    finally:
        ledger.close()


def _revision(place: Place) -> str | None:
    """Asking must not make a file."""
    if place.is_new_file():
        return None
    with _ledger(place) as ledger:
        return ledger.revision()


def _accepts(place: Place, found: str) -> bool:
    with _ledger(place) as ledger:
        return ledger.accepts(found)


def _say_change(place: Place, before: str | None) -> None:
    after = _revision(place)
    if before == after:
        show.line(f"{place.shown()} is at {after or 'no schema'} already")
    else:
        show.line(f"{place.shown()} went from {before or 'no schema'} to {after or 'no schema'}")
