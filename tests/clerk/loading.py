"""A ledger as full as the specification wants it: 5,000 sites, 500,000 jobs. Written, since to run it would take hours."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy import Connection, text

from clerk import sites
from clerk.db import terminal
from clerk.db.tables import site
from gristmill import Mill

# Of a hundred sites: 0 and 1 are in ocr, 2 in extraction, 3 has failed in ocr, 4 is stuck in compilation; others completed.
_OPEN_AT = "CASE what WHEN 0 THEN 1 WHEN 1 THEN 1 WHEN 2 THEN 4 WHEN 3 THEN 2 WHEN 4 THEN 3 ELSE 9 END"
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < :count - 1)"
_RUNS = f"""
    {_NUMBERS}, k(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM k WHERE k < :older),
    run AS (SELECT i, k, CASE WHEN k = :older THEN i % 100 ELSE 99 END AS what FROM n, k)
    INSERT INTO gm_run (id, subject_id, pipeline, priority, state, args, created_at, started_at, finished_at)
    SELECT 1000 + i * (:older + 1) + k, i + 10, 'site', 1,
        CASE WHEN what IN (0, 1, 2, 4) THEN 1 WHEN what = 3 THEN 4 ELSE 2 END,
        :args, :now - (:older - k) * CAST(86400000000 AS bigint), :now,
        CASE WHEN what IN (0, 1, 2, 4) THEN NULL ELSE :now - (:older - k) * CAST(86400000000 AS bigint) END FROM run"""
_STAGES = f"""
    WITH RECURSIVE p(position, name) AS (VALUES (0, 'fetch'), (1, 'ocr'), (2, 'gate'), (3, 'compilation'), (4, 'extraction'),
        (5, 'deploy')),
    run AS (SELECT id,
        CASE WHEN (id - 1000) % (:older + 1) = :older THEN (id - 1000) / (:older + 1) % 100 ELSE 99 END AS what,
        (id - 1000) % (:older + 1) = :older AS latest FROM gm_run WHERE id >= 1000),
    stage AS (SELECT id, what, position, name, {_OPEN_AT} AS open_at,
        CASE WHEN position > {_OPEN_AT} THEN 0 WHEN name <> 'ocr' THEN 1 WHEN latest THEN :documents ELSE 0 END AS total
        FROM run, p),
    counted AS (SELECT stage.*, CASE WHEN position < open_at THEN total WHEN name = 'ocr' THEN total / 2 ELSE 0 END AS done,
        CASE WHEN what = 3 AND name = 'gate' THEN 1 WHEN name = 'ocr' AND what % 10 = 3 AND position < open_at AND total > 0
            THEN 1 ELSE 0 END AS failed FROM stage)
    INSERT INTO gm_stage (id, run_id, name, position, task_id, queue_id, pool, each, gate, waiting_for, state, outcome,
        total, completed, failed)
    SELECT id * 10 + position, id, name, position, (SELECT min(id) FROM gm_task), (SELECT min(id) FROM gm_queue), 0,
        name = 'ocr', name = 'gate', 0, CASE WHEN position < open_at OR what = 3 THEN 3 WHEN name = 'ocr' THEN 1 ELSE 2 END,
        CASE WHEN failed = 1 AND name = 'gate' THEN 4 WHEN what = 3 AND position > open_at THEN 5
            WHEN position < open_at THEN 2 END,
        total, done - CASE WHEN name = 'gate' AND what = 3 THEN 0 ELSE failed END, failed FROM counted"""
_JOBS = f"""
    {_NUMBERS}
    INSERT INTO gm_job (id, run_id, stage_id, key, task_id, queue_id, pool, priority, state, ready, created_at, finished_at)
    SELECT g.id * 1000 + i, g.run_id, g.id, CASE WHEN g.name = 'ocr' THEN 'minutes/Council/' || i ELSE '' END, g.task_id,
        g.queue_id, 0, 1, CASE WHEN i < g.failed THEN 4 WHEN i < g.completed + g.failed THEN 2 ELSE 0 END,
        CASE WHEN i < g.completed + g.failed THEN NULL ELSE g.id * 1000 + i END, :now,
        CASE WHEN i < g.completed + g.failed THEN :now END
    FROM gm_stage g JOIN n ON i < g.total WHERE g.id >= 10000"""


def fill(mill: Mill, count: int = 5000, documents: int = 96, older: int = 3) -> None:
    """So many sites with a run each of so many documents, and older runs that had nothing to do."""
    now = datetime.now(UTC)
    micros = round(now.timestamp() * 1e6)
    names = [f"site{n:05}.example" for n in range(count)]
    mill.start("site", "first", args=sites.Options().args())  # so that tasks and queues have numbers
    mill.cancel_run(mill.runs()[0].id)
    with mill.transaction() as connection:
        described = [{"subdomain": name, "name": name, "scraper": "folder", "created_at": now} for name in names]
        connection.execute(site.insert(), described)
        values = {
            "count": count,
            "older": older,
            "documents": documents,
            "now": micros,
            "args": json.dumps(sites.Options().args()),
        }
        subjects = "SELECT i + 10, 'site', 'site' || substr('0000' || i, -5) || '.example', :now FROM n"
        if connection.dialect.name == "postgresql":
            subjects = "SELECT i + 10, 'site', 'site' || lpad(i::text, 5, '0') || '.example', :now FROM n"
        _insert(connection, f"{_NUMBERS} INSERT INTO gm_subject (id, pipeline, name, created_at) {subjects}", values)
        _insert(connection, _RUNS, values)
        _insert(connection, _STAGES, values)
        _insert(connection, _JOBS, {**values, "count": max(documents, 1)})
        terminal.catch_up(connection)
        long_ago = datetime.fromtimestamp(now.timestamp() - 10_800, UTC)
        stuck = site.c.subdomain.in_([name for n, name in enumerate(names) if n % 100 == 4])
        connection.execute(site.update().where(stuck).values(updated_at=long_ago))
    with mill.ledger.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()


def _insert(connection: Connection, sql: str, values: dict[str, object]) -> None:
    typed = {"count": "int", "older": "int", "documents": "int", "now": "bigint", "args": "text"}
    for name, kind in typed.items():
        sql = sql.replace(f":{name}", f"CAST(:{name} AS {kind})")
    connection.execute(text(sql), {name: value for name, value in values.items() if f":{name}" in sql})
