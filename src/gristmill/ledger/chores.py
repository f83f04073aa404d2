"""What is done to the items of a stage in batches, before it may be sealed: a million rows are never one transaction.

Each function does one batch under the lock of the run: the items of a window of keys. It says which states it took them
from, for the counters, and at which key the next batch begins; None: that was the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.ledger import parents
from gristmill.ledger.done import forget_jobs
from gristmill.ledger.moment import Ended, moment
from gristmill.ledger.sql import Sql, alike, numbers
from gristmill.ledger.tx import Tx
from gristmill.states import ACTIVE_RUN, SUCCESS, TERMINAL, State, sources

BATCH = 2000  # items of one transaction
NOT_EMITTED = "not_emitted"  # the class of an item that its producer, run again, did not give again
NOT_CHOSEN = "not_chosen"  # of one that a part run leaves as it was: failed
_GLOB = "*?"
_ANY = tuple(sorted(map(int, TERMINAL)))


class Selection(NamedTuple):
    """Which ended items to queue again: those that meet every condition."""

    states: tuple[int, ...] = _ANY
    error: str | None = None  # the fingerprint of the error that it failed with
    key: str | None = None  # a pattern with * and ?
    version: str | None = None  # what it was done with, as its function told `skip_unchanged`
    cut_off: bool = False  # and whatever the end of a run that was stopped has cancelled
    exact: bool = False  # the key is that of one item, and no pattern

    @property
    def first(self) -> str:
        """The keys that match are not before this one."""
        key = "" if self.cut_off else self.key or ""
        return key if self.exact else key[: next((n for n, sign in enumerate(key) if sign in _GLOB), len(key))]

    def matches(self, key: str, state: int, error: str | None, done: Collection[str]) -> bool:
        if self.cut_off and state == State.CANCELLED:
            return True
        return (
            state in self.states
            and (self.error is None or error == self.error)
            and (self.key is None or (key == self.key if self.exact else alike(key, self.key)))
            and (self.version is None or key in done)
        )


class Batch(NamedTuple):
    """What came of a batch: in which states its items were and are, and where the next begins."""

    before: Mapping[int, int]
    after: Mapping[int, int]
    following: str | None


# Of items just written PostgreSQL has no statistics yet: it takes them for a few, and would sort all of them each time.
_IN_ORDER = Sql("SET LOCAL enable_bitmapscan = off")
_WINDOW = Sql("SELECT key FROM gm_job WHERE stage_id = :stage AND key > :first ORDER BY key LIMIT 1 OFFSET :most")
_IN_WINDOW = "j.stage_id = :stage AND j.key >= :first AND j.key < :last"
_END = "\U0010ffff"  # after every key: a bound that may be missing would have each window read to the stage's end
_EMITTED = f"NOT (j.state = {State.SKIPPED:d} AND coalesce(j.error_class, '') = '{NOT_EMITTED}')"
_ENDED = (
    "SELECT j.id, j.key, j.state, j.fingerprint, j.queue_id FROM gm_job j"
    f" WHERE {_IN_WINDOW} AND j.state {{in states}} AND {_EMITTED}"
)
_LOOK, _ENDED_ITEMS = Sql(f"{_ENDED} ORDER BY j.key"), Sql(f"{_ENDED} ORDER BY j.id {{lock_j}}")
_DONE_WITH = Sql(  # not by LIKE: SQLite's would not tell v1 from V1
    "SELECT key FROM gm_done WHERE subject_id = :subject AND stage = :name AND key >= :first AND key < :last"
    " AND run_id = :run"
    " AND (fingerprint = :version"
    " OR substr(fingerprint, length(fingerprint) - length(CAST(:ending AS text)) + 1) = :ending)"
)
_FORGET = Sql(
    "DELETE FROM gm_done WHERE subject_id = :subject AND stage = :name AND key IN (SELECT f.key FROM {rows f: key text})"
)
_AGAIN = (  # its result stays until the next: a function may find that nothing has changed
    f"state = {State.QUEUED:d}, ready = {{ready}}, run_at = {{waits}}, worker_id = NULL, created_at = {{now}},"
    " finished_at = NULL,"
    " errors = 0, crashes = 0, timeouts = 0, losses = 0, returns = 0, alone = {false}, cancel = {false}, fingerprint = NULL,"
    " archived_at = NULL, epoch = :epoch, priority = :priority"
)
_RERUN_FROM = numbers(sources("rerun"))
_RERUN = Sql(f"UPDATE gm_job SET {_AGAIN} WHERE id {{in ids}} AND state IN ({_RERUN_FROM}) RETURNING limit_id")
_BAD_PARTS = f"parent_id {{in ids}} AND stage_id IS NULL AND state IN ({State.FAILED:d}, {State.CANCELLED:d})"
_FAILED_PARTS = Sql(f"SELECT parent_id, state, queue_id FROM gm_job WHERE {_BAD_PARTS} ORDER BY id {{lock}}")
_RERUN_PARTS = Sql(f"UPDATE gm_job SET {_AGAIN} WHERE {_BAD_PARTS} RETURNING limit_id")
# A job never ends before its parts, nor is it taken from them: one that has some under way goes on as it is.
_WHOLE = "(%sparts_left IS NULL OR %sparts_left = 0)"
_RENEW = Sql(
    f"UPDATE gm_job SET {_AGAIN}, args = f.args, error = NULL, error_class = NULL FROM {{rows f: job bigint, args text}}"
    f" WHERE gm_job.id = f.job AND state IN ({_RERUN_FROM}, {State.QUEUED:d}) AND {_WHOLE % ('', '')}"
    " RETURNING limit_id"
)
_STALE = Sql(
    "SELECT j.id, j.state, j.task_id FROM gm_job j JOIN gm_job p ON p.id = j.parent_id"
    f" WHERE {_IN_WINDOW} AND p.run_id = j.run_id AND p.epoch IS NOT NULL AND p.attempt <> j.parent_attempt"
    f" AND p.state IN ({numbers(SUCCESS)})"
    f" AND {_EMITTED} AND {_WHOLE % ('j.', 'j.')} ORDER BY j.id {{lock_j}}"
)
_SKIP = Sql(  # a higher attempt: whatever came from it is stale too
    f"UPDATE gm_job SET state = {State.SKIPPED:d}, attempt = attempt + 1, epoch = :epoch, ready = NULL, run_at = NULL,"
    " worker_id = NULL, unique_key = NULL, cancel = {false}, result = NULL, fingerprint = NULL, finished_at = {now},"
    f" error = 'no longer emitted', error_class = '{NOT_EMITTED}' WHERE id {{in ids}}"
)
_NOT_RUN = f"h.attempt = 0 AND h.state IN ({numbers(SUCCESS)})"  # it is here as it was
# Keys of a limit are asked for when items are emitted: if the stage has another one now, all that it had have one together.
_LIMIT_NOW = "CASE WHEN l.name = r.name THEN l.id ELSE CAST(:rule AS int) END"
_ITEMS_BEFORE = Sql(  # with their producers there, and those here that stand for these
    "SELECT j.id, coalesce(h.id, j.parent_id), coalesce(h.attempt, j.parent_attempt),"
    f" {_LIMIT_NOW}, j.key, g.name AS producer, h.id IS NOT NULL AS kept"
    " FROM gm_job j LEFT JOIN gm_job p ON p.id = j.parent_id"
    " LEFT JOIN gm_stage g ON g.id = p.stage_id LEFT JOIN gm_stage o ON o.run_id = :run AND o.name = g.name"
    f" LEFT JOIN gm_job h ON h.stage_id = o.id AND h.key = p.key AND {_NOT_RUN}"
    " LEFT JOIN gm_limit l ON l.id = j.limit_id LEFT JOIN gm_limit r ON r.id = CAST(:rule AS int)"
    f" WHERE {_IN_WINDOW} AND {_EMITTED} ORDER BY j.key"
)
_SAME = (  # what does not pass through here may be large
    "INSERT INTO gm_job (run_id, stage_id, task_id, queue_id, pool, priority, key, args, parent_id, parent_attempt,"
    " created_at, limit_id, %s) SELECT :run, CAST(:stage AS bigint), :task, :queue, :pool, :priority, j.key, j.args,"
    " f.parent, f.number, {now}, f.lim, %s FROM {rows f: job bigint, parent bigint, number int, lim int}"
    " JOIN gm_job j ON j.id = f.job WHERE true ORDER BY j.key"  # in line as they were: a join has no order
    " ON CONFLICT (stage_id, key) WHERE stage_id IS NOT NULL DO NOTHING RETURNING state, id, limit_id"
)
_TO_DO = Sql(
    _SAME
    % (
        "state, ready, run_at",
        f"{State.QUEUED:d}, CASE WHEN f.lim IS NULL THEN {{next}} END, CASE WHEN f.lim IS NOT NULL THEN {{waiting}} END",
    )
)
_BAD = f"j.state IN ({State.FAILED:d}, {State.CANCELLED:d})"
_AS_IT_IS = Sql(
    _SAME
    % (
        "state, result, error, error_class, finished_at",
        f"CASE WHEN {_BAD} THEN {State.SKIPPED:d} ELSE j.state END, j.result,"
        f" CASE WHEN {_BAD} THEN 'not chosen; before: ' || coalesce(j.error, '') ELSE j.error END,"
        f" CASE WHEN {_BAD} THEN '{NOT_CHOSEN}' END, {{now}}",
    )
)
PENDING = Sql(
    "SELECT DISTINCT g.run_id FROM gm_stage g JOIN gm_run r ON r.id = g.run_id"
    " WHERE (g.todo IS NOT NULL OR g.pruning IS NOT NULL) AND (g.todo IS NOT NULL OR g.waiting_for = 1)"
    f" AND r.state IN ({numbers(ACTIVE_RUN)}) AND r.stop IS NULL ORDER BY g.run_id"
)


def pending(tx: Tx) -> list[int]:
    """Runs that have such a batch to do now."""
    return [row.run_id for row in tx.all(PENDING)]


def requeue(
    tx: Tx, run: Mapping[str, Any], stage: Mapping[str, Any], chosen: Selection, first: str, most: int = BATCH
) -> Batch:
    """Queues the chosen items of a window again. What was chosen runs, whether or not it has changed."""
    window, following = _window(tx, stage["id"], first, most)
    rows = select(tx, run, stage, chosen, window, lock=True)
    if rows:
        forget(tx, run, stage, [row.key for row in rows])
        rerun(tx, run, [row.id for row in rows])
        for queue in {row.queue_id for row in rows}:
            tx.ring(queue)
    beyond = following is not None and not following.startswith(chosen.first)
    return Batch(Counter(row.state for row in rows), {State.QUEUED: len(rows)}, None if beyond else following)


def forget(tx: Tx, run: Mapping[str, Any], stage: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Items that somebody has chosen run, whether or not they have changed."""
    tx.run(_FORGET, subject=run["subject_id"], name=stage["name"], f=[(key,) for key in keys])


def select(
    tx: Tx, run: Mapping[str, Any], stage: Mapping[str, Any], chosen: Selection, window: Mapping[str, Any], *, lock: bool
) -> list[Any]:
    states = {*chosen.states, *([State.CANCELLED] if chosen.cut_off else [])}
    rows = tx.all(_ENDED_ITEMS if lock else _LOOK, states=sorted(states), **window)
    done: set[str] = set()
    if chosen.version is not None and rows:
        which = {"version": chosen.version, "ending": f":{chosen.version}", "run": run["id"]}
        place = {"subject": run["subject_id"], "name": stage["name"], "first": window["first"], "last": window["last"]}
        done = {row.key for row in tx.all(_DONE_WITH, **which, **place)}
    return [row for row in rows if chosen.matches(row.key, row.state, row.fingerprint, done)]


def count(tx: Tx, run: Mapping[str, Any], stage: Mapping[str, Any], chosen: Selection) -> Counter[int]:
    """How many items of each state a selection would choose of a stage. Only looks."""
    counts: Counter[int] = Counter()
    first: str | None = chosen.first
    while first is not None:
        window, following = _window(tx, stage["id"], first, BATCH)
        counts.update(row.state for row in select(tx, run, stage, chosen, window, lock=False))
        first = following if following is not None and following.startswith(chosen.first) else None
    return counts


def rerun(tx: Tx, run: Mapping[str, Any], ids: Sequence[int]) -> None:
    """Queues ended jobs of a run again, and with them their parts that failed."""
    _poke(tx, tx.all(_RERUN, ids=ids, epoch=run["epoch"], priority=run["priority"]))
    failed: dict[int, Counter[int]] = {}
    for part in tx.all(_FAILED_PARTS, ids=ids):
        failed.setdefault(part.parent_id, Counter())[part.state] += 1
        tx.ring(part.queue_id)
    for job, states in sorted(failed.items()):
        parents.uncount(tx, job, states)
    if failed:
        _poke(tx, tx.all(_RERUN_PARTS, ids=sorted(failed), epoch=run["epoch"], priority=run["priority"]))


def _poke(tx: Tx, queued: Sequence[Any]) -> None:
    for limit in {row.limit_id for row in queued}:
        tx.poke(limit)


def renew(tx: Tx, epoch: int, priority: int, rows: Sequence[tuple[int, str | None]]) -> None:
    """Queues items again with other arguments. An attempt that is under way is not theirs any more."""
    tx.free(job for job, _ in rows)
    _poke(tx, tx.all(_RENEW, epoch=epoch, priority=priority, f=rows))


def prune(tx: Tx, run: Mapping[str, Any], stage: Mapping[str, Any], first: str, most: int = BATCH) -> Batch:
    """Skips the items of a window whose producer was run again, succeeded, and did not give them again."""
    window, following = _window(tx, stage["id"], first, most)
    rows = tx.all(_STALE, **window)
    if rows:
        tx.run(_SKIP, ids=[row.id for row in rows], epoch=run["epoch"])
        forget_jobs(tx, [row.id for row in rows])
        moment(tx, [Ended(row.id, row.task_id) for row in rows])
    return Batch(Counter(row.state for row in rows), {State.SKIPPED: len(rows)}, following)


def take_over(
    tx: Tx,
    run: Mapping[str, Any],
    stage: Mapping[str, Any],
    todo: Mapping[str, Any],
    own: Collection[str],
    most: int = BATCH,
) -> Batch:
    """Adds the items that a stage had in an earlier run: those that do not come from a stage which is run here too (`own`,
    by name: they may come from a run before that one).

    If only some keys are wanted, the others are here as they were, with their results; and so is what came from those.
    """
    window, following = _window(tx, todo["source"], todo["from"], most)
    globs = todo["keys"]
    found = tx.all(_ITEMS_BEFORE, run=run["id"], rule=stage["limit_id"], **window)
    rows = [row for row in found if row.kept or row.producer not in own]
    chosen = {row.id for row in rows if not row.kept and (globs is None or any(alike(row.key, glob) for glob in globs))}
    wanted = [row[:4] for row in rows if row.id in chosen]
    others = [row[:4] for row in rows if row.id not in chosen]
    how = {"run": run["id"], "stage": stage["id"], "priority": run["priority"]}
    how |= {"task": stage["task_id"], "queue": stage["queue_id"], "pool": stage["pool"]}
    added = tx.tuples(_TO_DO, f=wanted, **how) if wanted else []
    if added:
        tx.ring(stage["queue_id"])
    for _, _, limit in added:
        tx.poke(limit)
    ended = tx.tuples(_AS_IT_IS, f=others, **how) if others else []
    moment(tx, [Ended(job, stage["task_id"]) for _, job, _ in ended])
    return Batch({}, Counter(state for state, _, _ in added + ended), following)


def _window(tx: Tx, stage: int, first: str, most: int) -> tuple[dict[str, Any], str | None]:
    """The items of a stage from a key on, as many as a batch has; and the key after these."""
    if tx.dialect == "postgresql":
        tx.run(_IN_ORDER)
    following: str | None = tx.value(_WINDOW, stage=stage, first=first, most=most)
    return {"stage": stage, "first": first, "last": following or _END}, following
