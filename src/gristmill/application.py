"""What an application brings besides pipelines and tasks: its own tables, and what it knows to be wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import Invalid

if TYPE_CHECKING:
    from sqlalchemy import MetaData

_OWN = re.compile(r"(?!gm_|gristmill)[a-z][a-z0-9_]{0,39}")


class Migrations:
    """An application's own tables in the ledger's database: a folder of Alembic revisions, moved by `gristmill db upgrade`.

    Its version is in a table of its own (`NAME_version`), so that its history and the ledger's never meet. With
    `metadata` (SQLAlchemy's), `db check` compares the tables with it. `views` (name and query) are no history: they are
    taken away before anything moves, which they would be in the way of, and made anew when all is where it should be.
    """

    def __init__(
        self,
        name: str,
        folder: Path | str,
        metadata: MetaData | None = None,
        views: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not _OWN.fullmatch(name):
            raise Invalid(
                f"the name of migrations becomes a table's: {name!r} must be small letters, digits and '_',"
                " at most 40, and must not begin with 'gm_' or 'gristmill'"
            )
        if not isinstance(folder, Path | str):
            raise Invalid(f"migrations {name!r}: give the folder of the revisions, not {folder!r}")
        self.name = name
        self.folder = Path(folder).absolute()
        self.metadata = metadata
        self.views = dict(views or {})
        for view, query in self.views.items():
            if not _OWN.fullmatch(view) or not isinstance(query, str):
                raise Invalid(f"migrations {name!r}: views are queries by name, not {view!r}: {query!r:.60}")

    def __repr__(self) -> str:
        return f"<migrations {self.name!r}>"

    @property
    def version_table(self) -> str:
        return f"{self.name}_version"
