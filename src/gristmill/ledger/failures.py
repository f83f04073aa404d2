"""How many attempts failed, by the class of the error: counted with the ends themselves, so that it only grows.

Each worker has rows of its own, as in `minutes`; those of workers that are gone are summed up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gristmill.ledger.sql import Sql
from gristmill.states import NOBODY, WorkerState

if TYPE_CHECKING:
    from gristmill.ledger.tx import Tx

_LONGEST = 200  # characters of a class's name
_BATCH = 1000
_COUNT = Sql(
    "INSERT INTO gm_failure (error_class, worker_id, attempts) SELECT f.kind, CAST(:worker AS bigint), f.n"
    " FROM {rows f: kind text, n bigint} WHERE true ORDER BY 1"
    " ON CONFLICT (error_class, worker_id) DO UPDATE SET attempts = gm_failure.attempts + excluded.attempts"
)
_TOTALS = Sql(
    "SELECT error_class, CAST(sum(attempts) AS bigint) AS n FROM gm_failure GROUP BY error_class"
    " ORDER BY n DESC, error_class LIMIT :most"
)
_OF_GONE = Sql(
    "SELECT k.error_class, k.worker_id, k.attempts FROM gm_failure k WHERE k.worker_id <> 0 AND NOT EXISTS"
    f" (SELECT 1 FROM gm_worker w WHERE w.id = k.worker_id AND w.state = {WorkerState.ACTIVE:d})"
    " ORDER BY k.error_class, k.worker_id LIMIT :most {skip_k}"
)
_REMOVE = Sql(
    "DELETE FROM gm_failure WHERE (error_class, worker_id) IN"
    " (SELECT f.kind, f.worker FROM {rows f: kind text, worker bigint})"
)


def count(tx: Tx, worker: int, kinds: Iterable[str | None]) -> None:
    counted = Counter((kind or "unknown")[:_LONGEST] for kind in kinds)
    if counted:
        tx.run(_COUNT, worker=worker, f=sorted(counted.items()))


def totals(tx: Tx, most: int) -> list[tuple[str, int]]:
    """Those with the most, of all that ever were."""
    return [(row.error_class, row.n) for row in tx.all(_TOTALS, most=most)]


def tidy(tx: Tx) -> int:
    """Sums up what workers counted that are gone. Says of how many rows."""
    rows = tx.tuples(_OF_GONE, most=_BATCH)
    sums: Counter[str] = Counter()
    for kind, _, attempts in rows:
        sums[kind] += attempts
    if rows:
        tx.run(_COUNT, worker=NOBODY, f=sorted(sums.items()))
        tx.run(_REMOVE, f=[(kind, worker) for kind, worker, _ in rows])
    return len(rows)
