"""Numbers of new jobs, and their places in the line, for those who write many at once: drawn before."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx

_LAST_ID = Sql("SELECT coalesce(max(id), 0) FROM gm_job")  # SQLite, where a transaction that writes is alone
_NEXT_IDS = Sql(
    "SELECT string_agg(nextval((SELECT pg_get_serial_sequence('gm_job', 'id')::regclass))::text, ' ')"
    " FROM generate_series(1, :most)"
)
_PLACE = Sql("SELECT {next}, {now}")
_PLACES = Sql("SELECT {next}, {now} FROM generate_series(1, :most)")


def new_ids(tx: Tx, most: int) -> Sequence[int]:
    """On SQLite those that the next rows get by themselves."""
    if tx.dialect == "sqlite":
        last: int = tx.value(_LAST_ID)
        return range(last + 1, last + 1 + most)
    return list(map(int, tx.value(_NEXT_IDS, most=most).split()))


def place(tx: Tx) -> tuple[int, int]:
    """One place, in which any number may stand as they were written; and the time."""
    ((line, now),) = tx.tuples(_PLACE)
    return line, now


def places(tx: Tx, most: int) -> list[tuple[int, int]]:
    """PostgreSQL: so many places, each with the time."""
    return [(line, now) for line, now in tx.tuples(_PLACES, most=most)]
