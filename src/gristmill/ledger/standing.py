"""Where each history is in a database, and where this code needs it to be.

Every command and every worker asks this when it starts, so the usual answer does without Alembic, which takes longer to load
than all that most commands do.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.application import Migrations
from gristmill.errors import SchemaMismatch
from gristmill.ledger.columns import REVISION, VERSION_TABLE
from gristmill.ledger.engines import shown
from gristmill.ledger.store import Ledger

LEDGER = "gristmill"
_OF_A_REVISION = {"revision", "down_revision", "branch_labels", "depends_on"}


class Standing(NamedTuple):
    name: str
    revision: str | None
    needed: str | None
    ok: bool


def standings(ledger: Ledger | None, own: Sequence[Migrations] = ()) -> list[Standing]:
    """Where each history is, the ledger's first; None: there is no database yet."""

    def stand(name: str, table: str, needed: str | None) -> Standing:
        found = None if ledger is None else ledger.revision(table)
        return Standing(name, found, needed, found == needed)

    theirs = [stand(each.name, each.version_table, head(each)) for each in own]
    ours = stand(LEDGER, VERSION_TABLE, REVISION)
    return [ours._replace(ok=ledger is not None and ledger.accepts(ours.revision)), *theirs]


def check_own(ledger: Ledger, own: Sequence[Migrations]) -> None:
    """Refuses a database in which an application's own tables are not what its code needs."""
    for name, found, needed, ok in standings(ledger, own)[1:] if own else ():
        if not ok:
            url = "URL" if ledger.url.password else shown(ledger.url)
            raise SchemaMismatch(
                f"in the database {shown(ledger.url)} the tables of {name!r} are at {found or 'no revision'}, its code needs"
                f" {needed or 'none'}; run: gristmill -A APP --database {url} db upgrade"
            )


def head(own: Migrations) -> str | None:
    """The revision that an application's code needs."""
    found = plain_head(own.folder)
    if found is not None:
        return found
    from gristmill.ledger.migrate import head_by_alembic

    return head_by_alembic(own)


def plain_head(folder: Path) -> str | None:
    """The end of a history that is one chain, written as constants; None: that is for Alembic to say."""
    try:
        told = [_told(path) for path in folder.glob("*.py") if path.name != "__init__.py"]
    except (OSError, SyntaxError, ValueError):
        return None
    after = {one.get("down_revision"): one.get("revision") for one in told}
    if any(one.get("branch_labels") or one.get("depends_on") for one in told) or len(after) != len(told):
        return None
    last: Any = None
    for _ in told:  # each of them once, from the first on
        last = after.get(last)
        if not isinstance(last, str):
            return None
    return None if last is None or last in after else last


def _told(path: Path) -> dict[str, Any]:
    """What a file says of itself at its top level."""
    found: dict[str, Any] = {}
    for node in ast.parse(path.read_bytes()).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if names & _OF_A_REVISION:
            [target] = targets  # anything but `name = constant` is a ValueError
            [name] = names
            value = ast.literal_eval(node.value)
            if not isinstance(target, ast.Name) or not isinstance(value, str | None) or name in found:
                raise ValueError(f"{path} is not plain")
            found[name] = value
    return found
