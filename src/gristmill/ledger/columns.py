"""What a SELECT names of tables that are read whole, and which schema this code is made for.

schema.py describes the tables in full, but takes a tenth of a second to load, in every command and every worker; a test
sees to it that both say the same. Never `*`: while processes run, newer code may add a column, and PostgreSQL refuses a
prepared statement whose columns have changed.
"""

from __future__ import annotations

REVISION = "0007"  # the newest migration: what this code needs a database to be at
VERSION_TABLE = "gm_version"

SUBJECT = "id pipeline name created_at interval last_run_id last_state last_run_at last_good_run_id last_good_at chosen_at"
RUN = (
    "id subject_id pipeline priority state epoch args error reason stop stop_by created_at started_at finished_at retried_at"
)
STAGE = (
    "id run_id name position task_id queue_id pool each gate need_count need_share waiting_for state outcome total "
    "completed with_errors failed skipped cancelled opened_at closed_at limit_id source_id todo pruning"
)
JOB = (
    "id run_id stage_id parent_id ready run_at worker_id emitted created_at started_at finished_at task_id queue_id "
    "limit_id attempt parent_attempt epoch pool priority state errors crashes timeouts losses returns unique_scope "
    "cancel alone key unique_key unique_name args result error error_class progress fingerprint archived_at parts "
    "parts_left parts_failed ends_as"
)
ATTEMPT = "job_id attempt outcome error_class error traceback log worker_id started_at ended_at fingerprint"
WORKER = (
    "id host pid born queues slots own_slots labels memory version delivery state registered_at heartbeat_at lease_until"
)
SCHEDULE = (
    "id name spec declared undeclared_at paused_at paused_by fire_at due_at last_at last_started_at last_job_id "
    "last_run_id created_at"
)
FIRE = "id schedule_id fire_at at outcome job_id runs detail who"


def columns(names: str, alias: str = "") -> str:
    """For a SELECT."""
    return ", ".join(f'{alias}."{name}"' if alias else f'"{name}"' for name in names.split())
