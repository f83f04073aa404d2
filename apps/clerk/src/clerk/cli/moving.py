"""`import-legacy` and `migrate-stuck-sites`: from clerk's older designs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from clerk.cli.app import Command, Place, as_json, document, dry_run_option, line, pass_place
from clerk.cli.exits import mask


@click.command(cls=Command, short_help="Take over the sites of an older clerk.")
@click.option("--from", "source", metavar="URL", help="The older database, if it is not the one that DATABASE_URL names.")
@click.option("--storage-dir", type=click.Path(path_type=Path), metavar="D", help="Its files, if not in STORAGE_DIR.")
@dry_run_option
@click.option("--finish", is_flag=True, help="Drop the tables that an import has put aside.")
@as_json
@pass_place
def import_legacy(
    place: Place, source: str | None, storage_dir: Path | None, dry_run: bool, finish: bool, json_wanted: bool
) -> None:
    """Take over the sites of an older clerk, with what its files prove.

    Its tables are renamed to legacy_*, and views take their names. `clerk db downgrade base` goes back, until --finish.
    """
    from clerk import logs
    from clerk.legacy import finish_import, import_legacy

    if finish and (source is not None or storage_dir is not None):
        raise click.UsageError("--finish drops what is in DATABASE_URL; leave out --from and --storage-dir")
    logs.configure(place.config)
    report = finish_import(place.config, dry_run) if finish else import_legacy(place.config, source, storage_dir, dry_run)
    if json_wanted:
        return document(report.as_json())
    return _say(report.lines(), report.warnings)


@click.command(cls=Command, short_help="Let the sites go on that an older clerk left in OCR.")
@dry_run_option
@as_json
@pass_place
def migrate_stuck_sites(place: Place, dry_run: bool, json_wanted: bool) -> None:
    """Let the sites go on that an older clerk left in its OCR stage.

    With REDIS_URL set, its deferred coordinators and failed OCR jobs are cleared, too.
    """
    from clerk import logs
    from clerk.legacy import migrate_stuck_sites

    logs.configure(place.config)
    report = migrate_stuck_sites(place.config, dry_run)
    if json_wanted:
        return document(report.as_json())
    return _say(report.lines(), report.warnings)


def _say(lines: Iterable[str], warnings: Iterable[str]) -> None:
    for text in lines:
        line(text)
    for text in warnings:
        click.echo(mask(f"Warning: {text}"), err=True)
