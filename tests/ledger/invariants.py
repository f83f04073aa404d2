"""What must hold in every ledger at every moment between transactions, as SQL that finds what breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from sqlalchemy import Connection, text

from gristmill.ledger.store import Ledger
from gristmill.limit import Numbers

# Each query finds the offenders; its name says what should hold. State numbers: see gristmill.states.
_BROKEN = {
    "counters equal the rows": """
        SELECT g.id FROM gm_stage g LEFT JOIN gm_job j ON j.stage_id = g.id GROUP BY g.id
        HAVING g.total <> count(j.id)
            OR g.completed <> count(CASE WHEN j.state IN (2, 3) THEN 1 END)
            OR g.with_errors <> count(CASE WHEN j.state = 3 THEN 1 END)
            OR g.failed <> count(CASE WHEN j.state = 4 THEN 1 END)
            OR g.cancelled <> count(CASE WHEN j.state = 5 THEN 1 END)
            OR g.skipped <> count(CASE WHEN j.state = 6 THEN 1 END)""",
    "a closed stage holds only ended jobs": """
        SELECT j.id FROM gm_job j JOIN gm_stage g ON g.id = j.stage_id WHERE g.state = 3 AND j.state < 2""",
    "a full, sealed stage is closed": """
        SELECT id FROM gm_stage WHERE state = 2 AND total = completed + failed + skipped + cancelled""",
    "a closed stage has an outcome and a time, another has none": """
        SELECT id FROM gm_stage WHERE (state = 3) <> (outcome IS NOT NULL) OR (state = 3) <> (closed_at IS NOT NULL)""",
    "a plain stage has one job once it is open, and none before": """
        SELECT g.id FROM gm_stage g WHERE NOT g.each
            AND (SELECT count(*) FROM gm_job j WHERE j.stage_id = g.id)
                <> CASE WHEN g.opened_at IS NULL THEN 0 ELSE 1 END""",
    "an `each` stage that is not open yet has no items": """
        SELECT j.id FROM gm_job j JOIN gm_stage g ON g.id = j.stage_id
        WHERE g.state = 0 AND (g.each OR g.opened_at IS NULL)""",
    "the job of a plain stage that waits again has ended": """
        SELECT j.id FROM gm_job j JOIN gm_stage g ON g.id = j.stage_id WHERE g.state = 0 AND j.state < 2""",
    "what is left to do before a stage is sealed is that of an open stage, in a run that was not stopped": """
        SELECT g.id FROM gm_stage g JOIN gm_run r ON r.id = g.run_id WHERE (g.todo IS NOT NULL OR g.pruning IS NOT NULL)
            AND r.stop IS NULL AND (r.state, g.state) NOT IN ((0, 1), (1, 1), (7, 0))""",
    "an item of a retried producer that succeeded was given again, or is dropped, once its stage is sealed": """
        SELECT j.id FROM gm_job j JOIN gm_stage g ON g.id = j.stage_id JOIN gm_job p ON p.id = j.parent_id
        JOIN gm_run r ON r.id = j.run_id WHERE g.state >= 2 AND r.stop IS NULL AND p.epoch IS NOT NULL AND p.run_id = r.id
            AND p.state IN (2, 3, 6) AND p.attempt <> j.parent_attempt AND j.parts IS NULL
            AND NOT (j.state = 6 AND coalesce(j.error_class, '') = 'not_emitted')""",
    "a stage of an undisturbed run waits for as many as are not closed": """
        SELECT g.id FROM gm_stage g JOIN gm_run r ON r.id = g.run_id WHERE r.stop IS NULL AND g.waiting_for <>
            CASE WHEN g.todo IS NULL THEN 0 ELSE 1 END + CASE WHEN g.pruning IS NULL THEN 0 ELSE 1 END
            + (SELECT count(*) FROM gm_edge e JOIN gm_stage u ON u.id = e.upstream_id
             WHERE e.downstream_id = g.id AND u.state <> 3)""",
    "a subject has one active run at most": """
        SELECT subject_id AS id FROM gm_run WHERE state IN (0, 1) GROUP BY subject_id HAVING count(*) > 1""",
    "a subject has one waiting run at most": """
        SELECT subject_id AS id FROM gm_run WHERE state = 7 GROUP BY subject_id HAVING count(*) > 1""",
    "a waiting run waits behind an active one": """
        SELECT id FROM gm_run r WHERE state = 7 AND NOT EXISTS
            (SELECT 1 FROM gm_run a WHERE a.subject_id = r.subject_id AND a.state IN (0, 1))""",
    "a waiting run has no jobs": "SELECT j.id FROM gm_job j JOIN gm_run r ON r.id = j.run_id WHERE r.state = 7",
    "an ended run has only ended jobs": """
        SELECT j.id FROM gm_job j JOIN gm_run r ON r.id = j.run_id WHERE r.state BETWEEN 2 AND 6 AND j.state < 2""",
    "an ended run has only closed stages": """
        SELECT g.id FROM gm_stage g JOIN gm_run r ON r.id = g.run_id WHERE r.state BETWEEN 2 AND 6 AND g.state <> 3""",
    "an active run has a job that will move it on, or something left to do for its stages": """
        SELECT id FROM gm_run r WHERE state IN (0, 1) AND NOT EXISTS
            (SELECT 1 FROM gm_job j JOIN gm_stage g ON g.id = j.stage_id WHERE g.run_id = r.id AND j.state < 2)
            AND NOT EXISTS (SELECT 1 FROM gm_stage g WHERE g.run_id = r.id AND r.stop IS NULL
                AND (g.todo IS NOT NULL OR g.pruning IS NOT NULL))""",
    "a run that did not begin has no job in hand or done": """
        SELECT r.id FROM gm_run r JOIN gm_job j ON j.run_id = r.id
        WHERE r.state = 0 AND j.state IN (2, 3, 4, 6)""",
    "a queued job is either in the line or delayed, or it waits for its parts": """
        SELECT id FROM gm_job WHERE state = 0 AND (ready IS NULL) = (run_at IS NULL)
            AND NOT (ready IS NULL AND coalesce(parts_left, 0) > 0)""",
    "counters of parts equal the rows": """
        SELECT j.id FROM gm_job j LEFT JOIN gm_job p ON p.parent_id = j.id AND p.stage_id IS NULL
        GROUP BY j.id, j.parts, j.parts_left, j.parts_failed
        HAVING coalesce(j.parts, 0) <> count(p.id)
            OR coalesce(j.parts_left, 0) <> count(CASE WHEN p.state < 2 THEN 1 END)
            OR coalesce(j.parts_failed, 0) <> count(CASE WHEN p.state IN (4, 5) THEN 1 END)""",
    "an ended job has only ended parts": """
        SELECT p.id FROM gm_job p JOIN gm_job j ON j.id = p.parent_id
        WHERE p.stage_id IS NULL AND p.state < 2 AND j.state >= 2""",
    "a part is younger than its job, is of the same run, and has no parts itself": """
        SELECT p.id FROM gm_job p LEFT JOIN gm_job j ON j.id = p.parent_id WHERE p.stage_id IS NULL
            AND p.parent_id IS NOT NULL AND (j.id IS NULL OR j.id >= p.id OR p.parts IS NOT NULL
            OR coalesce(j.run_id, 0) <> coalesce(p.run_id, 0))""",
    "only a job with parts left waits to end": """
        SELECT id FROM gm_job WHERE ends_as IS NOT NULL AND (state <> 0 OR coalesce(parts_left, 0) = 0)""",
    "the line holds queued jobs only": """
        SELECT id FROM gm_job WHERE state <> 0 AND (ready IS NOT NULL OR run_at IS NOT NULL)""",
    "a job in progress is an active worker's": """
        SELECT id FROM gm_job j WHERE state = 1 AND NOT EXISTS
            (SELECT 1 FROM gm_worker w WHERE w.id = j.worker_id AND w.state = 0)""",
    "a job that keeps to a limit is in the line, or in progress, only with a permit": """
        SELECT j.id FROM gm_job j WHERE j.limit_id IS NOT NULL AND (j.ready IS NOT NULL OR j.state = 1) AND NOT EXISTS
            (SELECT 1 FROM gm_permit p WHERE p.limit_id = j.limit_id AND p.job_id = j.id)""",
    "what waits for a limit has one": """
        SELECT id FROM gm_job WHERE run_at >= 4611686018427387904 AND (limit_id IS NULL OR state <> 0)""",
    "a failed job has the fingerprint of an attempt of its own, and no other job has one": """
        SELECT id FROM gm_job j WHERE (state = 4) <> (fingerprint IS NOT NULL) OR (state = 4 AND NOT EXISTS
            (SELECT 1 FROM gm_attempt a WHERE a.job_id = j.id AND a.attempt = j.attempt
             AND a.fingerprint = j.fingerprint))""",
    "an ended job holds no unique key": "SELECT id FROM gm_job WHERE state >= 2 AND unique_key IS NOT NULL",
    "a failed attempt is kept under a number that was claimed": """
        SELECT a.job_id AS id FROM gm_attempt a JOIN gm_job j ON j.id = a.job_id WHERE a.attempt > j.attempt""",
    "a job whose stage is gone is being removed": """
        SELECT j.id FROM gm_job j WHERE j.stage_id IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM gm_stage g WHERE g.id = j.stage_id)
            AND NOT EXISTS (SELECT 1 FROM gm_removal x WHERE x.stage_id = j.stage_id)""",
    "what is being removed has ended": """
        SELECT j.id FROM gm_job j JOIN gm_removal x ON x.stage_id = j.stage_id WHERE j.finished_at IS NULL""",
    "no stage is there and being removed": "SELECT g.id FROM gm_stage g JOIN gm_removal x ON x.stage_id = g.id",
    "a failed attempt has its job": """
        SELECT a.job_id AS id FROM gm_attempt a WHERE NOT EXISTS (SELECT 1 FROM gm_job j WHERE j.id = a.job_id)""",
    "a part has its job": """
        SELECT p.id FROM gm_job p WHERE p.stage_id IS NULL AND p.parent_id IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM gm_job j WHERE j.id = p.parent_id)""",
    "only what has ended is archived": "SELECT id FROM gm_job WHERE archived_at IS NOT NULL AND finished_at IS NULL",
    "a subject's last runs are there": """
        SELECT s.id FROM gm_subject s WHERE (s.last_run_id IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM gm_run r WHERE r.id = s.last_run_id)) OR (s.last_good_run_id IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM gm_run r WHERE r.id = s.last_good_run_id))""",
    "a subject's last run ended as its row says": """
        SELECT s.id FROM gm_subject s JOIN gm_run r ON r.id = s.last_run_id
        WHERE s.last_state <> r.state OR s.last_run_at <> r.finished_at OR r.subject_id <> s.id""",
    "a subject is as fresh as its last good run": """
        SELECT s.id FROM gm_subject s LEFT JOIN gm_run r ON r.id = s.last_good_run_id
        WHERE s.last_good_at <> coalesce(r.finished_at, 0)""",
    "a fire time that started something says what, another does not": """
        SELECT id FROM gm_fire WHERE (outcome = 'started') <> (job_id IS NOT NULL OR runs IS NOT NULL)""",
    "the last good run of a subject ended well": """
        SELECT s.id FROM gm_subject s JOIN gm_run r ON r.id = s.last_good_run_id WHERE r.state NOT IN (2, 3)""",
}
_ALL = text(
    " UNION ALL ".join(f"SELECT {n}, CAST(f{n}.id AS bigint) FROM ({sql}) f{n}" for n, sql in enumerate(_BROKEN.values()))
)
_LIMITS = text(
    "SELECT k.id, r.declared, r.chosen, CASE WHEN k.key <> '' THEN k.chosen END AS own, k.open_until,"
    " (SELECT count(*) FROM gm_job j WHERE j.limit_id = k.id AND j.ready IS NOT NULL) AS line,"
    " (SELECT count(*) FROM gm_job j WHERE j.limit_id = k.id AND j.state = 1) AS running,"
    " (SELECT count(*) FROM gm_job j JOIN gm_queue q ON q.id = j.queue_id WHERE j.limit_id = k.id"
    " AND j.run_at >= 4611686018427387904 AND NOT q.paused) AS waiting"
    " FROM gm_limit k JOIN gm_limit r ON r.name = k.name AND r.key = '' WHERE k.name <> 'queue'"
)
_IN_HAND = text("SELECT id, worker_id FROM gm_job WHERE state = 1")
_CLAIMS = text("SELECT worker_id, jobs FROM gm_claim")


def broken(ledger: Ledger) -> dict[str, list[int]]:
    """Which invariants do not hold, with the ids of what breaks them."""
    with ledger.engine.connect() as connection:
        return broken_as_seen(connection)


def broken_as_seen(connection: Connection) -> dict[str, list[int]]:
    """The same over a connection that is there already: PostgreSQL takes 20 ms to plan all this, once per connection."""
    names = list(_BROKEN)
    found: dict[str, list[int]] = {}
    for number, offender in connection.execute(_ALL):
        found.setdefault(names[number], []).append(offender)
    for row in connection.execute(_LIMITS):
        for what in _beyond(row):
            found.setdefault(what, []).append(row.id)
    claimed = {(w, job) for w, jobs in connection.execute(_CLAIMS) for job in orjson.loads(jobs)}
    unfound = [job for job, worker in connection.execute(_IN_HAND) if (worker, job) not in claimed]
    return found | ({"a rescue would find every job in progress": unfound} if unfound else {})


def _beyond(row: Any) -> Iterator[str]:
    """What a key of a limit does that it should not."""
    numbers = Numbers.of(row.declared, row.chosen, row.own)
    most = numbers.at_once
    if most is not None and row.line + row.running > most and (row.line or not row.chosen):
        yield "of a key no more are in the line or in progress than may be at once"
    if row.waiting and not row.line + row.running and numbers.per_second is None and row.open_until is None:
        yield "what waits for a limit waits for another job"


def check(ledger: Ledger) -> None:
    found = broken(ledger)
    assert found == {}, found


def snapshot(ledger: Ledger) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table but those that connections leave: equal before and after means that nothing was changed."""
    from gristmill.ledger.schema import metadata

    with ledger.engine.connect() as connection:
        return {
            table.name: sorted(map(tuple, connection.exec_driver_sql(f"SELECT * FROM {table.name}")), key=repr)
            for table in metadata.sorted_tables
            if table.name != "gm_commit"
        }
