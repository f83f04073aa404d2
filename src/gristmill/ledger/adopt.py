"""Adopting: items whose work was done but not recorded end `completed`, with what the application's probe found.

An adopted item is taken and finished in one transaction, by nobody: so it goes through `settle` like every other end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gristmill.ledger import flow
from gristmill.ledger.emit import Emission, Item, add_items
from gristmill.ledger.finish import Outcome, Verdict, settle
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx
from gristmill.states import NOBODY, TERMINAL, StageState, State


class Adoption(NamedTuple):
    """An item that was found done: as it was when the probe was asked, its result, and what goes on to others."""

    job: int
    attempt: int
    run: int
    result: str | None = None
    items: Sequence[Item] = ()


_STAGES = Sql(
    "SELECT s.id, s.run_id, s.name, t.name AS task FROM gm_stage s JOIN gm_run r ON r.id = s.run_id"
    " JOIN gm_task t ON t.id = s.task_id"
    f" WHERE s.run_id {{in runs}} AND s.state IN ({StageState.OPEN:d}, {StageState.SEALED:d}) AND r.stop IS NULL"
    " ORDER BY s.id"
)
_NO_PARTS = "coalesce(parts_left, 0) = 0"  # what waits for parts is under way, also when it was queued by a retry
_NOT_RETRIED = "(started_at IS NULL OR started_at >= created_at)"  # what somebody has queued again is to be done again
_CANDIDATES = (
    "SELECT id, attempt, key, args FROM gm_job WHERE stage_id = :stage AND key {} :after"
    f" AND state = {State.QUEUED:d} AND (ready IS NOT NULL OR run_at IS NOT NULL) AND {_NO_PARTS} AND attempt >= :tried"
    f" AND {_NOT_RETRIED}"
    " AND coalesce(started_at, created_at) <= {{now}} - :quiet ORDER BY key LIMIT :most"
)
_FIRST, _MORE = Sql(_CANDIDATES.format(">=")), Sql(_CANDIDATES.format(">"))
_TAKE = Sql(
    f"UPDATE gm_job SET state = {State.IN_PROGRESS:d}, ready = NULL, run_at = NULL, attempt = attempt + 1,"
    f" worker_id = {NOBODY}, started_at = {{now}} FROM {{rows f: job bigint, number int}}"
    f" WHERE gm_job.id = f.job AND gm_job.attempt = f.number AND gm_job.state = {State.QUEUED:d}"
    f" AND (ready IS NOT NULL OR run_at IS NOT NULL) AND {_NO_PARTS} AND {_NOT_RETRIED} RETURNING gm_job.id"
)
_MARK = Sql(
    "INSERT INTO gm_attempt (job_id, attempt, outcome, error, started_at, ended_at)"
    " SELECT f.job, f.number, 'adopted', f.said, {now}, {now} FROM {rows f: job bigint, number int, said text} WHERE true"
)
_RELEASED = "its output exists, but what would go on from it cannot be added"


def stages_to_probe(tx: Tx, runs: Iterable[int], tasks: set[str]) -> list[Any]:
    """Stages under way whose task has a probe."""
    wanted = sorted(runs)
    return [row for row in tx.all(_STAGES, runs=wanted) if row.task in tasks] if wanted else []


def candidates(tx: Tx, stage: int, after: str | None, *, tried: int = 0, quiet: int = 0, most: int = 200) -> list[Any]:
    """Queued items of a stage by key, a page: those that nobody holds, were tried so often, and not touched for so long."""
    query, key = (_FIRST, "") if after is None else (_MORE, after)
    return tx.all(query, stage=stage, after=key, tried=tried, quiet=quiet, most=most)


def adopt(tx: Tx, adoptions: Sequence[Adoption], *, by: str, target: str) -> list[int]:
    """Ends these items, unless somebody has them by now; says which."""
    runs = flow.lock_runs(tx, [a.run for a in adoptions])
    free = [a for a in adoptions if a.run in runs and runs[a.run].stop is None and runs[a.run].state not in TERMINAL]
    rows = sorted((a.job, a.attempt) for a in free)
    taken = {job for (job,) in tx.tuples(_TAKE, f=rows)} if rows else set()
    mine = [a._replace(attempt=a.attempt + 1) for a in free if a.job in taken]
    if not mine:
        return []
    emissions = [Emission(a.job, a.attempt, a.run, 1, a.items) for a in mine if a.items]
    refused = add_items(tx, NOBODY, emissions, runs).refused if emissions else {}
    settle(tx, NOBODY, [_outcome(a, refused.get(a.job)) for a in mine], runs=runs)
    done = [a for a in mine if a.job not in refused]
    if done:
        tx.run(_MARK, f=[(a.job, a.attempt, f"its output was there: adopted by {by}") for a in done])
        audit(tx, by, "job.adopt", target, jobs=[a.job for a in done])
    return [a.job for a in done]


def _outcome(adoption: Adoption, refused: Any) -> Outcome:
    if refused is not None:
        return Outcome(adoption.job, adoption.attempt, adoption.run, Verdict.RELEASED, reason=_RELEASED)
    return Outcome(adoption.job, adoption.attempt, adoption.run, Verdict.COMPLETED, adoption.result)
