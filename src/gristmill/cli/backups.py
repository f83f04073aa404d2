"""`backup` and `restore`: the ledger in one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Place, as_json, dry_run_option, pass_place

if TYPE_CHECKING:
    from gristmill.model import Backup

FILE = click.argument("file", type=click.Path(path_type=Path))


@click.command(cls=Command, short_help="Write the ledger into a file, while everything goes on.")
@FILE
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@as_json
@pass_place
def backup(place: Place, file: Path, force: bool, json_wanted: bool) -> None:
    """Write the ledger into FILE, while workers work.

    On SQLite that is the whole database, on PostgreSQL the tables of Gristmill. Either kind can be restored into
    either database.
    """
    with place.open() as mill:
        made = mill.backup(file, force=force)
    _say(made, "wrote", json_wanted)


@click.command(cls=Command, short_help="Put a backup back; workers of before stop by themselves.")
@FILE
@click.option("--force", is_flag=True, help="Replace the runs and jobs that the database has.")
@dry_run_option
@as_json
@pass_place
def restore(place: Place, file: Path, force: bool, dry_run: bool, json_wanted: bool) -> None:
    """Make the database what it was when FILE was written, all or nothing.

    A damaged file changes nothing. Workers of the time before kill their jobs, write nothing more, and begin anew.
    """
    from gristmill.ledger.backup import look, restore
    from gristmill.mill.values import who

    if dry_run:
        return _say(look(file), "would restore", json_wanted)
    return _say(restore(place.url, file, by=who(), force=force), "restored", json_wanted)


def _say(backup: Backup, did: str, json_wanted: bool) -> None:
    if json_wanted:
        return show.document(backup)
    counts = ", ".join(
        show.plural(n, word) for n, word in ((backup.subjects, "subject"), (backup.runs, "run"), (backup.jobs, "job"))
    )
    size = f"{backup.size / (1 << 20):,.1f} MiB"
    return show.line(f"{did} {backup.file}: {counts} of {backup.database}, {show.age(backup.taken_at)}; {size}")
