"""The least that a database role needs on PostgreSQL: to work (and remove), to ask for work and act on it, or to read."""

from __future__ import annotations

from gristmill.errors import Invalid
from gristmill.ledger.columns import VERSION_TABLE
from gristmill.ledger.engines import shown
from gristmill.ledger.schema import metadata
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Ledger, Tx

PURPOSES = ("worker", "hand", "api", "reader")  # the first that a role has enough for is what it is for
_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
_READ = ("SELECT",)
# Who works may change what jobs and runs are made of, but not the schema, nor what was recorded.
_LESS = {
    "gm_ledger": _READ,
    VERSION_TABLE: _READ,
    "gm_audit": ("SELECT", "INSERT"),
    "gm_task": ("SELECT", "INSERT"),
    "gm_class": ("SELECT", "INSERT"),
    "gm_token": ("SELECT", "INSERT", "UPDATE"),
}
_OF_WORKERS = ("gm_worker", "gm_claim")
# What work itself clears. All else a hand only adds to and changes: runs and jobs are removed by who prunes.
_CLEARED = {
    *("gm_attempt", "gm_claim", "gm_commit", "gm_done", "gm_event", "gm_failure", "gm_fire", "gm_ignored_error", "gm_label"),
    *("gm_lock", "gm_minute", "gm_missed", "gm_once", "gm_permit", "gm_schedule", "gm_stage", "gm_trace"),
}
_TABLES = sorted([table.name for table in metadata.sorted_tables] + [VERSION_TABLE])

_PLACE = Sql("SELECT current_schema() AS schema, current_database() AS name")
_VIEWS = Sql(
    "SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = current_schema()::regnamespace"
    " AND relname LIKE 'gristmill!_%' ESCAPE '!' ORDER BY relname"
)
_SEQUENCES = Sql(
    "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace"
    " AND relname LIKE 'gm!_%' ESCAPE '!' ORDER BY relname"
)
_LACKS = Sql(
    "SELECT f.privilege || ' on ' || f.name AS what FROM {rows f: name text, privilege text}"
    " WHERE NOT has_table_privilege(f.name, f.privilege)"
)
_MAY_DRAW = Sql("SELECT has_sequence_privilege('gm_line', 'USAGE')")
_ROLE = Sql("SELECT 1 FROM pg_roles WHERE rolname = :role")


def privileges(purpose: str) -> dict[str, tuple[str, ...]]:
    """What a role needs on each table."""
    if purpose == "reader":
        return dict.fromkeys(_TABLES, _READ)
    needed = {table: _LESS.get(table, _ALL) for table in _TABLES}
    if purpose == "hand":
        return {table: some if table in _CLEARED else _without_delete(some) for table, some in needed.items()}
    return needed | dict.fromkeys(_OF_WORKERS, _READ) if purpose == "api" else needed


def _without_delete(some: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for one in some if one != "DELETE")


def statements(tx: Tx, role: str, purpose: str) -> list[str]:
    """The GRANTs, for the database as it is now; a newer schema may need more."""
    place = tx.one(_PLACE)
    to = _quoted(role)
    by_privileges: dict[tuple[str, ...], list[str]] = {}
    for table, needed in privileges(purpose).items():
        by_privileges.setdefault(needed, []).append(table)
    by_privileges.setdefault(_READ, []).extend(row.relname for row in tx.all(_VIEWS))
    found = [
        f"GRANT CONNECT ON DATABASE {_quoted(place.name)} TO {to};",
        f"GRANT USAGE ON SCHEMA {_quoted(place.schema)} TO {to};",
        *(f"GRANT {', '.join(needed)} ON {', '.join(names)} TO {to};" for needed, names in sorted(by_privileges.items())),
    ]
    if purpose != "reader":
        found.append(f"GRANT USAGE ON SEQUENCE {', '.join(row.relname for row in tx.all(_SEQUENCES))} TO {to};")
    return found


def grants(ledger: Ledger, role: str, purpose: str, *, apply: bool = False) -> list[str]:
    """What a role needs; `apply`: and has from now on, all of it or nothing."""
    if ledger.is_sqlite:
        raise Invalid(
            f"SQLite has no roles: who may read and write {shown(ledger.url)} and its folder may do everything; use chmod"
        )
    ledger.check_schema()
    return ledger.do(_grant, role, purpose) if apply else ledger.glance(statements, role, purpose)


def _grant(tx: Tx, role: str, purpose: str) -> list[str]:
    if tx.one(_ROLE, role=role) is None:
        raise Invalid(f"there is no role {role!r}; make it first: CREATE ROLE {_quoted(role)} LOGIN;")
    found = statements(tx, role, purpose)
    for statement in found:
        tx.script(statement)
    return found


def purpose_of(tx: Tx) -> tuple[str | None, list[str]]:
    """What this connection's role may be used for, and what it lacks for the first thing that it may not."""
    lacking: list[str] = []
    for purpose in PURPOSES:
        needed = [(table, privilege) for table, some in privileges(purpose).items() for privilege in some]
        lacks = [row.what for row in tx.all(_LACKS, f=needed)]
        if purpose != "reader" and not lacks and not tx.value(_MAY_DRAW):
            lacks = ["USAGE on gm_line"]
        if not lacks:
            return purpose, lacking
        lacking = lacking or lacks
    return None, lacking


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
