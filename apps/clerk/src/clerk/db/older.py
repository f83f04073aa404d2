"""The tables of clerk's older designs, which had the names that are views now: found, put aside, and put back.

Workers of the older clerk may still run when their tables become views. What they write then is swallowed: it changes
nothing, tells them that no row was changed, and is kept in `legacy_writes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from sqlalchemy import URL, Connection, create_engine, exc, inspect, make_url, text
from sqlalchemy.pool import NullPool

from clerk.db.views import Kind, views
from clerk.errors import ClerkError, NoDatabase, Usage
from clerk.masking import masked

NAMES: Final = ("sites", "site_progress", "job_tracking")
WRITES: Final = "legacy_writes"
_INDEXES: Final = ("idx_sites_current_stage", "idx_sites_updated_at", "idx_job_tracking_site_id")  # now of clerk's tables
_FUNCTION: Final = "legacy_swallow"
_OPERATIONS: Final = ("insert", "update", "delete")


def aside(name: str) -> str:
    return f"legacy_{name}"


ASIDE: Final = tuple(aside(name) for name in NAMES)


def kind_of(connection: Connection) -> Kind:
    return cast("Kind", connection.dialect.name)


def tables(connection: Connection, wanted: Iterable[str] = NAMES) -> list[str]:
    """Those of the wanted that are tables here, not views: before an import `NAMES`, after it `ASIDE`."""
    there = set(inspect(connection).get_table_names())
    return [name for name in wanted if name in there]


def refuse(connection: Connection | None) -> None:
    """Where older tables are, nothing but an import can go on. None: there is no database yet."""
    found = tables(connection) if connection is not None else []
    if found:
        raise ClerkError(
            f"the database has tables of an older clerk ({', '.join(found)}); `clerk import-legacy` moves them,"
            " and `clerk import-legacy --dry-run` shows what it would do"
        )


@contextlib.contextmanager
def looking(url: str) -> Iterator[Connection | None]:
    """A connection to read what is in a database, whatever its schema; None: it is a file that is not there."""
    where = _parsed(url)
    how: dict[str, Any] = {}
    if where.get_backend_name() == "sqlite":
        path = Path(str(where.database)).absolute()
        if not path.exists():
            yield None
            return
        where = URL.create("sqlite", database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"})
        how["module"] = _sqlite_module()
    else:
        where = where.set(drivername="postgresql+psycopg")
    engine = create_engine(where, poolclass=NullPool, **how)
    try:
        with engine.connect() as connection:
            yield connection
    except exc.DBAPIError as error:
        raise NoDatabase(f"{masked(url)} cannot be read: {str(error.orig).splitlines()[0]}") from error
    finally:
        engine.dispose()


def _parsed(url: str) -> URL:
    try:
        where = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise Usage(f"{masked(url)[:60]!r} is no database; write sqlite:///FILE or postgresql://HOST/NAME") from None
    if where.get_backend_name() not in ("sqlite", "postgresql"):
        raise Usage(f"{masked(url)[:60]!r} is no database that clerk reads; write sqlite:///FILE or postgresql://HOST/NAME")
    return where


def _sqlite_module() -> Any:
    """The one that the engine uses: when one library closes a file, all locks go that another holds in this process."""
    try:
        from pysqlite3 import dbapi2
    except ImportError:
        import sqlite3

        return sqlite3
    return dbapi2


# ---- to and fro


def put_aside(connection: Connection, names: Sequence[str]) -> None:
    """These tables get out of the way of the views, which are made at once."""
    for name in names:
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {aside(name)}")
    there = set(inspect(connection).get_view_names())
    for name, query in views(kind_of(connection)).items():
        if name not in there:
            connection.exec_driver_sql(f"CREATE VIEW {name} AS {query}", execution_options={"no_parameters": True})
    _same_rights(connection, names)
    swallow(connection)


def put_back(connection: Connection) -> None:
    """As it was before, once the views are gone: for `downgrade`. A copy from elsewhere has no name to go back to."""
    there = tables(connection, ASIDE)
    if aside("sites") not in there:
        drop(connection)
        return
    for name in (name for name in NAMES if aside(name) in there):
        connection.exec_driver_sql(f"ALTER TABLE {aside(name)} RENAME TO {name}")
    _rename_indexes(connection, {aside(name): name for name in _INDEXES})
    _drop_log(connection)


def drop(connection: Connection) -> None:
    """The older tables, and the log of what was written to them, are of no use any more."""
    _drop_log(connection)
    for name in tables(connection, ASIDE):
        connection.exec_driver_sql(f"DROP TABLE {name}")


def free_indexes(connection: Connection) -> None:
    """Before clerk's tables are made: the names of their indexes may be those of older tables' indexes."""
    _rename_indexes(connection, {name: aside(name) for name in _INDEXES})


def _rename_indexes(connection: Connection, to: dict[str, str]) -> None:
    if kind_of(connection) == "postgresql":
        for old, new in to.items():
            connection.exec_driver_sql(f"ALTER INDEX IF EXISTS {old} RENAME TO {new}")
        return
    found = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
    for name, sql in connection.execute(found).all():  # no rename there: they are made anew
        if name in to:
            connection.exec_driver_sql(f"DROP INDEX {name}")
            connection.exec_driver_sql(sql.replace(name, to[name], 1), execution_options={"no_parameters": True})


def _same_rights(connection: Connection, names: Sequence[str]) -> None:
    """Who could use a table can use the view in its place: else its workers would fail, not be swallowed."""
    if kind_of(connection) == "sqlite":
        return
    rights = text("""
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
            a.privilege_type
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = to_regclass(:table) AND a.grantee <> c.relowner
            AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')""")
    for name in names:
        for role, right in connection.execute(rights, {"table": aside(name)}).all():
            connection.exec_driver_sql(f"GRANT {right} ON {name} TO {role}")


# ---- what older workers write


def swallow(connection: Connection) -> None:
    """Triggers on the views. They go with a view, so this is done again when an upgrade has made it anew."""
    names = [name for name in NAMES if name in inspect(connection).get_view_names()]
    if kind_of(connection) == "postgresql":
        _swallow_on_postgres(connection, names)
    else:
        _swallow_on_sqlite(connection, names)


def _swallow_on_postgres(connection: Connection, names: Sequence[str]) -> None:
    connection.exec_driver_sql(f"""
        CREATE TABLE IF NOT EXISTS {WRITES} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, view text NOT NULL,
            operation text NOT NULL, subdomain text, written jsonb NOT NULL, updated_at timestamptz NOT NULL)""")
    schema = connection.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
    connection.exec_driver_sql(f"""
        CREATE OR REPLACE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql
        SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
        DECLARE
            before jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
            later jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
        BEGIN
            INSERT INTO {WRITES} (view, operation, subdomain, written, updated_at) SELECT TG_TABLE_NAME, lower(TG_OP),
                coalesce(later ->> 'subdomain', later ->> 'site_id', before ->> 'subdomain'),
                coalesce((SELECT jsonb_object_agg(key, value) FROM jsonb_each(later)
                    WHERE before -> key IS DISTINCT FROM value AND NOT (before IS NULL AND value = 'null')), '{{}}'),
                clock_timestamp();
            RETURN NULL;
        END $$""")  # no row was changed, it says: an older worker that counts on one goes no further
    for name in names:
        connection.exec_driver_sql(f"""
            CREATE OR REPLACE TRIGGER legacy_{name} INSTEAD OF INSERT OR UPDATE OR DELETE ON {name}
            FOR EACH ROW EXECUTE FUNCTION {_FUNCTION}()""")


def _swallow_on_sqlite(connection: Connection, names: Sequence[str]) -> None:
    connection.exec_driver_sql(f"""
        CREATE TABLE IF NOT EXISTS {WRITES} (id INTEGER PRIMARY KEY, view TEXT NOT NULL, operation TEXT NOT NULL,
            subdomain TEXT, written TEXT NOT NULL, updated_at TEXT NOT NULL)""")
    for name in names:
        columns = list(connection.exec_driver_sql(f"SELECT * FROM {name} LIMIT 0").keys())
        for operation in _OPERATIONS:
            connection.exec_driver_sql(_sqlite_trigger(name, operation, columns))


def _sqlite_trigger(view: str, operation: str, columns: Sequence[str]) -> str:
    row = "OLD" if operation == "delete" else "NEW"
    keys = [f"{row}.{column}" for column in ("subdomain", "site_id") if column in columns]
    before = "OLD.{0}" if operation == "update" else "NULL"
    changed = " UNION ALL ".join(
        f"SELECT '{column}' AS name, NEW.{column} AS value WHERE NEW.{column} IS NOT {before.format(column)}"
        for column in columns
    )
    written = "'{}'" if operation == "delete" else f"(SELECT json_group_object(name, value) FROM ({changed}))"
    return f"""
        CREATE TRIGGER IF NOT EXISTS legacy_{view}_{operation} INSTEAD OF {operation} ON {view} BEGIN
            INSERT INTO {WRITES} (view, operation, subdomain, written, updated_at) VALUES ('{view}', '{operation}',
                coalesce({", ".join([*keys, "NULL"])}), {written}, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'));
        END"""


def is_swallowing(connection: Connection) -> bool:
    return bool(tables(connection, [WRITES]))


def _let_go(connection: Connection) -> None:
    """The views without their triggers."""
    if kind_of(connection) == "postgresql":
        connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {_FUNCTION}() CASCADE")
        return
    for name in NAMES:
        for operation in _OPERATIONS:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS legacy_{name}_{operation}")


def _drop_log(connection: Connection) -> None:
    _let_go(connection)
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {WRITES}")
