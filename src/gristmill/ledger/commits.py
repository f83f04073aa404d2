"""What became of a transaction on PostgreSQL whose COMMIT got no answer.

The number that PostgreSQL gives it does not tell: after a crash, numbers that had not reached the disk are given again, and
the next one to have it may commit. So each connection has a row, which holds the number of its last transaction, counted by
the connection itself and written with the COMMIT. Whoever asks waits for one that is still under way, and shuts the door
behind it: a COMMIT that arrives later fails.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from gristmill.clock import SECOND
from gristmill.ledger.sql import Sql
from gristmill.ledger.tx import Tx

_KEPT = 86_400 * SECOND  # what became of a transaction is asked within seconds
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

# The number of a transaction is even; the odd one after it says that it was given up. NULL is refused by the table.
MARKS = (
    f"INSERT INTO gm_commit (connection, number, at) SELECT f.who, f.number, {_NOW} FROM ({{}}) AS f (who, number)"
    " ON CONFLICT (connection) DO UPDATE SET at = excluded.at, number = CASE WHEN gm_commit.number < excluded.number"
    " OR excluded.connection LIKE '% job' THEN excluded.number END"  # what is beside a mark: the job that it is about
)
_SETTLE = Sql(
    f"INSERT INTO gm_commit (connection, number, at) VALUES (:connection, :number + 1, {_NOW}) ON CONFLICT (connection)"
    " DO UPDATE SET number = excluded.number - CASE WHEN gm_commit.number = excluded.number - 1 THEN 1 ELSE 0 END,"
    " at = excluded.at RETURNING number"
)
_FORGET = Sql(f"DELETE FROM gm_commit WHERE at < {_NOW} - :kept")


class Mark(NamedTuple):
    """Which transaction of which connection."""

    connection: str
    number: int


def mark(tx: Tx) -> Mark:
    """Has this transaction leave a mark with its commit."""
    made = next_mark(tx)
    tx.at_commit(MARKS.format(f"VALUES ('{made.connection}', {made.number:d}::bigint)"))
    return made


def next_mark(tx: Tx) -> Mark:
    """The mark that the next transaction of this connection is to leave."""
    kept = tx.connection.info  # for as long as the connection lives
    last: Mark = kept.get("gristmill_mark") or Mark(uuid.uuid4().hex, 0)
    made: Mark = Mark(last.connection, last.number + 2)
    kept["gristmill_mark"] = made
    return made


def is_committed(tx: Tx, made: Mark) -> bool:
    """Did that transaction commit? If not, it never will."""
    number: int = tx.value(_SETTLE, **made._asdict())
    return number == made.number


def forget(tx: Tx) -> int:
    """Removes the rows of connections that are long gone."""
    return 0 if tx.dialect == "sqlite" else tx.run(_FORGET, kept=_KEPT)
