"""`doctor`: is the database fit, and the machine; what is not comes with the command that mends it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from gristmill.cli import show
from gristmill.cli.app import Command, Place, as_json, pass_place
from gristmill.cli.exits import FAILED, OK

if TYPE_CHECKING:
    from gristmill.model import Diagnosis


@click.command(cls=Command, short_help="Check the database and this machine; say what mends it.")
@as_json
@pass_place
def doctor(place: Place, json_wanted: bool) -> int:
    """Check schema, clock, workers, queues, disk, bloat and permissions; exit 1 if something is wrong.

    Each finding comes with the command that mends it. It changes nothing, and takes less than a second.
    """
    from gristmill.delivery.health import examine_delivery
    from gristmill.ledger.health import examine
    from gristmill.ledger.store import Ledger

    place.refuse_new_file()
    ledger = Ledger(place.url)
    try:
        findings = examine(ledger) + examine_delivery(place.delivery)
    finally:
        ledger.close()
    well = all(finding.ok for finding in findings)
    if json_wanted:
        rows = [{**vars(finding), "command": _command(place, finding)} for finding in findings]
        show.document({"database": place.shown(), "ok": well, "findings": rows})
        return OK if well else FAILED
    for finding in findings:
        show.heading("ok" if finding.ok else "WRONG", rest=f"{finding.check}: {finding.sentence}")
        if command := _command(place, finding):
            show.line(f"       {command}")
    return OK if well else FAILED


def _command(place: Place, finding: Diagnosis) -> str | None:
    if not finding.command:
        return None
    program, *words = finding.command
    return place.command(*words) if program == "gristmill" else shlex.join(finding.command)
