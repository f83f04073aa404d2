"""`lock list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Group, Place, as_json, pass_place
from gristmill.cli.show import Column

if TYPE_CHECKING:
    from gristmill.model import LockUser


@click.group(cls=Group)
def lock() -> None:
    """List locks."""


@lock.command("list", short_help="List the locks that are held, and who waits.")
@as_json
@pass_place
def list_(place: Place, json_wanted: bool) -> None:
    """List the locks that are held, by whom and since when, and who waits for each."""
    with place.open() as mill:
        found = mill.locks()
    if json_wanted:
        return show.document(found)
    if not found:
        return show.note("no lock is held")
    columns = [Column("lock", free=True), Column("who", free=True), Column("does"), Column("since")]
    rows = []
    for each in found:
        rows.append(_row(each.resource, "holds it", each.holder))
        rows += [_row("", "waits", waiter) for waiter in each.waiters]
    return show.table(columns, rows)


def _row(resource: str, does: str, user: LockUser) -> list[str]:
    return [resource, user.words, does, show.age(user.since)]
