"""The ledger: queues, tasks, subjects, runs, stages, jobs, workers, attempts, audit; views for people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_STATES = ("queued", "in_progress", "completed", "completed_with_errors", "failed", "cancelled", "skipped", "waiting")
_STAGE_STATES = ("waiting", "open", "sealed", "closed")
_PRIORITIES = ("high", "normal", "low")
_STALE_AT = "CASE WHEN last_run_at > chosen_at THEN last_run_at ELSE chosen_at END"


def _words(column: str, words: tuple[str, ...]) -> str:
    cases = " ".join(f"WHEN {number} THEN '{word}'" for number, word in enumerate(words))
    return f"CASE {column} {cases} END"


def _time(value: str) -> str:
    if op.get_bind().dialect.name == "postgresql":
        return f"to_timestamp({value} / 1e6)"
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {value} / 1e6, 'unixepoch')"


def _times(alias: str, *columns: str) -> str:
    return ", ".join(f"{_time(f'{alias}.{c}')} AS {c}" for c in columns)


def _views() -> dict[str, str]:
    return {
        "gristmill_runs": f"""
            SELECT r.id, r.pipeline, s.name AS subject, {_words("r.state", _STATES)} AS state,
                {_words("r.priority", _PRIORITIES)} AS priority, r.epoch, r.args, r.error, r.reason,
                {_times("r", "created_at", "started_at", "finished_at")}
            FROM gm_run r JOIN gm_subject s ON s.id = r.subject_id""",
        "gristmill_stages": f"""
            SELECT g.id, g.run_id, r.pipeline, s.name AS subject, g.name AS stage, g.position,
                {_words("g.state", _STAGE_STATES)} AS state, {_words("g.outcome", _STATES)} AS outcome,
                g.total, g.completed, g.with_errors, g.failed, g.skipped, g.cancelled,
                {_times("g", "opened_at", "closed_at")}
            FROM gm_stage g JOIN gm_run r ON r.id = g.run_id JOIN gm_subject s ON s.id = r.subject_id""",
        "gristmill_jobs": f"""
            SELECT j.id, j.run_id, g.name AS stage, j.key, t.name AS task, q.name AS queue,
                {_words("j.state", _STATES)} AS state, {_words("j.priority", _PRIORITIES)} AS priority, j.attempt,
                j.errors, j.crashes, j.timeouts, j.losses, j.returns, j.args, j.result, j.error, j.error_class, j.fingerprint,
                j.progress, j.worker_id, CASE WHEN j.stage_id IS NULL THEN j.parent_id END AS part_of, j.parts, j.parts_left,
                j.parts_failed, l.name AS limit_name, l.key AS limit_key,
                (SELECT m.backend_job_id FROM gm_message m WHERE m.job_id = j.id) AS backend_job_id,
                {_time("(CASE WHEN j.run_at < 4611686018427387904 THEN j.run_at END)")} AS run_at,
                {_times("j", "created_at", "started_at", "finished_at", "archived_at")}
            FROM gm_job j JOIN gm_task t ON t.id = j.task_id JOIN gm_queue q ON q.id = j.queue_id
                LEFT JOIN gm_stage g ON g.id = j.stage_id LEFT JOIN gm_limit l ON l.id = j.limit_id
            WHERE (j.stage_id IS NULL OR g.id IS NOT NULL)
                AND (j.run_id IS NULL OR EXISTS (SELECT 1 FROM gm_run r WHERE r.id = j.run_id))""",
    }


def _create_schedules() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "gm_schedule",
        sa.Column("id", number, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.Column("undeclared_at", sa.BigInteger(), nullable=True),
        sa.Column("paused_at", sa.BigInteger(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("fire_at", sa.BigInteger(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("last_at", sa.BigInteger(), nullable=True),
        sa.Column("last_started_at", sa.BigInteger(), nullable=True),
        sa.Column("last_job_id", sa.BigInteger(), nullable=True),
        sa.Column("last_run_id", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(fire_at IS NULL) = (due_at IS NULL)", name="gm_schedule_due"),
        sa.CheckConstraint("paused_at IS NULL OR fire_at IS NULL", name="gm_schedule_paused"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    due = sa.text("due_at IS NOT NULL")
    op.create_index("gm_schedule_next", "gm_schedule", ["due_at"], sqlite_where=due, postgresql_where=due)
    op.create_table(
        "gm_fire",
        sa.Column("id", number, nullable=False),
        sa.Column("schedule_id", sa.BigInteger(), nullable=False),
        sa.Column("fire_at", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("runs", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("who", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["schedule_id"], ["gm_schedule.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    in_turn = sa.text("who IS NULL")
    op.create_index(
        "gm_fire_once", "gm_fire", ["schedule_id", "fire_at"], unique=True, sqlite_where=in_turn, postgresql_where=in_turn
    )
    op.create_index("gm_fire_newest", "gm_fire", ["schedule_id", "id"])
    op.create_table(
        "gm_once",
        sa.Column("key", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("gm_once_age", "gm_once", ["at"])


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE gm_line")
    op.create_table(
        "gm_ledger",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("oldest", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name="gm_ledger_one"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.execute("INSERT INTO gm_ledger (id, oldest) VALUES (1, '0001')")
    _create_schedules()
    op.create_table(
        "gm_attempt",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("log", sa.Text(), nullable=True),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "attempt"),
    )
    op.create_index(
        "gm_attempt_error",
        "gm_attempt",
        ["fingerprint", "ended_at"],
        unique=False,
        sqlite_where=sa.text("fingerprint IS NOT NULL"),
        postgresql_where=sa.text("fingerprint IS NOT NULL"),
    )
    op.create_table(
        "gm_audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "gm_order",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("done", sa.Text(), server_default="{}", nullable=False),
        sa.Column("reached", sa.BigInteger(), nullable=True),
        sa.Column("touched_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "gm_order_open",
        "gm_order",
        ["id"],
        unique=False,
        sqlite_where=sa.text("reached IS NOT NULL"),
        postgresql_where=sa.text("reached IS NOT NULL"),
    )
    op.create_table(
        "gm_removal",
        sa.Column("stage_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("stage_id"),
    )
    op.create_table(
        "gm_ignored_error",
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint"),
    )
    op.create_table(
        "gm_job",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("stage_id", sa.BigInteger(), nullable=True),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("ready", sa.BigInteger(), nullable=True),
        sa.Column("run_at", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("emitted", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("limit_id", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("parent_attempt", sa.Integer(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("pool", sa.SmallInteger(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("errors", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("crashes", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("timeouts", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("losses", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("returns", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("unique_scope", sa.SmallInteger(), nullable=True),
        sa.Column("cancel", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("alone", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("key", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=True),
        sa.Column("unique_key", sa.Text(), nullable=True),
        sa.Column("unique_name", sa.Text(), nullable=True),
        sa.Column("args", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("archived_at", sa.BigInteger(), nullable=True),
        sa.Column(
            "odd", sa.SmallInteger(), sa.Computed("CASE WHEN state IN (3, 5) THEN state END", persisted=True), nullable=True
        ),
        sa.Column("parts", sa.Integer(), nullable=True),
        sa.Column("parts_left", sa.Integer(), nullable=True),
        sa.Column("parts_failed", sa.Integer(), nullable=True),
        sa.Column("ends_as", sa.SmallInteger(), nullable=True),
        sa.CheckConstraint(
            "CASE state WHEN 0 THEN worker_id IS NULL AND finished_at IS NULL AND (ready IS NULL OR run_at IS NULL) WHEN 1 THEN worker_id IS NOT NULL AND ready IS NULL AND run_at IS NULL AND finished_at IS NULL ELSE worker_id IS NULL AND ready IS NULL AND run_at IS NULL AND finished_at IS NOT NULL END AND CASE WHEN parts_left IS NULL THEN ends_as IS NULL ELSE parts_left >= 0 AND parts_failed >= 0 AND parts_left + parts_failed <= parts AND (parts_left = 0 OR state < 2) AND (ends_as IS NULL OR (state = 0 AND ready IS NULL AND run_at IS NULL AND parts_left > 0)) END",
            name="gm_job_by_state",
        ),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with={"fillfactor": "45"},
    )
    op.create_index(
        "gm_job_due",
        "gm_job",
        ["run_at"],
        unique=False,
        sqlite_where=sa.text("run_at IS NOT NULL"),
        postgresql_where=sa.text("run_at IS NOT NULL"),
    )
    op.create_index(
        "gm_job_ending",
        "gm_job",
        ["id"],
        unique=False,
        sqlite_where=sa.text("ends_as IS NOT NULL"),
        postgresql_where=sa.text("ends_as IS NOT NULL"),
    )
    op.create_index(
        "gm_job_error",
        "gm_job",
        ["fingerprint", "id"],
        unique=False,
        sqlite_where=sa.text("fingerprint IS NOT NULL"),
        postgresql_where=sa.text("fingerprint IS NOT NULL"),
    )
    op.create_index(
        "gm_job_item",
        "gm_job",
        ["stage_id", "key"],
        unique=True,
        sqlite_where=sa.text("stage_id IS NOT NULL"),
        postgresql_where=sa.text("stage_id IS NOT NULL"),
    )
    op.create_index(
        "gm_job_line",
        "gm_job",
        ["queue_id", "pool", "priority", "ready"],
        unique=False,
        sqlite_where=sa.text("ready IS NOT NULL"),
        postgresql_where=sa.text("ready IS NOT NULL"),
    )
    op.create_index(
        "gm_job_limited",
        "gm_job",
        ["limit_id", "priority", "id"],
        unique=False,
        sqlite_where=sa.text("run_at = 4611686018427387904"),
        postgresql_where=sa.text("run_at = 4611686018427387904"),
    )
    op.create_index(
        "gm_job_odd",
        "gm_job",
        ["odd", "id"],
        sqlite_where=sa.text("odd IS NOT NULL"),
        postgresql_where=sa.text("odd IS NOT NULL"),
    )
    op.create_index(
        "gm_job_alone",
        "gm_job",
        ["queue_id", "task_id", "id"],
        sqlite_where=sa.text("stage_id IS NULL"),
        postgresql_where=sa.text("stage_id IS NULL"),
    )
    op.create_index(
        "gm_job_open_parts",
        "gm_job",
        ["run_id", "id"],
        unique=False,
        sqlite_where=sa.text("parts_left > 0"),
        postgresql_where=sa.text("parts_left > 0"),
    )
    op.create_index(
        "gm_job_part",
        "gm_job",
        ["parent_id", "key"],
        unique=True,
        sqlite_where=sa.text("stage_id IS NULL AND parent_id IS NOT NULL"),
        postgresql_where=sa.text("stage_id IS NULL AND parent_id IS NOT NULL"),
    )
    op.create_index(
        "gm_job_unique",
        "gm_job",
        ["unique_key"],
        unique=True,
        sqlite_where=sa.text("unique_key IS NOT NULL"),
        postgresql_where=sa.text("unique_key IS NOT NULL"),
    )
    op.create_table(
        "gm_queue",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), server_default="1", nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("limit_id", sa.Integer(), nullable=True),
        sa.CheckConstraint("weight > 0", name="gm_queue_weight"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "gm_limit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("declared", sa.Text(), nullable=True),
        sa.Column("chosen", sa.Text(), nullable=True),
        sa.Column("tokens", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("stamped", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("open_until", sa.BigInteger(), nullable=True),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("more", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", "key", name="gm_limit_once"),
    )
    op.create_index(
        "gm_limit_due",
        "gm_limit",
        ["due_at"],
        unique=False,
        sqlite_where=sa.text("due_at IS NOT NULL"),
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_table(
        "gm_permit",
        sa.Column("limit_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("in_line", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("limit_id", "job_id"),
    )
    op.create_index(op.f("ix_gm_permit_job_id"), "gm_permit", ["job_id"], unique=False)
    op.create_table(
        "gm_subject",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("interval", sa.BigInteger(), nullable=True),
        sa.Column("last_run_id", sa.BigInteger(), nullable=True),
        sa.Column("last_state", sa.SmallInteger(), nullable=True),
        sa.Column("last_run_at", sa.BigInteger(), nullable=True),
        sa.Column("last_good_run_id", sa.BigInteger(), nullable=True),
        sa.Column("last_good_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("chosen_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("stale_at", sa.BigInteger(), sa.Computed(_STALE_AT, persisted=True), nullable=True),
        sa.Column("due_at", sa.BigInteger(), sa.Computed(f'{_STALE_AT} + "interval"', persisted=True), nullable=True),
        sa.CheckConstraint('"interval" > 0', name="gm_subject_interval"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("pipeline", "name", name="gm_subject_once"),
    )
    op.create_index("gm_subject_state", "gm_subject", ["last_state", "id"])
    op.create_index("gm_subject_age", "gm_subject", ["last_good_at"])
    for name, column, condition in (
        ("stale", "stale_at", '"interval" IS NULL'),
        ("due", "due_at", '"interval" IS NOT NULL'),
    ):
        op.create_index(
            f"gm_subject_{name}",
            "gm_subject",
            ["pipeline", column, "name"],
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )
    op.create_table(
        "gm_label",
        sa.Column("subject_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("value", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(["subject_id"], ["gm_subject.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("subject_id", "key"),
    )
    op.create_index("gm_label_value", "gm_label", ["key", "value", "subject_id"])
    op.create_table(
        "gm_task",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name", "spec", name="gm_task_once"),
    )
    op.create_table(
        "gm_class",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("demand", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("demand"),
    )
    op.create_table(
        "gm_worker",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("born", sa.Text(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("own_slots", sa.Text(), server_default="{}", nullable=False),
        sa.Column("labels", sa.Text(), server_default="[]", nullable=False),
        sa.Column("memory", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("delivery", sa.Text(), server_default="database", nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "gm_worker_active",
        "gm_worker",
        ["lease_until"],
        unique=False,
        sqlite_where=sa.text("state = 0"),
        postgresql_where=sa.text("state = 0"),
    )
    op.create_table(
        "gm_claim",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("worker_id", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["worker_id"], ["gm_worker.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_gm_claim_worker_id"), "gm_claim", ["worker_id"], unique=False)
    op.create_table(
        "gm_run",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("subject_id", sa.BigInteger(), nullable=False),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="1", nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("stop", sa.SmallInteger(), nullable=True),
        sa.Column("stop_by", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("retried_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("(finished_at IS NULL) = (state IN (0, 1, 7))", name="gm_run_finished"),
        sa.ForeignKeyConstraint(
            ["subject_id"],
            ["gm_subject.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("gm_run_of_subject", "gm_run", ["subject_id", "id"], unique=False)
    op.create_index(
        "gm_run_one_active",
        "gm_run",
        ["subject_id"],
        unique=True,
        sqlite_where=sa.text("state IN (0, 1)"),
        postgresql_where=sa.text("state IN (0, 1)"),
    )
    op.create_index(
        "gm_run_one_waiting",
        "gm_run",
        ["subject_id"],
        unique=True,
        sqlite_where=sa.text("state = 7"),
        postgresql_where=sa.text("state = 7"),
    )
    op.create_index(
        "gm_run_stopping",
        "gm_run",
        ["id"],
        unique=False,
        sqlite_where=sa.text("stop IS NOT NULL AND finished_at IS NULL"),
        postgresql_where=sa.text("stop IS NOT NULL AND finished_at IS NULL"),
    )
    op.create_table(
        "gm_stage",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("queue_id", sa.Integer(), nullable=False),
        sa.Column("pool", sa.SmallInteger(), nullable=False),
        sa.Column("each", sa.Boolean(), nullable=False),
        sa.Column("gate", sa.Boolean(), nullable=False),
        sa.Column("need_count", sa.Integer(), nullable=True),
        sa.Column("need_share", sa.Double(), nullable=True),
        sa.Column("waiting_for", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("outcome", sa.SmallInteger(), nullable=True),
        sa.Column("total", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("completed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("with_errors", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("skipped", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cancelled", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=True),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("limit_id", sa.Integer(), nullable=True),
        sa.Column("source_id", sa.BigInteger(), nullable=True),
        sa.Column("todo", sa.Text(), nullable=True),
        sa.Column("pruning", sa.Text(), nullable=True),
        sa.CheckConstraint("completed + failed + skipped + cancelled <= total", name="gm_stage_sum"),
        sa.CheckConstraint("state <> 3 OR completed + failed + skipped + cancelled = total", name="gm_stage_closed"),
        sa.CheckConstraint("waiting_for >= 0", name="gm_stage_waiting_for"),
        sa.CheckConstraint("with_errors <= completed", name="gm_stage_with_errors"),
        sa.ForeignKeyConstraint(
            ["queue_id"],
            ["gm_queue.id"],
        ),
        sa.ForeignKeyConstraint(["run_id"], ["gm_run.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["task_id"],
            ["gm_task.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "name", name="gm_stage_once"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "gm_stage_source",
        "gm_stage",
        ["source_id"],
        sqlite_where=sa.text("source_id IS NOT NULL"),
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )
    op.create_index(
        "gm_stage_chores",
        "gm_stage",
        ["run_id"],
        sqlite_where=sa.text("todo IS NOT NULL OR pruning IS NOT NULL"),
        postgresql_where=sa.text("todo IS NOT NULL OR pruning IS NOT NULL"),
    )
    op.create_table(
        "gm_done",
        sa.Column("subject_id", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("key", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["subject_id"], ["gm_subject.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("subject_id", "stage", "key"),
    )
    op.create_table(
        "gm_lock",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=False),
        sa.Column("object", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("worker_id", sa.BigInteger(), nullable=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("born", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("held_at", sa.BigInteger(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("gm_lock_line", "gm_lock", ["kind", "object", "id"], unique=False)
    op.create_table(
        "gm_applied",
        sa.Column("resource", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable=False),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("resource"),
    )
    op.create_table(
        "gm_missed",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "gm_message",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("backend_job_id", sa.Text(), nullable=False),
        sa.Column("era", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "gm_ringer",
        sa.Column("queue_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("delivery", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue_id", "delivery"),
    )
    op.create_table(
        "gm_recovery",
        sa.Column("subject_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("run_id", sa.BigInteger(), nullable=True),
        sa.Column("items", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["subject_id"], ["gm_subject.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("subject_id", "at", "what"),
    )
    op.create_table(
        "gm_edge",
        sa.Column("upstream_id", sa.BigInteger(), nullable=False),
        sa.Column("downstream_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["downstream_id"], ["gm_stage.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["upstream_id"], ["gm_stage.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("upstream_id", "downstream_id"),
    )
    op.create_index(op.f("ix_gm_edge_downstream_id"), "gm_edge", ["downstream_id"], unique=False)
    for name, query in _views().items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def downgrade() -> None:
    for name in reversed(_views()):
        op.execute(f"DROP VIEW {name}")
    op.drop_index(op.f("ix_gm_edge_downstream_id"), table_name="gm_edge")
    op.drop_table("gm_edge")
    op.drop_table("gm_recovery")
    op.drop_table("gm_ringer")
    op.drop_table("gm_message")
    op.drop_table("gm_missed")
    op.drop_table("gm_applied")
    op.drop_index("gm_lock_line", table_name="gm_lock")
    op.drop_table("gm_lock")
    op.drop_table("gm_done")
    op.drop_index(
        "gm_stage_source",
        table_name="gm_stage",
        sqlite_where=sa.text("source_id IS NOT NULL"),
        postgresql_where=sa.text("source_id IS NOT NULL"),
    )
    op.drop_index(
        "gm_stage_chores",
        table_name="gm_stage",
        sqlite_where=sa.text("todo IS NOT NULL OR pruning IS NOT NULL"),
        postgresql_where=sa.text("todo IS NOT NULL OR pruning IS NOT NULL"),
    )
    op.drop_table("gm_stage")
    op.drop_index(
        "gm_run_stopping",
        table_name="gm_run",
        sqlite_where=sa.text("stop IS NOT NULL AND finished_at IS NULL"),
        postgresql_where=sa.text("stop IS NOT NULL AND finished_at IS NULL"),
    )
    op.drop_index(
        "gm_run_one_waiting", table_name="gm_run", sqlite_where=sa.text("state = 7"), postgresql_where=sa.text("state = 7")
    )
    op.drop_index(
        "gm_run_one_active",
        table_name="gm_run",
        sqlite_where=sa.text("state IN (0, 1)"),
        postgresql_where=sa.text("state IN (0, 1)"),
    )
    op.drop_index("gm_run_of_subject", table_name="gm_run")
    op.drop_table("gm_run")
    op.drop_index(op.f("ix_gm_claim_worker_id"), table_name="gm_claim")
    op.drop_table("gm_claim")
    op.drop_index(
        "gm_worker_active", table_name="gm_worker", sqlite_where=sa.text("state = 0"), postgresql_where=sa.text("state = 0")
    )
    op.drop_table("gm_worker")
    op.drop_table("gm_class")
    op.drop_table("gm_task")
    op.drop_index("gm_label_value", table_name="gm_label")
    op.drop_table("gm_label")
    op.drop_index("gm_subject_age", table_name="gm_subject")
    op.drop_index("gm_subject_state", table_name="gm_subject")
    op.drop_table("gm_subject")
    op.drop_index(op.f("ix_gm_permit_job_id"), table_name="gm_permit")
    op.drop_table("gm_permit")
    op.drop_index("gm_limit_due", table_name="gm_limit")
    op.drop_table("gm_limit")
    op.drop_table("gm_queue")
    op.drop_index(
        "gm_job_unique",
        table_name="gm_job",
        sqlite_where=sa.text("unique_key IS NOT NULL"),
        postgresql_where=sa.text("unique_key IS NOT NULL"),
    )
    op.drop_index(
        "gm_job_part",
        table_name="gm_job",
        sqlite_where=sa.text("stage_id IS NULL AND parent_id IS NOT NULL"),
        postgresql_where=sa.text("stage_id IS NULL AND parent_id IS NOT NULL"),
    )
    op.drop_index(
        "gm_job_open_parts",
        table_name="gm_job",
        sqlite_where=sa.text("parts_left > 0"),
        postgresql_where=sa.text("parts_left > 0"),
    )
    op.drop_index(
        "gm_job_line",
        table_name="gm_job",
        sqlite_where=sa.text("ready IS NOT NULL"),
        postgresql_where=sa.text("ready IS NOT NULL"),
    )
    op.drop_index(
        "gm_job_item",
        table_name="gm_job",
        sqlite_where=sa.text("stage_id IS NOT NULL"),
        postgresql_where=sa.text("stage_id IS NOT NULL"),
    )
    op.drop_index(
        "gm_job_error",
        table_name="gm_job",
        sqlite_where=sa.text("fingerprint IS NOT NULL"),
        postgresql_where=sa.text("fingerprint IS NOT NULL"),
    )
    op.drop_index(
        "gm_job_ending",
        table_name="gm_job",
        sqlite_where=sa.text("ends_as IS NOT NULL"),
        postgresql_where=sa.text("ends_as IS NOT NULL"),
    )
    op.drop_index(
        "gm_job_due",
        table_name="gm_job",
        sqlite_where=sa.text("run_at IS NOT NULL"),
        postgresql_where=sa.text("run_at IS NOT NULL"),
    )
    op.drop_index("gm_job_limited", table_name="gm_job")
    op.drop_index("gm_job_alone", table_name="gm_job")
    op.drop_index("gm_job_odd", table_name="gm_job")
    op.drop_table("gm_job")
    op.drop_table("gm_ignored_error")
    op.drop_table("gm_removal")
    op.drop_index(
        "gm_order_open",
        table_name="gm_order",
        sqlite_where=sa.text("reached IS NOT NULL"),
        postgresql_where=sa.text("reached IS NOT NULL"),
    )
    op.drop_table("gm_order")
    op.drop_table("gm_audit")
    op.drop_index(
        "gm_attempt_error",
        table_name="gm_attempt",
        sqlite_where=sa.text("fingerprint IS NOT NULL"),
        postgresql_where=sa.text("fingerprint IS NOT NULL"),
    )
    op.drop_table("gm_attempt")
    for table in ("gm_once", "gm_fire", "gm_schedule", "gm_ledger"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP SEQUENCE gm_line")
