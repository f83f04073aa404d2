"""The terminal moment: an application's own SQL, in the transaction that ends its jobs, whichever route they take.

It is data (`on_terminal` in a task's spec), because those who end jobs (supervisors, reconciler, command line) never have
the application loaded. A statement sees the jobs that just ended as a table `jobs`. One that fails is undone alone and
written down: a typing error of an application must not keep a run from ending, and must not be lost either.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson
from sqlalchemy import exc

from gristmill.application import with_jobs
from gristmill.ledger.sql import Sql, numbers
from gristmill.ledger.tx import Tx
from gristmill.ledger.whose import ALL, Whose, of
from gristmill.model import Repair
from gristmill.states import TERMINAL

log = logging.getLogger("gristmill.ledger")


class Ended(NamedTuple):
    """A job that became terminal in this transaction."""

    job: int
    task: int


_DECLARED = "spec LIKE '%\"on_terminal\":%'"
_HOOKS = Sql(f"SELECT id, spec FROM gm_task WHERE id {{in ids}} AND {_DECLARED}")
_NEWEST = Sql(  # the tables may have changed since a job was planned: the newest statements fit them best
    f"SELECT spec FROM gm_task WHERE name = (SELECT name FROM gm_task WHERE id = :task) AND {_DECLARED}"
    " ORDER BY id DESC LIMIT 1"
)
_ENDED = numbers(TERMINAL)
_MISS = Sql(
    "INSERT INTO gm_missed (job_id, at, error) SELECT j.id, j.finished_at, :error FROM gm_job j WHERE j.id {in ids}"
    f" AND j.state IN ({_ENDED}) ON CONFLICT (job_id) DO UPDATE SET at = excluded.at, error = excluded.error"
)
_MISSED = Sql(
    "SELECT m.job_id, m.error, j.task_id FROM gm_missed m JOIN gm_job j ON j.id = m.job_id AND j.finished_at = m.at"
    f" WHERE m.job_id > :after AND {of('j.run_id')} ORDER BY m.job_id LIMIT :most"
)
_SETTLED = Sql("DELETE FROM gm_missed WHERE job_id {in ids}")
_MOOT = Sql(  # its job is gone, or has ended anew since
    "DELETE FROM gm_missed WHERE NOT EXISTS (SELECT 1 FROM gm_job j WHERE j.id = job_id AND j.finished_at = gm_missed.at)"
)
_TEMPORARY = ("40P01", "40001")  # the whole transaction is tried again


def moment(tx: Tx, ended: Iterable[Ended]) -> None:
    """Runs what the tasks of these jobs have declared. Called by every verb that ends jobs, after their counters."""
    jobs = list(ended)
    if not jobs:
        return
    tx.free(job for job, _ in jobs)
    hooks = {row.id: _statements(row.spec) for row in tx.all(_HOOKS, ids=sorted({task for _, task in jobs}))}
    together: dict[tuple[str, ...], list[int]] = {}
    for job, task in jobs:
        if task in hooks:
            together.setdefault(hooks[task], []).append(job)
    for statements, ids in together.items():
        error = _perform(tx, statements, ids)
        if error is not None:
            log.warning("on_terminal failed for job %d and %d more: %s; reconcile tries again", ids[0], len(ids) - 1, error)
            tx.run(_MISS, ids=ids, error=error)


def _statements(spec: str) -> tuple[str, ...]:
    return tuple(orjson.loads(spec)["on_terminal"])


def _perform(tx: Tx, statements: Sequence[str], jobs: Sequence[int]) -> str | None:
    """Runs the statements for these jobs, all or none; says what went wrong."""
    tx.script("SAVEPOINT gm_moment")
    try:
        for statement in statements:
            tx.script(with_jobs(statement, _relation(tx.dialect, jobs)))
    except exc.DBAPIError as error:
        if error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _TEMPORARY:
            raise
        tx.script("ROLLBACK TO SAVEPOINT gm_moment")
        tx.script("RELEASE SAVEPOINT gm_moment")
        return (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
    tx.script("RELEASE SAVEPOINT gm_moment")
    return None


_SEEN = (
    *("id", "run_id", "stage", "key", "task", "queue", "state", "priority", "attempt", "args", "result", "progress"),
    *("error", "error_class", "fingerprint", "created_at", "started_at", "finished_at"),
)
_COLUMNS = ", ".join(f"v.{column}" for column in _SEEN)


def _relation(dialect: str, jobs: Sequence[int]) -> str:
    """The jobs as a query, their ids written out: the application's text may hold anything that looks like a parameter."""
    ids = ",".join(map(str, jobs))
    these = f"IN (SELECT value FROM json_each('[{ids}]'))" if dialect == "sqlite" else f"= ANY('{{{ids}}}'::bigint[])"
    return (
        f"SELECT {_COLUMNS}, s.pipeline, s.name AS subject FROM gristmill_jobs v LEFT JOIN gm_run r ON r.id = v.run_id"
        f" LEFT JOIN gm_subject s ON s.id = r.subject_id WHERE v.id {these}"
    )


# ---- what failed, tried again by the reconciler


def missed(tx: Tx, after: int = 0, most: int = 100, whose: Whose = ALL) -> list[tuple[int, str]]:
    """Jobs whose moment failed, and why; a page."""
    return [(row.job_id, row.error) for row in tx.all(_MISSED, after=after, most=most, **whose._asdict())]


def catch_up(tx: Tx, after: int = 0, most: int = 100, whose: Whose = ALL) -> tuple[int | None, list[Repair]]:
    """Tries a page of them again, with the newest statements of their tasks: together, then one by one.

    Says where to go on (None: at the end), and what was mended or not.
    """
    if after == 0:
        tx.run(_MOOT)
    rows = tx.all(_MISSED, after=after, most=most, **whose._asdict())
    found: list[Repair] = []
    for task in sorted({row.task_id for row in rows}):
        jobs = [row.job_id for row in rows if row.task_id == task]
        statements = _statements(tx.value(_NEWEST, task=task))
        failed: dict[int, str] = {}
        if _perform(tx, statements, jobs) is not None:
            errors = {job: _perform(tx, statements, [job]) for job in jobs}
            failed = {job: error for job, error in errors.items() if error is not None}
        done = [job for job in jobs if job not in failed]
        if done:
            tx.run(_SETTLED, ids=done)
        found += [Repair("on_terminal", f"job {job}", "its statements had failed when it ended") for job in done]
        found += [Repair("not mended", f"job {job}", f"on_terminal: {error}") for job, error in failed.items()]
    return (rows[-1].job_id if len(rows) == most else None), found
