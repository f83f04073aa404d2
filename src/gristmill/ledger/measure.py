"""Everything that `/metrics` says, in one look of few statements; nothing that grows with the number of jobs or subjects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import orjson

from gristmill.clock import SECOND
from gristmill.ledger import failures, limits, minutes
from gristmill.ledger.columns import REVISION
from gristmill.ledger.depth import COUNTED, Depth, depths
from gristmill.ledger.read import now
from gristmill.ledger.sql import Sql, numbers
from gristmill.ledger.store import Tx
from gristmill.limit import Numbers
from gristmill.metrics import Family
from gristmill.rollup import BOUNDS, ENDS
from gristmill.settings import VERSION
from gristmill.states import ACTIVE_RUN, StageState, State, WorkerState

_MOST_KEYS = 20  # of limits that hold something back, those with the most that waits
_MOST_CLASSES = 100  # of errors, those that failed the most attempts
_MOST_RUNS = 500  # active runs that are looked at for whether they are stuck: of more, as many as in these at least

_QUEUES = Sql(
    "SELECT q.id, q.name, q.paused, l.chosen FROM gm_queue q LEFT JOIN gm_limit l ON l.id = q.limit_id ORDER BY q.name"
)
_WORKERS = Sql(f"SELECT id, queues, slots, lease_until FROM gm_worker WHERE state = {WorkerState.ACTIVE:d}")
_RUNS = Sql(
    "SELECT pipeline, state, count(*) AS n, min(created_at) AS oldest FROM gm_run"
    f" WHERE state IN ({numbers(ACTIVE_RUN)}) GROUP BY pipeline, state"
    " UNION ALL SELECT pipeline, state, count(*), min(created_at) FROM gm_run"
    f" WHERE state = {State.WAITING:d} GROUP BY pipeline, state"
)
# Active, but none of its jobs is left to move it on: whatever it waits for will not come by itself.
_STUCK = Sql(
    "SELECT r.id, r.pipeline FROM (SELECT id, pipeline FROM gm_run"
    f" WHERE state IN ({numbers(ACTIVE_RUN)}) AND stop IS NULL ORDER BY subject_id LIMIT :most) AS r"
    " WHERE NOT EXISTS (SELECT 1 FROM gm_stage s WHERE s.run_id = r.id"
    f" AND s.state <> {StageState.CLOSED:d} AND (s.total > s.completed + s.failed + s.skipped + s.cancelled"
    " OR s.todo IS NOT NULL OR s.pruning IS NOT NULL)) ORDER BY r.id"
)
_REPAIRS = Sql("SELECT what, sum(items) AS n FROM gm_recovery GROUP BY what ORDER BY what")
_SCHEDULES = Sql(
    "SELECT count(due_at) AS active, count(paused_at) AS paused, count(*) AS every, min(due_at) AS due FROM gm_schedule"
)
_CIRCUITS = Sql("SELECT name, count(*) AS n FROM gm_limit WHERE open_until IS NOT NULL GROUP BY name ORDER BY name")
_NAMES = Sql("SELECT name, id FROM gm_limit WHERE key = '' ORDER BY name")
_BINDING = Sql(
    "SELECT id, sum(n) AS waiting FROM (SELECT limit_id AS id, count(*) AS n FROM"
    " (SELECT limit_id FROM gm_job WHERE run_at = {waiting} LIMIT :most) AS sampled GROUP BY limit_id"
    " UNION ALL SELECT id, 0 FROM gm_limit WHERE open_until IS NOT NULL) AS binding"
    " GROUP BY id ORDER BY sum(n) DESC, id LIMIT :keys"
)
_KEYS = Sql(f"SELECT {limits.NUMBERS}, k.open_until FROM {limits.WITH_RULE} WHERE k.id {{in ids}} ORDER BY k.name, k.key")
_RUNNING = Sql(
    "SELECT p.limit_id, count(*) AS n FROM gm_permit p JOIN gm_job j ON j.id = p.job_id"
    f" WHERE p.limit_id {{in ids}} AND j.state = {State.IN_PROGRESS:d} GROUP BY p.limit_id"
)


def measure(tx: Tx, known: minutes.Settled | None = None) -> list[Family]:
    """`known`: what was counted in former hours, for who is asked again and again."""
    tx.by_key()
    at = now(tx)
    rows = tx.all(_QUEUES)
    found, busy = depths(tx)
    workers = tx.all(_WORKERS)
    return [
        _info(),
        *_queues(rows, found, workers, at),
        *_ended(tx, known),
        _failed(tx),
        *_workers(workers, busy, at),
        *_runs(tx, at),
        _repairs(tx),
        *_schedules(tx, at),
        *_limits(tx),
    ]


def _info() -> Family:
    family = Family("gristmill_info", "gauge", "Always 1; the version that answers, and the schema that it is for.")
    family.add(1, version=VERSION, schema=REVISION)
    return family


def _queues(rows: Sequence[Any], found: dict[int, dict[str, Depth]], workers: Sequence[Any], at: int) -> list[Family]:
    jobs = Family("gristmill_queue_jobs", "gauge", f"Jobs that are not over, by state; beyond {COUNTED} about.")
    oldest = Family(
        "gristmill_queue_oldest_seconds", "gauge", "Since when the oldest waits (in_progress: runs). 0: there is none."
    )
    wanted = Family(
        "gristmill_queue_wanted_slots", "gauge", "Jobs that want a slot now: in progress, or ready and let start."
    )
    paused = Family("gristmill_queue_paused", "gauge", "1: nothing of it starts until it is resumed.")
    served = Family("gristmill_queue_workers", "gauge", "Workers that serve it.")
    for row in rows:
        states = found[row.id]
        for state, depth in states.items():
            jobs.add(depth.n, queue=row.name, state=state)
            if state != "delayed":  # they wait for their time, not for us
                oldest.add(_seconds(depth.oldest, at), queue=row.name, state=state)
        wanted.add(_wanted(states, bool(row.paused), Numbers.of(row.chosen).at_once), queue=row.name)
        paused.add(int(row.paused), queue=row.name)
        served.add(sum(not (of := orjson.loads(w.queues)) or row.name in of for w in workers), queue=row.name)
    return [jobs, oldest, wanted, paused, served]


def _wanted(states: dict[str, Depth], paused: bool, at_once: int | None) -> int:
    running = states["in_progress"].n
    every = running if paused else running + states["ready"].n
    return every if at_once is None else max(running, min(every, at_once))


def _ended(tx: Tx, known: minutes.Settled | None) -> list[Family]:
    """From what is counted with the ends themselves, by the minute: so these survive restarts and pruning, and only grow."""
    finished = Family("gristmill_jobs_finished_total", "counter", "Jobs that ended, by outcome.")
    retried = Family("gristmill_attempts_retried_total", "counter", "Attempts that failed and were followed by another.")
    ran = Family("gristmill_job_run_seconds", "histogram", "How long attempts took.")
    waited = Family("gristmill_job_wait_seconds", "histogram", "How long jobs waited for their first attempt.")
    for total in minutes.totals(tx, known=known):
        of, counted = {"queue": total.queue, "task": total.task}, total.done
        for outcome in ENDS:
            finished.add(getattr(counted, outcome), **of, outcome=outcome)
        retried.add(counted.retried, **of)
        ran.add_histogram(BOUNDS, counted.ran_in, counted.ran, **of)
        waited.add_histogram(BOUNDS, counted.waited_in, counted.waited, **of)
    return [finished, retried, ran, waited]


def _failed(tx: Tx) -> Family:
    said = f"Attempts that failed, by the class of the error; of the {_MOST_CLASSES} with the most."
    family = Family("gristmill_attempts_failed_total", "counter", said)
    for kind, attempts in failures.totals(tx, _MOST_CLASSES):
        family.add(attempts, error_class=kind)
    return family


def _workers(rows: Sequence[Any], busy: dict[int, int], at: int) -> list[Family]:
    workers = Family("gristmill_workers", "gauge", "Workers; late: silent since its lease ended, not given up yet.")
    late = sum(row.lease_until < at for row in rows)
    workers.add(len(rows) - late, state="active")
    workers.add(late, state="late")
    working = Family("gristmill_workers_busy", "gauge", "Workers that have jobs in hand.")
    working.add(sum(1 for row in rows if busy.get(row.id)))
    slots = Family("gristmill_slots", "gauge", "Slots for plain functions, of all workers.")
    slots.add(sum(row.slots for row in rows))
    taken = Family("gristmill_slots_busy", "gauge", "Of these, how many have jobs in hand.")
    taken.add(sum(min(busy.get(row.id, 0), row.slots) for row in rows))
    return [workers, working, slots, taken]


def _runs(tx: Tx, at: int) -> list[Family]:
    runs = Family("gristmill_runs", "gauge", "Runs that are not over, by state.")
    oldest = Family("gristmill_run_oldest_seconds", "gauge", "Since when the oldest active run is.")
    first: dict[str, int] = {}
    for row in sorted(tx.all(_RUNS)):
        runs.add(row.n, pipeline=row.pipeline, state=State(row.state).word)
        if row.state in ACTIVE_RUN:
            first[row.pipeline] = min(row.oldest, first.get(row.pipeline, row.oldest))
    for pipeline, since in first.items():
        oldest.add(_seconds(since, at), pipeline=pipeline)
    stuck = Family(
        "gristmill_subjects_stuck", "gauge", "Subjects whose run has no job left that could move it on: see reconcile."
    )
    by_pipeline = Counter(row.pipeline for row in (stuck_runs(tx) if first else ()))
    for pipeline in first:
        stuck.add(by_pipeline[pipeline], pipeline=pipeline)
    return [runs, oldest, stuck]


def stuck_runs(tx: Tx) -> Sequence[Any]:
    return tx.all(_STUCK, most=_MOST_RUNS)


def _repairs(tx: Tx) -> Family:
    family = Family(
        "gristmill_repairs_total", "counter", "What reconcile mended for subjects: repair, check, adopt, rescue."
    )
    none = dict.fromkeys(("repair", "check", "adopt", "rescue"), 0)
    counted = none | {row.what: int(row.n) for row in tx.all(_REPAIRS)}
    for what, count in counted.items():
        family.add(count, what=what)
    return family


def _schedules(tx: Tx, at: int) -> list[Family]:
    row = tx.one(_SCHEDULES)
    schedules = Family("gristmill_schedules", "gauge", "Schedules, by state.")
    for state, count in (("on", row.active), ("paused", row.paused), ("off", row.every - row.active - row.paused)):
        schedules.add(count, state=state)
    lag = Family("gristmill_schedule_lag_seconds", "gauge", "How late the schedule is that is latest.")
    lag.add(_seconds(row.due, at))
    return [schedules, lag]


def _limits(tx: Tx) -> list[Family]:
    """Of keys only those that hold something back: there may be as many as hosts in the world."""
    circuits = Family("gristmill_limit_circuits_open", "gauge", "Keys that are left alone after failures.")
    opened = {row.name: row.n for row in tx.all(_CIRCUITS)}
    for row in tx.all(_NAMES):
        circuits.add(opened.get(row.name, 0), limit=row.name)
    waiting = Family(
        "gristmill_limit_waiting", "gauge", f"Jobs that wait for a key's limit; of the {_MOST_KEYS} keys with the most."
    )
    running = Family("gristmill_limit_running", "gauge", "Of the same keys, jobs in progress.")
    at_once = Family("gristmill_limit_at_once", "gauge", "Of the same keys, how many may be, where that is limited.")
    shut = Family("gristmill_limit_circuit_open", "gauge", "Of the same keys, 1: it is left alone after failures.")
    binding = {row.id: int(row.waiting) for row in tx.all(_BINDING, most=COUNTED, keys=_MOST_KEYS)}
    busy: dict[int, int] = defaultdict(int)
    busy |= {row.limit_id: row.n for row in tx.all(_RUNNING, ids=list(binding))} if binding else {}
    for row in tx.all(_KEYS, ids=list(binding)) if binding else ():
        key = {"limit": row.name, "key": row.key}
        waiting.add(binding[row.id], **key)
        running.add(busy[row.id], **key)
        most = Numbers.of(row.declared, row.chosen, row.own).at_once
        if most is not None:
            at_once.add(most, **key)
        shut.add(int(row.open_until is not None), **key)
    return [circuits, waiting, running, at_once, shut]


def _seconds(since: int | None, at: int) -> float:
    return 0 if since is None else max(0, at - since) / SECOND
