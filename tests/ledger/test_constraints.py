"""Invariants that live in the database: raw SQL that breaks one is refused by the database itself."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.ledger import invariants
from tests.ledger.conftest import Open
from tests.ledger.play import Play, each, plan, solo, step

BREAKS = {
    "a job in progress stays in the line": "UPDATE gm_job SET ready = 1 WHERE state = 1",
    "a completed job is delayed": "UPDATE gm_job SET run_at = 1 WHERE state = 2",
    "a queued job is in the line and delayed": "UPDATE gm_job SET ready = 1, run_at = 1 WHERE state = 0",
    "a queued job is held by a worker": "UPDATE gm_job SET worker_id = 1 WHERE state = 0",
    "a job in progress is nobody's": "UPDATE gm_job SET worker_id = NULL WHERE state = 1",
    "a completed job is still held": "UPDATE gm_job SET worker_id = 1 WHERE state = 2",
    "a job in progress has finished": "UPDATE gm_job SET finished_at = 1 WHERE state = 1",
    "a completed job has not finished": "UPDATE gm_job SET finished_at = NULL WHERE state = 2",
    "a job is set back without leaving its worker": "UPDATE gm_job SET state = 0 WHERE state = 1",
    "two items of a stage have one key": "UPDATE gm_job SET key = 'a' WHERE key = 'b'",
    "two jobs have one unique key": "UPDATE gm_job SET unique_key = 'k' WHERE stage_id IS NOT NULL",
    "more items ended than there are": "UPDATE gm_stage SET failed = total + 1 WHERE name = 'page'",
    "fewer items than ended": "UPDATE gm_stage SET total = 0 WHERE name = 'page'",
    "more had errors than completed": "UPDATE gm_stage SET with_errors = completed + 1",
    "a stage waits for fewer than none": "UPDATE gm_stage SET waiting_for = -1",
    "a stage is closed with items left": "UPDATE gm_stage SET state = 3 WHERE name = 'page'",
    "two stages of a run have one name": "UPDATE gm_stage SET name = 'find' WHERE name = 'page'",
    "a subject has two active runs": "UPDATE gm_run SET state = 0 WHERE state = 7",
    "a subject has two waiting runs": "UPDATE gm_run SET state = 7 WHERE state < 2",
    "an active run has finished": "UPDATE gm_run SET finished_at = 1 WHERE state = 1",
    "a run ended without an end": "UPDATE gm_run SET state = 2 WHERE state = 1",
    "a run of no subject": "UPDATE gm_run SET subject_id = 999999",
    "a stage of no run": "UPDATE gm_stage SET run_id = 999999",
    "one subject twice": "UPDATE gm_subject SET name = 'same', pipeline = 'same'",
    "two queues have one name": "UPDATE gm_queue SET name = 'same'",
    "a queue without weight": "UPDATE gm_queue SET weight = 0",
    "a claim of no worker": "INSERT INTO gm_claim (worker_id, jobs) VALUES (999999, '[]')",
}


def test_the_database_refuses_what_breaks_an_invariant(opened: Open) -> None:
    play = opened(plan("site", find=step(), page=each("find", queue="pages"), total=step("page")))
    busy(play)
    before = invariants.snapshot(play.ledger)
    assert [what for what, sql in BREAKS.items() if not refused(play, sql)] == []
    assert invariants.snapshot(play.ledger) == before


def refused(play: Play, sql: str) -> bool:
    try:
        with play.ledger.engine.connect() as connection:
            changed = connection.execute(text(sql)).rowcount
    except IntegrityError:
        return True
    assert changed, f"this ledger has no rows that could show it: {sql}"
    return False


def busy(play: Play) -> None:
    """A ledger with something of every kind: an active and a waiting run, jobs queued, in progress and completed."""
    play.mill.start("site", "s")
    play.mill.start("site", "s", if_active="wait")
    play.mill.start("site", "t")
    play.mill.enqueue(solo)
    player = play.player()
    play.turn(player, {"find": ["a", "b", "c"]}, {})
    player.complete(*player.take(1))
    player.take(1)


def test_jobs_survive_neither_less_nor_more_than_their_run(opened: Open) -> None:
    """Stages and edges go with their run; the ledger has no orphans of those."""
    play = opened(plan("chain", one=step(), two=step("one")))
    play.consistent = False
    run = play.mill.start("chain", "s")
    play.change("DELETE FROM gm_run WHERE id = :run", run=run.id)
    assert play.value("SELECT count(*) FROM gm_stage") == 0
    assert play.value("SELECT count(*) FROM gm_edge") == 0
