"""`health`: for people, and for what watches over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from clerk.cli.app import Command, Place, as_json, document, line, pass_place
from clerk.cli.exits import code_of, mask, message_of

if TYPE_CHECKING:
    from clerk.health import Health


@click.command(cls=Command, short_help="Say whether all is well: exit 0 healthy, 1 degraded, 2 unhealthy.")
@as_json
@click.option("-v", "--verbose", is_flag=True, help="Also what is well.")
@pass_place
def health(place: Place, json_wanted: bool, verbose: bool) -> int:
    """Say whether all is well; exit 0 healthy, 1 degraded, 2 unhealthy."""
    found = _look(place)
    if json_wanted:
        document(found.as_json())
        return found.exit_code
    line(f"Status: {found.status}")
    for said in found.issues:
        line(f"  CRITICAL: {said}")
    for said in found.warnings:
        line(f"  WARNING: {said}")
    for name, value in found.checks.items() if verbose else ():
        line(f"  {name}: {_shown(value)}")
    return found.exit_code


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "ok" if value else "not ok"
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)


def _look(place: Place) -> Health:
    from clerk import health

    config = place.config
    try:
        with place.open() as mill:
            return health.look(mill, config)
    except Exception as error:
        if code_of(error) != 3:
            raise
        return health.unreachable(mask(message_of(error)))
