"""Asked for several times, done once: a key that is remembered for a week, also after what it stands for has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gristmill.clock import SECOND
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx

KEPT = 7 * 86_400 * SECOND  # whoever tries again does it within hours
_MOST = 1000  # old keys that one call forgets
_FORGET = Sql(
    "DELETE FROM gm_once WHERE key IN (SELECT key FROM gm_once WHERE at < {now} - :kept ORDER BY at LIMIT :most {skip})"
)
_TAKE = Sql("INSERT INTO gm_once (key, at, number) VALUES (:key, {now}, 0) ON CONFLICT DO NOTHING RETURNING key")
_SET = Sql("UPDATE gm_once SET number = :number WHERE key = :key")
_WHICH = Sql("SELECT number FROM gm_once WHERE key = :key")


def once(tx: Tx, key: str, verb: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Runs a verb whose answer begins with the number of a job or run, and whether it is new. With a key that was used
    before, only says which number that was. Of two at the same time the second waits for the first to commit."""
    tx.run(_FORGET, kept=KEPT, most=_MOST)
    if tx.value(_TAKE, key=key) is None:
        return tx.value(_WHICH, key=key), False
    answer: tuple[Any, ...] = verb(tx, *args)
    tx.run(_SET, key=key, number=answer[0])
    return answer
