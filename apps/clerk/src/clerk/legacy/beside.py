"""clerk's tables beside those of an older clerk, which keep their names for now: `gristmill -A clerk.legacy.beside`.

The views with those names are made when the tables are put aside, in one transaction, so that nobody meets neither.
"""

from __future__ import annotations

from typing import Final

from clerk.config import load
from clerk.db import migrations, older
from clerk.pipeline import site
from gristmill import Migrations

__all__ = ["site", "tables"]  # the engine moves nothing without a pipeline


def tables_of(url: str) -> Migrations:
    whole = migrations(url)
    views = {name: query for name, query in whole.views.items() if name not in older.NAMES}
    return Migrations(whole.name, whole.folder, whole.metadata, views)


tables: Final = tables_of(load().database_url)
