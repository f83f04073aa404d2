"""`db upgrade|current|history|downgrade|check|grants`: the schema of the database, and who may do what in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Group, Place, as_json, pass_place
from gristmill.cli.exits import FAILED, OK
from gristmill.cli.show import Column

if TYPE_CHECKING:
    from gristmill.application import Migrations
    from gristmill.ledger.standing import Standing
    from gristmill.ledger.store import Ledger


@click.group(cls=Group)
def db() -> None:
    """Bring the database to the schema that this version needs."""


_of = click.option("--of", metavar="NAME", help="Only this history: gristmill, or one of the application's own.")


@db.command(needs_app=True)
@click.argument("revision", default="head")
@_of
@pass_place
def upgrade(place: Place, revision: str, of: str | None) -> None:
    """Bring the database up to REVISION (default: the newest).

    With an application that has tables of its own, those too.
    """
    from gristmill.ledger.migrate import upgrade

    own = place.own()
    before = _standings(place, own)
    upgrade(place.url, revision, own, of)
    _say_change(place, before, own)


@db.command(short_help="Take the database back to an older revision.", needs_app=True)
@click.argument("revision", default="-1")
@_of
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_place
def downgrade(place: Place, revision: str, of: str | None, yes: bool) -> None:
    """Take the database back to REVISION (default: one step; `base`: remove all tables and what is in them)."""
    from gristmill.ledger.migrate import downgrade

    own = place.own()
    before = _standings(place, own)
    if all(standing.revision is None for standing in before):
        return show.line(f"{place.shown()} has no schema; nothing to do")
    if not yes and show.is_terminal(sys.stdin):
        where = " and ".join(_where(standing, own) for standing in before)
        click.confirm(
            f"{place.shown()} is at {where}. Going back deletes what older versions have no place for. Go on?", abort=True
        )
    downgrade(place.url, revision, own, of)
    return _say_change(place, before, own)


@db.command(short_help="Show which schema the database has, and which is needed.", needs_app=True)
@as_json
@pass_place
def current(place: Place, json_wanted: bool) -> None:
    """Show which schema the database has, and which one this version needs."""
    own = place.own()
    ledgers, *theirs = found = _standings(place, own)
    if json_wanted:
        return show.document(
            {
                "database": place.shown(),
                "revision": ledgers.revision,
                "needed": ledgers.needed,
                "ok": all(standing.ok for standing in found),
                "own": [standing._asdict() for standing in theirs],
            }
        )
    for standing in found:
        whose = "this version" if standing is ledgers else "the application"
        show.line(f"{_where(standing, own)}{_judged(place, standing, whose)}")
    return None


def _judged(place: Place, standing: Standing, whose: str) -> str:
    """Whether a revision will do, and what to do otherwise. (Only of the ledger's it is known which one is newer.)"""
    revision, needed = standing.revision, standing.needed
    if standing.ok:
        return f" (what {whose} needs)" if revision == needed else f" (newer, and accepts {whose})"
    if whose == "this version" and revision is not None and revision > str(needed):
        return f"; it does not accept {whose}, which is made for {needed}; update Gristmill here"
    return f"; {whose} needs {needed or 'none'}; run: {place.command('db', 'upgrade')}"


@db.command(needs_app=True)
@as_json
@pass_place
def history(place: Place, json_wanted: bool) -> None:
    """List all revisions of the schema, newest first."""
    from gristmill.ledger.migrate import history

    steps = history(place.own())
    if json_wanted:
        return show.document([{"revision": step.revision, "what": step.what, "of": step.name} for step in steps])
    columns = [Column("revision"), Column("what", free=True), Column("of")]
    return show.table(columns, [list(step) for step in steps])


@db.command(short_help="Compare the tables with those this version describes.", needs_app=True)
@as_json
@pass_place
def check(place: Place, json_wanted: bool) -> int:
    """Compare the database's tables with those this version describes; exit 1 when they differ."""
    from gristmill.ledger.migrate import differences
    from gristmill.ledger.standing import check_own

    own = place.own()
    place.refuse_new_file()
    with _ledger(place) as ledger:
        ledger.check_schema()
        check_own(ledger, own)
        found = differences(ledger.engine, own)
    if json_wanted:
        show.document({"database": place.shown(), "ok": not found, "differences": found})
    else:
        for difference in found:
            show.line(difference)
        show.line(f"{show.plural(len(found), 'difference')}" if found else f"{place.shown()} is as it should be")
    return FAILED if found else OK


@db.command(short_help="Print what a role of PostgreSQL needs; --apply gives it.")
@click.argument("role")
@click.option("--for", "purpose", default="worker", metavar="WHAT", help="worker (default), hand, api or reader.")
@click.option("--apply", is_flag=True, help="Give it, instead of printing it.")
@as_json
@pass_place
def grants(place: Place, role: str, purpose: str, apply: bool, json_wanted: bool) -> None:
    """Print the least that ROLE needs on PostgreSQL, as GRANTs.

    A worker may do what an application can; a hand the same, but removes no runs and jobs; the API only asks for work
    and acts on it; a reader looks. Do it again after an upgrade.
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


def _standings(place: Place, own: Sequence[Migrations]) -> list[Standing]:
    """Asking must not make a file."""
    from gristmill.ledger.standing import standings

    if place.is_new_file():
        return standings(None, own)
    with _ledger(place) as ledger:
        return standings(ledger, own)


def _where(standing: Standing, own: Sequence[Migrations]) -> str:
    """A revision as it is said; with the name of its history, where there are several."""
    return f"{standing.name} {standing.revision or 'none'}" if own else standing.revision or "no schema"


def _say_change(place: Place, before: Sequence[Standing], own: Sequence[Migrations]) -> None:
    for old, new in zip(before, _standings(place, own), strict=True):
        if old.revision == new.revision:
            show.line(f"{place.shown()} is at {_where(new, own)} already")
        else:
            show.line(f"{place.shown()} went from {_where(old, own)} to {new.revision or ('none' if own else 'no schema')}")
