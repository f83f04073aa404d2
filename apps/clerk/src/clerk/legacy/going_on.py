"""Sites that the older clerk left unfinished: clerk knows where they were, and no run of its own has seen to them yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, and_

from clerk.db import tables, terminal
from clerk.db.views import PIPELINE
from clerk.sites import Options
from gristmill import Refused

if TYPE_CHECKING:
    from gristmill import Mill

FROM_FILES = Options(skip_fetch=True)  # what was fetched is in the storage: read what is unread, then compile and publish


def left_unfinished() -> ColumnElement[bool]:
    site = tables.site
    return and_(site.c.run_id.is_(None), site.c.current_stage.is_not(None), site.c.outcome.is_(None))


def start(mill: Mill, connection: Connection, subdomain: str, options: Options) -> bool:
    """A run in this transaction; False: it has one already."""
    try:
        run = mill.start(PIPELINE, subdomain, args=options.args(), if_active="refuse", connection=connection)
    except Refused:
        return False
    terminal.started(connection, subdomain, run.id)
    return True
