"""`diagnose-workers`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clerk.cli.app import Command, Place, as_json, document, line, pass_place
from clerk.cli.exits import FAILED, NO_DATABASE, OK, code_of, mask, message_of

if TYPE_CHECKING:
    from clerk.commands.diagnosing import Answer


@click.command(cls=Command, short_help="Look at what workers need: .env, database, services, logs.")
@as_json
@pass_place
def diagnose_workers(place: Place, json_wanted: bool) -> int:
    """Look at what workers need: .env, the database, services and live workers, logs. Exit 1 if something is wrong."""
    answers = _answers(place)
    if json_wanted:
        document([asdict(answer) for answer in answers])
    else:
        for answer in answers:
            line(f"{'ok   ' if answer.ok else 'WRONG'}  {answer.about}: {answer.said}")
    return OK if all(answer.ok for answer in answers) else FAILED


def _answers(place: Place) -> list[Answer]:
    from clerk.commands import diagnosing
    from clerk.commands.diagnosing import Answer

    here, config = Path.cwd(), place.config
    found = [*diagnosing.settings(here)]
    try:
        with place.open() as mill:
            found += [Answer(True, "database", mask(config.database_url)), *diagnosing.workers(mill, config)]
    except Exception as error:
        if code_of(error) != NO_DATABASE:
            raise
        found.append(Answer(False, "database", mask(message_of(error))))
    return [*found, *diagnosing.installed(here), *diagnosing.logs(config)]
