"""A new SQLite file, made at once: what all migrations would make of it is written down in fresh.sql.

Alembic alone takes longer to load than everything else that a first command does. A test sees to it that both ways lead to
the same; `python -m gristmill.ledger.fresh` writes the file anew.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from gristmill.ledger.columns import VERSION_TABLE
from gristmill.ledger.store import Ledger

_FILE = Path(__file__).with_name("fresh.sql")
_BETWEEN = "\n;\n"


def make(ledger: Ledger) -> None:
    """Sets the file up, all or nothing; unless someone else did meanwhile."""
    with ledger.exclusively() as connection:
        there = connection.exec_driver_sql("SELECT 1 FROM sqlite_schema WHERE name = ?", (VERSION_TABLE,)).first()
        for statement in _FILE.read_text().split(_BETWEEN) if there is None else ():
            connection.exec_driver_sql(statement)


def written_down() -> str:
    """What fresh.sql should be."""
    from gristmill.ledger.migrate import upgrade

    with tempfile.TemporaryDirectory() as folder:
        upgrade(f"sqlite:///{folder}/new.db")
        with closing(sqlite3.connect(f"{folder}/new.db")) as connection:
            made = connection.execute(
                "SELECT sql, type, name FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
            ).fetchall()
            statements = [sql for sql, _, name in made if not name.startswith("sqlite_")]
            for table in (name for _, kind, name in made if kind == "table" and not name.startswith("sqlite_")):
                names = ", ".join(column[1] for column in connection.execute(f"PRAGMA table_info({table})"))
                rows = connection.execute(f"SELECT {names} FROM {table}").fetchall()
                statements += [f"INSERT INTO {table} ({names}) VALUES ({', '.join(map(repr, row))})" for row in rows]
    return _BETWEEN.join(statements)


if __name__ == "__main__":
    _FILE.write_text(written_down())
