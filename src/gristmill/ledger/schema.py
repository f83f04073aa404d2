"""The tables, as SQLAlchemy describes them; migrations/ brings a database to this state.

Times are microseconds since 1970, states small integers, payloads JSON text. `gristmill_jobs`, `gristmill_runs` and
`gristmill_stages` are views with words and timestamps, for people.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from gristmill.ledger.schema_delivery import delivery_tables
from gristmill.ledger.schema_watching import Id, watching_tables
from gristmill.ledger.sql import WAITING
from gristmill.states import StageState, State

metadata = MetaData()
Key = Text().with_variant(Text(collation="C"), "postgresql")  # walked in byte order, as SQLite does anyway
_ZERO = text("0")

# One row: what holds for the ledger as a whole.
book = Table(
    "gm_ledger",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False, server_default="1"),  # workers below it are of a time before a restore
    Column("oldest", Text, nullable=False),  # the REVISION of the oldest code that may work on this schema
    CheckConstraint("id = 1", name="gm_ledger_one"),
)

queue = Table(
    "gm_queue",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("weight", Double, nullable=False, server_default="1"),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("limit_id", Integer),  # what of it may run at once, or how often; NULL, as nearly always: as much as there is
    CheckConstraint("weight > 0", name="gm_queue_weight"),
)

# A limit (its key is '') and each of its keys, which may have numbers of their own. Those of queues are named "queue".
limit = Table(
    "gm_limit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("key", Key, nullable=False),
    Column("declared", Text),  # JSON: the numbers that an application gives
    Column("chosen", Text),  # JSON: those that a person has set, which count more
    Column("tokens", Double, nullable=False, server_default=_ZERO),  # starts that were due and not taken at `stamped`
    Column("stamped", BigInteger, nullable=False, server_default=_ZERO),
    Column("failures", Integer, nullable=False, server_default=_ZERO),  # in a row
    Column("open_until", BigInteger),  # set: its circuit is open, and after that one job at a time tries it
    Column("due_at", BigInteger),  # when the next may go on; NULL: when one ends, or there are none
    Column("more", Boolean, nullable=False, server_default=text("false")),  # more go on when some of its line have begun
    UniqueConstraint("name", "key", name="gm_limit_once"),
)
_IS_DUE = text("due_at IS NOT NULL")
Index("gm_limit_due", limit.c.due_at, sqlite_where=_IS_DUE, postgresql_where=_IS_DUE)

# Which jobs count against a limit, in the line or in progress. What does no more is removed when it is next looked at.
permit = Table(
    "gm_permit",
    metadata,
    Column("limit_id", Integer, primary_key=True, autoincrement=False),
    Column("job_id", BigInteger, primary_key=True, autoincrement=False, index=True),
    Column("in_line", Boolean, nullable=False),  # when it was last looked at
)

# How jobs of a task are run: name, timeout, retries. Immutable and shared, so that a job only carries a number and
# a supervisor never has to import an application.
task = Table(
    "gm_task",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("spec", Text, nullable=False),
    UniqueConstraint("name", "spec", name="gm_task_once"),
)

# What jobs ask of the machine that runs them. Few rows, which never change; 0, nothing, has none. See `gristmill.demand`.
resource_class = Table(
    "gm_class",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("demand", Text, nullable=False, unique=True),
)

_STALE_AT = "CASE WHEN last_run_at > chosen_at THEN last_run_at ELSE chosen_at END"

# What is asked of subjects by the thousand is in their own rows: to look it up in runs would be a join for each.
subject = Table(
    "gm_subject",
    metadata,
    Column("id", Id, primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("interval", BigInteger),  # microseconds between two runs, where it wants its own
    Column("last_run_id", BigInteger),  # that ended
    Column("last_state", SmallInteger),
    Column("last_run_at", BigInteger),
    Column("last_good_run_id", BigInteger),
    Column("last_good_at", BigInteger, nullable=False, server_default=_ZERO),  # 0: never; the stalest come first
    Column("chosen_at", BigInteger, nullable=False, server_default=_ZERO),  # when a schedule last chose or met it running
    # What the stalest are found by, in the order of an index: the last end or choice; and when its own interval is over.
    Column("stale_at", BigInteger, Computed(_STALE_AT, persisted=True)),
    Column("due_at", BigInteger, Computed(f'{_STALE_AT} + "interval"', persisted=True)),
    UniqueConstraint("pipeline", "name", name="gm_subject_once"),
    CheckConstraint('"interval" > 0', name="gm_subject_interval"),
)
Index("gm_subject_state", subject.c.last_state, subject.c.id)
Index("gm_subject_age", subject.c.last_good_at)
_NO_INTERVAL, _OWN_INTERVAL = text('"interval" IS NULL'), text('"interval" IS NOT NULL')
Index(
    "gm_subject_stale",
    subject.c.pipeline,
    subject.c.stale_at,
    subject.c.name,
    sqlite_where=_NO_INTERVAL,
    postgresql_where=_NO_INTERVAL,
)
Index(
    "gm_subject_due",
    subject.c.pipeline,
    subject.c.due_at,
    subject.c.name,
    sqlite_where=_OWN_INTERVAL,
    postgresql_where=_OWN_INTERVAL,
)

label = Table(
    "gm_label",
    metadata,
    Column("subject_id", BigInteger, ForeignKey("gm_subject.id", ondelete="CASCADE"), primary_key=True),
    Column("key", Key, primary_key=True),
    Column("value", Key, nullable=False),
)
Index("gm_label_value", label.c.key, label.c.value, label.c.subject_id)

run = Table(
    "gm_run",
    metadata,
    Column("id", Id, primary_key=True),
    Column("subject_id", BigInteger, ForeignKey("gm_subject.id"), nullable=False),
    Column("pipeline", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("epoch", Integer, nullable=False, server_default="1"),
    Column("args", Text, nullable=False),
    Column("error", Text),
    Column("reason", Text),
    Column("stop", SmallInteger),  # set: the run is being stopped, and this is the state that it will end in
    Column("stop_by", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("retried_at", BigInteger),  # when it went on, after it had ended
    CheckConstraint("(finished_at IS NULL) = (state IN (0, 1, 7))", name="gm_run_finished"),
    sqlite_autoincrement=True,  # runs can be removed, and SQLite would give their numbers again
)
Index(
    "gm_run_one_active",
    run.c.subject_id,
    unique=True,
    sqlite_where=run.c.state.in_([State.QUEUED, State.IN_PROGRESS]),
    postgresql_where=run.c.state.in_([State.QUEUED, State.IN_PROGRESS]),
)
Index(
    "gm_run_one_waiting",
    run.c.subject_id,
    unique=True,
    sqlite_where=run.c.state == State.WAITING,
    postgresql_where=run.c.state == State.WAITING,
)
_IS_STOPPING = text("stop IS NOT NULL AND finished_at IS NULL")
Index("gm_run_stopping", run.c.id, sqlite_where=_IS_STOPPING, postgresql_where=_IS_STOPPING)
Index("gm_run_of_subject", run.c.subject_id, run.c.id)

stage = Table(
    "gm_stage",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", BigInteger, ForeignKey("gm_run.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("position", SmallInteger, nullable=False),
    Column("task_id", Integer, ForeignKey("gm_task.id"), nullable=False),
    Column("queue_id", Integer, ForeignKey("gm_queue.id"), nullable=False),
    Column("pool", SmallInteger, nullable=False),
    Column("each", Boolean, nullable=False),
    Column("gate", Boolean, nullable=False),
    Column("need_count", Integer),
    Column("need_share", Double),
    Column("waiting_for", SmallInteger, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("outcome", SmallInteger),
    Column("total", BigInteger, nullable=False, server_default=_ZERO),
    Column("completed", BigInteger, nullable=False, server_default=_ZERO),
    Column("with_errors", BigInteger, nullable=False, server_default=_ZERO),
    Column("failed", BigInteger, nullable=False, server_default=_ZERO),
    Column("skipped", BigInteger, nullable=False, server_default=_ZERO),
    Column("cancelled", BigInteger, nullable=False, server_default=_ZERO),
    Column("opened_at", BigInteger),
    Column("closed_at", BigInteger),
    Column("limit_id", Integer),  # of its one job; of an `each` stage, the limit that its items have a key of
    Column("source_id", BigInteger),  # the stage of an earlier run that it stands for: its results are that one's
    # What is left to do before it may be sealed, in batches; each counts in waiting_for like a stage before it.
    Column("todo", Text),  # JSON: items to queue again, or to take over from an earlier run, and from which key on
    Column("pruning", Text),  # items that are no longer emitted are to be skipped, from this key on
    UniqueConstraint("run_id", "name", name="gm_stage_once"),
    CheckConstraint("waiting_for >= 0", name="gm_stage_waiting_for"),
    CheckConstraint("completed + failed + skipped + cancelled <= total", name="gm_stage_sum"),
    CheckConstraint("with_errors <= completed", name="gm_stage_with_errors"),
    CheckConstraint(
        f"state <> {StageState.CLOSED:d} OR completed + failed + skipped + cancelled = total", name="gm_stage_closed"
    ),
    sqlite_autoincrement=True,  # as for runs
)
Index(
    "gm_stage_source",
    stage.c.source_id,
    sqlite_where=stage.c.source_id.is_not(None),
    postgresql_where=stage.c.source_id.is_not(None),
)
Index(
    "gm_stage_chores",
    stage.c.run_id,
    sqlite_where=text("todo IS NOT NULL OR pruning IS NOT NULL"),
    postgresql_where=text("todo IS NOT NULL OR pruning IS NOT NULL"),
)

edge = Table(
    "gm_edge",
    metadata,
    Column("upstream_id", BigInteger, ForeignKey("gm_stage.id", ondelete="CASCADE"), primary_key=True),
    Column("downstream_id", BigInteger, ForeignKey("gm_stage.id", ondelete="CASCADE"), primary_key=True, index=True),
)

_ODD = f"{State.COMPLETED_WITH_ERRORS:d}, {State.CANCELLED:d}"

# The hot table. Few indexes: every one that an update touches costs a rewrite of all of them on PostgreSQL, and a
# quarter of the rate on SQLite. No foreign keys for the same reason: verbs insert jobs only under the lock of their run.
job = Table(
    "gm_job",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", BigInteger),
    Column("stage_id", BigInteger),
    Column("parent_id", BigInteger),  # the job that emitted it; without a stage of its own it is a part of that job
    Column("ready", BigInteger),  # its place in the line; NULL: delayed, or not queued
    Column("run_at", BigInteger),  # queued but delayed until then, or WAITING for a limit; NULL otherwise
    Column("worker_id", BigInteger),  # who holds it
    Column("emitted", BigInteger, nullable=False, server_default=_ZERO),  # the last batch of items that it gave
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("task_id", Integer, nullable=False),
    Column("queue_id", Integer, nullable=False),
    Column("limit_id", Integer),  # the key whose limits it keeps to; NULL, as nearly always: none
    Column("attempt", Integer, nullable=False, server_default=_ZERO),  # +1 at every claim, never lowered: the fence
    Column("parent_attempt", Integer),
    Column("epoch", Integer),  # of its run, when it was last queued again by a retry of that; NULL: never
    Column("pool", SmallInteger, nullable=False),  # twice its class, plus the kind of child: 0 a process, 1 an event loop
    Column("priority", SmallInteger, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("errors", SmallInteger, nullable=False, server_default=_ZERO),
    Column("crashes", SmallInteger, nullable=False, server_default=_ZERO),
    Column("timeouts", SmallInteger, nullable=False, server_default=_ZERO),
    Column("losses", SmallInteger, nullable=False, server_default=_ZERO),
    Column("returns", Integer, nullable=False, server_default=_ZERO),
    Column("unique_scope", SmallInteger),  # 0: among unfinished jobs; 1: among queued ones, so a claim clears the key
    Column("cancel", Boolean, nullable=False, server_default=text("false")),  # asked for while a worker holds it
    Column("alone", Boolean, nullable=False, server_default=text("false")),  # suspected of a crash: no bystanders
    Column("key", Key),
    Column("unique_key", Text),  # while it refuses twins
    Column("unique_name", Text),  # the same key for good: a requeued job refuses twins again
    Column("args", Text),
    Column("result", Text),
    Column("error", Text),
    Column("error_class", Text),
    Column("progress", Text),
    Column("fingerprint", Text),  # of the error that it failed with; NULL unless it is failed now
    Column("archived_at", BigInteger),  # since when lists leave it out
    # Ends that are rare, so that they are found among millions; by a column of their own for the reason below.
    Column("odd", SmallInteger, Computed(f"CASE WHEN state IN ({_ODD}) THEN state END", persisted=True)),
    Column("parts", Integer),  # how many it has; NULL, as are the next two, in nearly every job: it has none
    Column("parts_left", Integer),  # that have not ended
    Column("parts_failed", Integer),  # or were cancelled
    Column("ends_as", SmallInteger),  # its end is decided, and this is the state, but parts of it have not ended yet
    # What else may be set in which state. One constraint, since every update of a job pays for it.
    CheckConstraint(
        "CASE state WHEN 0 THEN worker_id IS NULL AND finished_at IS NULL AND (ready IS NULL OR run_at IS NULL)"
        " WHEN 1 THEN worker_id IS NOT NULL AND ready IS NULL AND run_at IS NULL AND finished_at IS NULL"
        " ELSE worker_id IS NULL AND ready IS NULL AND run_at IS NULL AND finished_at IS NOT NULL END"
        " AND CASE WHEN parts_left IS NULL THEN ends_as IS NULL"
        " ELSE parts_left >= 0 AND parts_failed >= 0 AND parts_left + parts_failed <= parts"
        " AND (parts_left = 0 OR state < 2)"
        " AND (ends_as IS NULL OR (state = 0 AND ready IS NULL AND run_at IS NULL AND parts_left > 0)) END",
        name="gm_job_by_state",
    ),
    postgresql_with={"fillfactor": "45"},  # room to finish a row on its own page, without touching any index
)
Index(
    "gm_job_item",
    job.c.stage_id,
    job.c.key,
    unique=True,
    sqlite_where=job.c.stage_id.is_not(None),
    postgresql_where=job.c.stage_id.is_not(None),
)
_IS_PART = text("stage_id IS NULL AND parent_id IS NOT NULL")
Index("gm_job_part", job.c.parent_id, job.c.key, unique=True, sqlite_where=_IS_PART, postgresql_where=_IS_PART)
# Of each run, the few jobs that have parts which have not ended; and those that end as soon as these have.
_HAS_PARTS, _IS_ENDING = text("parts_left > 0"), text("ends_as IS NOT NULL")
Index("gm_job_open_parts", job.c.run_id, job.c.id, sqlite_where=_HAS_PARTS, postgresql_where=_HAS_PARTS)
Index("gm_job_ending", job.c.id, sqlite_where=_IS_ENDING, postgresql_where=_IS_ENDING)
Index(
    "gm_job_line",
    job.c.queue_id,
    job.c.pool,
    job.c.priority,
    job.c.ready,
    sqlite_where=job.c.ready.is_not(None),
    postgresql_where=job.c.ready.is_not(None),
)
# Those that wait outside the line, by when; with their queues, so that they are counted without a look at each.
_IS_LATER = text("run_at IS NOT NULL")
Index("gm_job_later", job.c.run_at, job.c.queue_id, sqlite_where=_IS_LATER, postgresql_where=_IS_LATER)
# Those that wait for a limit, by key. A constant, since PostgreSQL looks at every column that an index mentions.
_WAITS = text(f"run_at = {WAITING}")
Index("gm_job_limited", job.c.limit_id, job.c.priority, job.c.id, sqlite_where=_WAITS, postgresql_where=_WAITS)
_IS_UNIQUE = text("unique_key IS NOT NULL")
Index("gm_job_unique", job.c.unique_key, unique=True, sqlite_where=_IS_UNIQUE, postgresql_where=_IS_UNIQUE)
# The key that a job on its own was asked for with is kept when it has ended, and looked for. It never changes.
_HAS_KEY = text("stage_id IS NULL AND unique_name IS NOT NULL")
Index(
    "gm_job_own_key",
    job.c.task_id,
    job.c.unique_name,
    job.c.id,
    sqlite_where=_HAS_KEY,
    postgresql_where=_HAS_KEY,
)

# Not "state = failed": PostgreSQL touches every index of a row whose update changes a column that an index mentions.
_HAS_ERROR = text("fingerprint IS NOT NULL")
Index("gm_job_error", job.c.fingerprint, job.c.id, sqlite_where=_HAS_ERROR, postgresql_where=_HAS_ERROR)
Index("gm_job_failed", job.c.id, sqlite_where=_HAS_ERROR, postgresql_where=_HAS_ERROR)  # the last ones, whatever the error

_IS_ARCHIVED = text("archived_at IS NOT NULL")
Index("gm_job_archived", job.c.id, sqlite_where=_IS_ARCHIVED, postgresql_where=_IS_ARCHIVED)
_IS_ODD = text("odd IS NOT NULL")
Index("gm_job_odd", job.c.odd, job.c.id, sqlite_where=_IS_ODD, postgresql_where=_IS_ODD)
# Jobs on their own, by queue and task: those of runs are found through their stages. None of it ever changes.
Index(
    "gm_job_alone",
    job.c.queue_id,
    job.c.task_id,
    job.c.id,
    sqlite_where=job.c.stage_id.is_(None),
    postgresql_where=job.c.stage_id.is_(None),
)

worker = Table(
    "gm_worker",
    metadata,
    Column("id", Id, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("born", Text, nullable=False),  # the process's start, so that a pid that came round again is not mistaken
    Column("queues", Text, nullable=False),  # JSON; empty: all
    Column("slots", Integer, nullable=False),
    Column("own_slots", Text, nullable=False, server_default="{}"),  # JSON: those that a queue has for itself
    Column("labels", Text, nullable=False, server_default="[]"),  # JSON
    Column("memory", Integer, nullable=False, server_default=_ZERO),  # MiB for jobs that say how much they need
    Column("version", Text, nullable=False),
    Column("delivery", Text, nullable=False, server_default="database"),  # how it learns of work
    Column("state", SmallInteger, nullable=False),
    Column("registered_at", BigInteger, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    sqlite_autoincrement=True,  # a number never comes round again: it is what a late worker is told from a new one by
)
Index("gm_worker_active", worker.c.lease_until, sqlite_where=text("state = 0"), postgresql_where=text("state = 0"))

# One row per claim, not per job: how a lost worker's jobs are found without an index on the hot table.
claim = Table(
    "gm_claim",
    metadata,
    Column("id", Id, primary_key=True),
    Column("worker_id", BigInteger, ForeignKey("gm_worker.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("jobs", Text, nullable=False),  # JSON list of ids
    # A batch that is written twice, as its answer was lost, ends its claims twice: not the one that took their place.
    sqlite_autoincrement=True,
)

attempt = Table(
    "gm_attempt",
    metadata,
    Column("job_id", BigInteger, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("error_class", Text),
    Column("error", Text),
    Column("traceback", Text),
    Column("log", Text),
    Column("worker_id", BigInteger),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger, nullable=False),
    Column("fingerprint", Text),  # NULL: it did not fail, but was cancelled or given back
)
Index(
    "gm_attempt_error",
    attempt.c.fingerprint,
    attempt.c.ended_at,
    sqlite_where=attempt.c.fingerprint.is_not(None),
    postgresql_where=attempt.c.fingerprint.is_not(None),
)
Index(
    "gm_attempt_when",
    attempt.c.ended_at,
    attempt.c.fingerprint,
    sqlite_where=attempt.c.fingerprint.is_not(None),
    postgresql_where=attempt.c.fingerprint.is_not(None),
)

# Errors that somebody has seen and does not want to see in the list any more.
ignored_error = Table(
    "gm_ignored_error",
    metadata,
    Column("fingerprint", Text, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
)

# The fingerprint of each item's last success: what an unchanged item is skipped by. It outlives the runs.
done = Table(
    "gm_done",
    metadata,
    Column("subject_id", BigInteger, ForeignKey("gm_subject.id", ondelete="CASCADE"), primary_key=True),
    Column("stage", Text, primary_key=True),
    Column("key", Key, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("run_id", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)

# Who holds a named lock on SQLite, and who waits for it: of each resource the lowest number has it, and that number is its
# fencing token. (On PostgreSQL these are advisory locks, and this stays empty.)
lock = Table(
    "gm_lock",
    metadata,
    Column("id", Id, primary_key=True),
    Column("kind", Integer, nullable=False),
    Column("object", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("job_id", BigInteger),  # NULL, as the next: a program outside jobs
    Column("worker_id", BigInteger),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("born", Text, nullable=False),
    Column("asked_at", BigInteger, nullable=False),
    Column("held_at", BigInteger),  # NULL: it waits
    Column("lease_until", BigInteger, nullable=False),
    sqlite_autoincrement=True,  # a token never comes round again
)
Index("gm_lock_line", lock.c.kind, lock.c.object, lock.c.id)

# The newest version of a resource that was ever applied: what came too late is skipped by. It outlives runs and jobs.
applied = Table(
    "gm_applied",
    metadata,
    Column("resource", Key, primary_key=True),  # JSON
    Column("version", Text),  # JSON; NULL: none yet
    Column("label", Text),
    Column("job_id", BigInteger),
    Column("at", BigInteger, nullable=False),
)

# What reconcile did for a subject, one row per pass and kind: who needs it again and again is left to a person.
recovery = Table(
    "gm_recovery",
    metadata,
    Column("subject_id", BigInteger, ForeignKey("gm_subject.id", ondelete="CASCADE"), primary_key=True),
    Column("at", BigInteger, primary_key=True),  # when the pass began
    Column("what", Text, primary_key=True),  # repair, check, adopt, rescue
    Column("run_id", BigInteger),
    Column("items", BigInteger, nullable=False),
    Column("detail", Text, nullable=False),
)

# Jobs whose task's `on_terminal` failed when they ended: tried again by the reconciler.
missed = Table(
    "gm_missed",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),  # when the job ended: if it has ended anew since, this is moot
    Column("error", Text, nullable=False),
)

# Stages of removed runs that still have jobs: those are deleted in batches, by whoever comes by.
removal = Table("gm_removal", metadata, Column("stage_id", BigInteger, primary_key=True, autoincrement=False))

ringer, message = delivery_tables(metadata)
token, event, minute, failure = watching_tables(metadata)

# The trace that a job (0) or run (1) was asked for in. A table of its own: nobody pays for it where traces are off.
trace = Table(
    "gm_trace",
    metadata,
    Column("kind", SmallInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("traceparent", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
Index("gm_trace_age", trace.c.at)

# PostgreSQL: the last transaction of each connection that may not be done twice (see commits.py).
commit = Table(
    "gm_commit",
    metadata,
    Column("connection", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    postgresql_with={"fillfactor": "50"},  # it is changed with every commit, on its own page
)

# What people did. Rows are added, never changed.
audit = Table(
    "gm_audit",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("verb", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default="{}"),
)

# How far an action on many jobs or runs has come, which is in the audit under the same number.
order = Table(
    "gm_order",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("done", Text, nullable=False, server_default="{}"),  # JSON: how many became what
    Column("reached", BigInteger),  # the last job or run that it has come to; NULL: it is done
    Column("touched_at", BigInteger, nullable=False),
)
Index("gm_order_open", order.c.id, sqlite_where=text("reached IS NOT NULL"), postgresql_where=text("reached IS NOT NULL"))

# What is started when. What it is, is in `spec`; the rest is where it has got to.
schedule = Table(
    "gm_schedule",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("spec", Text, nullable=False),
    Column("declared", Boolean, nullable=False),  # in code; else added by hand
    Column("undeclared_at", BigInteger),  # since when the code that knows its target does not declare it any more
    Column("paused_at", BigInteger),
    Column("paused_by", Text),
    Column("fire_at", BigInteger),  # the first fire time that was not dealt with; NULL: paused, or off
    Column("due_at", BigInteger),  # when that is to be acted on: jitter makes it later
    Column("last_at", BigInteger),  # the last fire time that started something, what it started, and when
    Column("last_started_at", BigInteger),
    Column("last_job_id", BigInteger),
    Column("last_run_id", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("(fire_at IS NULL) = (due_at IS NULL)", name="gm_schedule_due"),
    CheckConstraint("paused_at IS NULL OR fire_at IS NULL", name="gm_schedule_paused"),
    sqlite_autoincrement=True,  # or the history of a removed one would be a new one's
)
Index(
    "gm_schedule_next",
    schedule.c.due_at,
    sqlite_where=text("due_at IS NOT NULL"),
    postgresql_where=text("due_at IS NOT NULL"),
)

# What became of each fire time; written in the transaction that starts what it starts.
fire = Table(
    "gm_fire",
    metadata,
    Column("id", Id, primary_key=True),
    Column("schedule_id", BigInteger, ForeignKey("gm_schedule.id", ondelete="CASCADE"), nullable=False),
    Column("fire_at", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),  # when that was decided
    Column("outcome", Text, nullable=False),
    Column("job_id", BigInteger),
    Column("runs", Text),  # JSON list of ids
    Column("detail", Text),
    Column("who", Text),  # who asked for it, out of turn; NULL: it was its time
)
Index(
    "gm_fire_once",
    fire.c.schedule_id,
    fire.c.fire_at,
    unique=True,
    sqlite_where=text("who IS NULL"),
    postgresql_where=text("who IS NULL"),
)
Index("gm_fire_newest", fire.c.schedule_id, fire.c.id)

# Keys by which something was asked for that must happen once, however often it is asked for.
once = Table(
    "gm_once",
    metadata,
    Column("key", Key, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),  # of the job or run
)
Index("gm_once_age", once.c.at)


def written(table: Table) -> str:
    """The names of the columns that hold what someone wrote, as `columns` takes them."""
    return " ".join(column.name for column in table.columns if column.computed is None)
