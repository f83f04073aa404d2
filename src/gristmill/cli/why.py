"""`why run|job|subject`: the one reason that it is not moving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Group, Place, as_json, pass_place
from gristmill.cli.values import number

if TYPE_CHECKING:
    from gristmill.model import Why


@click.group(cls=Group)
def why() -> None:
    """Say why a run, a job or a subject is not moving."""


@why.command()
@click.argument("run", type=number())
@as_json
@pass_place
def run(place: Place, run: int, json_wanted: bool) -> None:
    """Say why a RUN is not moving."""
    with place.open() as mill:
        found = mill.why(run=run)
    print_why(place, found, json_wanted)


@why.command()
@click.argument("job", type=number())
@as_json
@pass_place
def job(place: Place, job: int, json_wanted: bool) -> None:
    """Say why a JOB is not moving."""
    with place.open() as mill:
        found = mill.why(job=job)
    print_why(place, found, json_wanted)


@why.command()
@click.argument("pipeline")
@click.argument("subject")
@as_json
@pass_place
def subject(place: Place, pipeline: str, subject: str, json_wanted: bool) -> None:
    """Say why a SUBJECT of PIPELINE is not moving."""
    with place.open() as mill:
        found = mill.why(pipeline=pipeline, subject=subject)
    print_why(place, found, json_wanted)


def print_why(place: Place, why: Why, json_wanted: bool) -> None:
    from gristmill.model import to_json

    command = place.command(*why.command) if why.command else None
    if json_wanted:
        return show.document({**to_json(why), "command": command})
    show.heading(why.target, why.reason)
    show.line(f"  {why.sentence}")
    return show.line(f"  do: {command}") if command else None
