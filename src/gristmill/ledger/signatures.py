"""Failures by fingerprint: a few signatures explain thousands of failed jobs. Listed, looked into, retried, ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.clock import to_datetime
from gristmill.errors import NotFound, Refused, quoted
from gristmill.ledger import flow
from gristmill.ledger.choose import REMOVING, THERE
from gristmill.ledger.columns import ATTEMPT, columns
from gristmill.ledger.parts import PartOfEnded
from gristmill.ledger.read import attempt, conditions
from gristmill.ledger.sql import Sql
from gristmill.ledger.stop import InClosedStage, audit, requeue_job
from gristmill.ledger.store import Tx
from gristmill.model import ErrorDetail, ErrorPlace, ErrorSubject, Rank, Signature

Where = Mapping[str, Mapping[str, Any]]

UNLESS_IGNORED: Where = {"i.fingerprint IS NULL": {}}
_NAMED = 100  # stages, subjects and jobs that a detail names, the most affected first

_JOINED = (
    "gm_attempt a JOIN gm_job j ON j.id = a.job_id LEFT JOIN gm_stage g ON g.id = j.stage_id"
    " LEFT JOIN gm_run r ON r.id = j.run_id"
)
_WITH_NAMES = (
    f"{_JOINED} JOIN gm_queue q ON q.id = j.queue_id JOIN gm_task t ON t.id = j.task_id"
    " LEFT JOIN gm_subject s ON s.id = r.subject_id"
)
# A job is failed now by this error if the error is the one that it ended with. Archived ones are left out, as in lists.
_IS_FAILED = "j.fingerprint = a.fingerprint AND j.archived_at IS NULL"
_COUNTS = f"count(DISTINCT CASE WHEN {_IS_FAILED} THEN j.id END) AS failed, count(*) AS attempts"
_IGNORED = "LEFT JOIN gm_ignored_error i ON i.fingerprint = a.fingerprint"
# Of each signature, as many attempts as there are at most, and as many jobs: both by walking an index, no job is read but
# those that are archived.
_ATTEMPTS = f"SELECT a.fingerprint, count(*) AS n FROM gm_attempt a {_IGNORED}%s GROUP BY a.fingerprint"
_FAILED = Sql("SELECT fingerprint, count(*) AS n FROM gm_job WHERE fingerprint IS NOT NULL GROUP BY fingerprint")
_ARCHIVED = Sql(  # coalesce: so that it begins with the index of what is archived, and not with that of all failures
    "SELECT coalesce(fingerprint, '') AS fingerprint, count(*) AS n FROM gm_job WHERE archived_at IS NOT NULL"
    " GROUP BY coalesce(fingerprint, '')"
)
_FEW = "{rows few: mark text} CROSS JOIN "  # SQLite begins with them
_LIST = (
    f"SELECT a.fingerprint, {_COUNTS}, count(DISTINCT r.subject_id) AS subjects, min(a.ended_at) AS first_seen,"
    f" max(a.ended_at) AS last_seen, max(i.at) AS ignored_at FROM %s{_JOINED} {_IGNORED}%s GROUP BY a.fingerprint"
)
_EXAMPLE = f"SELECT {columns(ATTEMPT, 'a')} FROM {_JOINED}%s ORDER BY a.ended_at DESC, a.job_id DESC LIMIT 1"
_EXAMPLES = (  # CROSS: SQLite begins with the few
    "SELECT a.fingerprint, a.error_class, a.error FROM {rows last: mark text, seen bigint} CROSS JOIN"
    f" {_JOINED}%s ORDER BY a.job_id"
)
_PLACES = Sql(
    f"SELECT r.pipeline, g.name AS stage, t.name AS task, q.name AS queue, {_COUNTS} FROM {_WITH_NAMES}"
    " WHERE a.fingerprint = :fingerprint GROUP BY r.pipeline, g.name, t.name, q.name"
    " ORDER BY failed DESC, attempts DESC, task LIMIT :most"
)
_SUBJECTS = Sql(
    f"SELECT s.pipeline, s.name, {_COUNTS} FROM {_WITH_NAMES} WHERE a.fingerprint = :fingerprint AND s.id IS NOT NULL"
    " GROUP BY s.id, s.pipeline, s.name ORDER BY failed DESC, attempts DESC, s.pipeline, s.name LIMIT :most"
)
_JOBS = Sql("SELECT id FROM gm_job WHERE fingerprint = :fingerprint AND archived_at IS NULL ORDER BY id DESC LIMIT :most")
_KNOWN = Sql("SELECT 1 FROM gm_attempt WHERE fingerprint = :fingerprint LIMIT 1")
_NEXT = Sql(
    "SELECT id, run_id, unique_name FROM gm_job WHERE fingerprint = :fingerprint AND id > :after AND archived_at IS NULL"
    " ORDER BY id LIMIT :most"
)
_IGNORE = Sql(
    "INSERT INTO gm_ignored_error (fingerprint, at, who) VALUES (:fingerprint, {now}, :who) ON CONFLICT DO NOTHING"
)
_HEED = Sql("DELETE FROM gm_ignored_error WHERE fingerprint = :fingerprint")


# ---- looking


def signatures(tx: Tx, where: Where, most: int, behind: Rank | None = None) -> list[Signature]:
    """What failed attempts that meet every condition have in common; what fails the most jobs now comes first. `behind`:
    the rank of the last one of the page before."""
    rows = _most_failing(tx, where, most, behind)
    examples = _examples(tx, rows, where) if rows else {}
    return [_signature(row, examples[row.fingerprint]) for row in rows]


def _most_failing(tx: Tx, where: Where, most: int, behind: Rank | None) -> list[Any]:
    """To count exactly is to read the job of every attempt. So only those are counted that can come first; and all, if
    others could come before them after all."""
    ranks = _at_most(tx, where)
    if behind is not None and _all_count(tx, where):
        ranks = [rank for rank in ranks if rank > behind]
    few = {"few.mark = a.fingerprint": {"few": [(rank[-1],) for rank in ranks[:most]]}}
    found = _counted(tx, {**few, **where}, behind, _FEW) if ranks else []
    if ranks[most:] and (len(found) < most or _rank(*found[-1][:3]) > ranks[most]):
        found = _counted(tx, where, behind)
    return found[:most]


def _all_count(tx: Tx, where: Where) -> bool:
    """Whether each signature has the very rank that it has at most."""
    return where.keys() <= UNLESS_IGNORED.keys() and tx.value(REMOVING) is None


def _counted(tx: Tx, where: Where, behind: Rank | None, of: str = "") -> list[Any]:
    clauses, values = conditions({"a.fingerprint IS NOT NULL": {}, THERE: {}, **where})
    ranked = sorted((_rank(*row[:3]), row) for row in tx.all(Sql(_LIST % (of, clauses)), **values))
    return [row for rank, row in ranked if behind is None or rank > behind]


def _at_most(tx: Tx, where: Where) -> list[Rank]:
    """The rank that each signature has if all its attempts and jobs count, the first first."""
    of_attempts = {clause: bound for clause, bound in where.items() if clause.startswith(("a.", "i."))}
    clauses, values = conditions({"a.fingerprint IS NOT NULL": {}, **of_attempts})
    failed = Counter({row.fingerprint: row.n for row in tx.all(_FAILED)})
    failed.subtract({row.fingerprint: row.n for row in tx.all(_ARCHIVED)})
    rows = tx.all(Sql(_ATTEMPTS % clauses), **values)
    return sorted(_rank(row.fingerprint, min(row.n, failed[row.fingerprint]), row.n) for row in rows)


def _rank(fingerprint: str, failed: int, attempts: int) -> Rank:
    """What fails the most jobs now comes first, then what failed the most attempts."""
    return -failed, -attempts, fingerprint


def _examples(tx: Tx, rows: Sequence[Any], where: Where) -> dict[str, Any]:
    """The last attempt of each signature, found by when it was."""
    clauses, values = conditions({"a.fingerprint = last.mark": {}, "a.ended_at = last.seen": {}, **_on_tables(where)})
    last = [(row.fingerprint, row.last_seen) for row in rows]
    return {row.fingerprint: row for row in tx.all(Sql(_EXAMPLES % clauses), last=last, **values)}


def _signature(row: Any, example: Any) -> Signature:
    return Signature(
        fingerprint=row.fingerprint,
        error_class=example.error_class,
        error=example.error,
        failed=row.failed,
        attempts=row.attempts,
        subjects=row.subjects,
        first_seen=to_datetime(row.first_seen),
        last_seen=to_datetime(row.last_seen),
        ignored=row.ignored_at is not None,
    )


def _on_tables(where: Where) -> Where:
    """The conditions on attempts; whether an error is ignored is none of them."""
    return {clause: values for clause, values in where.items() if clause not in UNLESS_IGNORED}


def detail(tx: Tx, fingerprint: str) -> ErrorDetail:
    """Everything about one signature: an example, and where it happens."""
    which: Where = {"a.fingerprint = :fingerprint": {"fingerprint": fingerprint}}
    found = signatures(tx, which, 1)
    if not found:
        raise _unknown(fingerprint)
    clauses, values = conditions(which)
    named = {"fingerprint": fingerprint, "most": _NAMED}
    return ErrorDetail(
        signature=found[0],
        example=attempt(tx.one(Sql(_EXAMPLE % clauses), **values)),
        places=tuple(ErrorPlace(*row) for row in tx.tuples(_PLACES, **named)),
        subjects=tuple(ErrorSubject(*row) for row in tx.tuples(_SUBJECTS, **named)),
        jobs=tuple(row.id for row in tx.all(_JOBS, **named)),
    )


def _unknown(fingerprint: str) -> NotFound:
    return NotFound(f"there is no error {quoted(fingerprint)}; `error list --all` shows those that there are")


# ---- retrying


class Batch(NamedTuple):
    """Failed jobs of one error that are requeued in one transaction, and the run of each."""

    jobs: Sequence[int]
    runs: Sequence[int | None]


class Requeued(NamedTuple):
    queued: int
    refusals: list[str]
    closed: dict[int, int]  # jobs in closed stages, with their run: these have to be retried
    parts: dict[int, int]  # parts of what has ended, with that job: the same


def failed_jobs(tx: Tx, fingerprint: str, after: int, most: int) -> list[Batch]:
    """The next failed jobs of this error, by id.

    One with a unique key is a batch of its own: when a twin is added at that moment, the transaction is lost.
    """
    return _batches(tx.all(_NEXT, fingerprint=fingerprint, after=after, most=most))


def _batches(rows: Sequence[Any]) -> list[Batch]:
    plain = [row for row in rows if row.unique_name is None]
    batches = [plain, *([row] for row in rows if row.unique_name is not None)]
    return [Batch([row.id for row in batch], [row.run_id for row in batch]) for batch in batches if batch]


def requeue(tx: Tx, batch: Batch, *, by: str) -> Requeued:
    """Requeues what can be; a job that cannot is left as it is, with the reason, or with what to retry for it."""
    flow.lock_runs(tx, batch.runs)  # all of them before the first job, and in their order
    refusals: list[str] = []
    closed: dict[int, int] = {}
    of: dict[int, int] = {}
    for job in batch.jobs:
        try:
            requeue_job(tx, job, by=by)
        except InClosedStage as refused:
            closed[job] = refused.run
        except PartOfEnded as refused:
            of[job] = refused.parent
        except Refused as refused:
            refusals.append(str(refused))
    return Requeued(len(batch.jobs) - len(refusals) - len(closed) - len(of), refusals, closed, of)


# ---- ignoring


def check_known(tx: Tx, fingerprint: str) -> None:
    if tx.one(_KNOWN, fingerprint=fingerprint) is None:
        raise _unknown(fingerprint)


def set_ignored(tx: Tx, fingerprint: str, ignored: bool, *, by: str) -> None:
    """Hides an error from the list, or shows it again. Its jobs stay as they are."""
    check_known(tx, fingerprint)
    changed = tx.run(_IGNORE, fingerprint=fingerprint, who=by) if ignored else tx.run(_HEED, fingerprint=fingerprint)
    if changed:
        audit(tx, by, "error.ignore" if ignored else "error.heed", f"error {fingerprint}")
