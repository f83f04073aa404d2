"""Finding and mending jobs whose parts are not what their counters say, and parts that were left behind."""

from __future__ import annotations

from collections import Counter

from gristmill.ledger import flow, parents
from gristmill.ledger.moment import Ended, moment
from gristmill.ledger.sql import Sql
from gristmill.ledger.store import Tx
from gristmill.ledger.whose import ALL, Whose, of
from gristmill.model import Repair
from gristmill.states import State

_COUNTED = (
    "SELECT j.id, j.run_id, j.parts, j.parts_left, j.parts_failed, count(p.id) AS total,"
    f" count(CASE WHEN p.state < {State.COMPLETED:d} THEN 1 END) AS open,"
    f" count(CASE WHEN p.state IN ({State.FAILED:d}, {State.CANCELLED:d}) THEN 1 END) AS bad"
    " FROM gm_job j LEFT JOIN gm_job p ON p.parent_id = j.id AND p.stage_id IS NULL"
    f" WHERE j.state < {State.COMPLETED:d} AND j.parts IS NOT NULL AND {of('j.run_id')}"
    " AND coalesce(j.started_at, j.created_at) <= {now} - :quiet%s"
    " GROUP BY j.id, j.run_id, j.parts, j.parts_left, j.parts_failed HAVING j.parts <> count(p.id)"
    f" OR j.parts_left <> count(CASE WHEN p.state < {State.COMPLETED:d} THEN 1 END)"
    f" OR j.parts_failed <> count(CASE WHEN p.state IN ({State.FAILED:d}, {State.CANCELLED:d}) THEN 1 END)"
    " ORDER BY j.id LIMIT :most"
)
_WRONG, _WRONG_OF = Sql(_COUNTED % ""), Sql(_COUNTED % " AND j.id {in ids}")
_LEFT_BEHIND = Sql(
    "SELECT p.id, p.parent_id FROM gm_job p LEFT JOIN gm_job j ON j.id = p.parent_id"
    f" WHERE p.stage_id IS NULL AND p.parent_id IS NOT NULL AND NOT p.cancel AND {of('p.run_id')}"
    f" AND p.state < {State.COMPLETED:d} AND (j.id IS NULL OR j.state >= {State.COMPLETED:d})"
    " AND coalesce(p.started_at, p.created_at) <= {now} - :quiet ORDER BY p.id LIMIT :most"
)
_END = Sql(
    f"UPDATE gm_job SET state = {State.CANCELLED:d}, ready = NULL, run_at = NULL, finished_at = {{now}},"
    f" error = 'what it is a part of had ended' WHERE id {{in ids}} AND state = {State.QUEUED:d}"
    " RETURNING id, task_id"
)
_ASK_CANCEL = Sql(f"UPDATE gm_job SET cancel = {{true}} WHERE id {{in ids}} AND state = {State.IN_PROGRESS:d}")


def repair_parts(tx: Tx, mend: bool, quiet: int = 0, most: int = 100, whose: Whose = ALL) -> list[Repair]:
    """Counters of parts that differ from the rows, so that a job waits for ever or not at all."""
    wrong = tx.all(_WRONG, most=most, quiet=quiet, **whose._asdict())
    if wrong and mend:
        flow.lock_runs(tx, [row.run_id for row in wrong])
        parents.lock(tx, [row.id for row in wrong])
        wrong = tx.all(_WRONG_OF, ids=[row.id for row in wrong], most=most, quiet=quiet, **whose._asdict())
        ended = parents.recount(tx, [(row.id, row.bad, row.open, row.total) for row in wrong]) if wrong else []
        flow.tally(tx, Counter(flow.Change(*change) for change in ended))
    return [
        Repair(
            "recount",
            f"job {row.id}",
            f"parts {row.parts} → {row.total}, left {row.parts_left} → {row.open}, failed {row.parts_failed} → {row.bad}",
        )
        for row in wrong
    ]


def repair_left_behind(tx: Tx, mend: bool, quiet: int = 0, most: int = 1000, whose: Whose = ALL) -> list[Repair]:
    """Parts of a job that has ended without them."""
    rows = tx.all(_LEFT_BEHIND, most=most, quiet=quiet, **whose._asdict())
    if rows and mend:
        moment(tx, [Ended(*row) for row in tx.tuples(_END, ids=[row.id for row in rows])])
        tx.run(_ASK_CANCEL, ids=[row.id for row in rows])
    return [Repair("end", f"job {row.id}", f"job {row.parent_id}, which it is a part of, has ended") for row in rows]
