"""The tables of those who look on: who may, what changed, and how much was done in each minute. Part of the schema."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, MetaData, Table, Text, text

from gristmill.rollup import BUCKETS, COUNTS

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite makes only INTEGER PRIMARY KEY the rowid
_ZERO = text("0")
_IS_ALIVE, _IS_NEW = text("revoked_at IS NULL"), text("place IS NULL")


def watching_tables(metadata: MetaData) -> tuple[Table, Table, Table, Table]:
    # Who may use the HTTP API, by what they know: only its hash is here.
    token = Table(
        "gm_token",
        metadata,
        Column("id", Id, primary_key=True),
        Column("name", Text, nullable=False),
        Column("role", Text, nullable=False),
        Column("hash", Text, nullable=False, unique=True),
        Column("created_at", BigInteger, nullable=False),
        Column("created_by", Text, nullable=False),
        Column("expires_at", BigInteger),
        Column("used_at", BigInteger),  # to a minute
        Column("revoked_at", BigInteger),
        Column("revoked_by", Text),
        CheckConstraint("role IN ('viewer', 'operator', 'admin')", name="gm_token_role"),
        sqlite_autoincrement=True,
    )
    Index("gm_token_name", token.c.name, unique=True, sqlite_where=_IS_ALIVE, postgresql_where=_IS_ALIVE)
    # What changed, for those who follow it. Its place is given after the commit, by whoever looks next, one at a time: so
    # nobody who has read up to a place ever misses one before it. (On SQLite, where one writes at a time, at once.)
    event = Table(
        "gm_event",
        metadata,
        Column("id", Id, primary_key=True),
        Column("place", BigInteger, unique=True),
        Column("at", BigInteger, nullable=False),
        Column("name", Text, nullable=False),
        Column("run_id", BigInteger),
        Column("data", Text, nullable=False, server_default="{}"),
        sqlite_autoincrement=True,
    )
    Index("gm_event_new", event.c.id, sqlite_where=_IS_NEW, postgresql_where=_IS_NEW)
    # How many jobs ended in each minute, how, and how long they had waited and ran. Counted in the transactions that end
    # them, by worker, so that workers do not wait for each other; older minutes are summed up.
    minute = Table(
        "gm_minute",
        metadata,
        Column("minute", BigInteger, primary_key=True, autoincrement=False),  # since 1970
        Column("worker_id", BigInteger, primary_key=True, autoincrement=False),
        Column("queue_id", Integer, primary_key=True, autoincrement=False),
        Column("task_id", Integer, primary_key=True, autoincrement=False),
        *(Column(name, BigInteger, nullable=False, server_default=_ZERO) for name in (*COUNTS, *BUCKETS)),
        postgresql_with={"fillfactor": "50"},  # a row is changed by every batch of its minute, on its own page
    )
    # How many attempts failed, by the class of the error and by worker.
    failure = Table(
        "gm_failure",
        metadata,
        Column("error_class", Text, primary_key=True),
        Column("worker_id", BigInteger, primary_key=True, autoincrement=False),
        Column("attempts", BigInteger, nullable=False),
        postgresql_with={"fillfactor": "50"},
    )
    return token, event, minute, failure
