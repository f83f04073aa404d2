"""What must hold in a simulated world: after every few steps, and in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import orjson

from chaos.sim.cast import Cast
from chaos.sim.operators import Operators
from chaos.sim.world import Broken
from gristmill.ledger.store import Ledger
from gristmill.states import JOB_TRANSITIONS, RUN_TRANSITIONS, TERMINAL, State
from tests.ledger import invariants

_LEGAL = {
    "job": {(t.source, t.target) for t in JOB_TRANSITIONS},
    "run": {(t.source, t.target) for t in RUN_TRANSITIONS},
}
# A job that a worker holds is completed by that worker, while it is not lost: seen in the transaction itself.
LATE = """
CREATE TRIGGER chaos_late AFTER UPDATE OF state ON gm_job WHEN OLD.state = 1 AND NEW.state IN (2, 3)
AND NOT EXISTS (SELECT 1 FROM gm_worker w WHERE w.id = OLD.worker_id AND w.state = 0) BEGIN
INSERT INTO chaos_change (what, id, attempt, old, new) VALUES ('late', NEW.id, NEW.attempt, OLD.state, NEW.state); END;
CREATE TRIGGER chaos_back AFTER UPDATE OF attempt ON gm_job WHEN NEW.attempt < OLD.attempt BEGIN
INSERT INTO chaos_change (what, id, attempt, old, new) VALUES ('back', NEW.id, NEW.attempt, 0, 2); END;
"""


def holds(ledger: Ledger) -> None:
    found = invariants.broken(ledger)
    if found:
        raise Broken(f"does not hold: {found}")


def check_end(cast: Cast, operators: Operators) -> None:
    found = [*_acknowledged(cast, operators), *_changes(cast, operators), *_results(cast), *_items(cast)]
    if found:
        raise Broken("; ".join(found[:5]))


def _acknowledged(cast: Cast, operators: Operators) -> Iterator[str]:
    for what, number in operators.acknowledged:
        if not cast.look(f"SELECT 1 FROM gm_{what} WHERE id = {number}"):
            yield f"lost: {what} {number} was acknowledged and is not there"
    tags = Counter(orjson.loads(args).get("n") for (args,) in cast.look(_ASKED_FOR))
    yield from (f"enqueued {times} times: {tag}" for tag, times in tags.items() if times > 1)


_ASKED_FOR = "SELECT args FROM gm_job WHERE run_id IS NULL AND parent_id IS NULL"


def _changes(cast: Cast, operators: Operators) -> Iterator[str]:
    """One end per job and run; what has ended stays as it is, unless it was retried: then its next end is a later one."""
    run_of = {row[0]: row[1:] for row in cast.look("SELECT id, run_id, parent_id FROM gm_job")}
    again = {row[0] for row in cast.look("SELECT id FROM gm_run WHERE epoch > 1")}
    # The end of one may have been decided while a part was not over, such as one that was retried: that part ends both.
    with_parts = {row[0] for row in cast.look("SELECT DISTINCT parent_id FROM gm_job WHERE stage_id IS NULL")}
    ends: Counter[tuple[str, int]] = Counter()
    completed: Counter[tuple[int, int]] = Counter()
    for what, number, attempt, old, new in cast.look("SELECT what, id, attempt, old, new FROM chaos_change ORDER BY n"):
        if what not in _LEGAL:
            yield f"{what}: job {number}, attempt {attempt}: {old} -> {new}"
            continue
        if (None if old is None else State(old), State(new)) not in _LEGAL[what]:
            yield f"illegal change of {what} {number}: {old} -> {new}"
        if what == "job" and (old, new) == (State.QUEUED, State.COMPLETED) and number not in with_parts:
            yield f"job {number} was completed while nobody held it"
        retried = (
            number in again
            if what == "run"
            else bool({number, *run_of[number]} & operators.retried) or (run_of[number][0] in again)
        )
        ends[what, number] += new in TERMINAL and old not in TERMINAL
        if not retried and (old in TERMINAL or ends[what, number] > 1):
            yield f"{what} {number} had ended, and was changed: {old} -> {new}"
        if what == "job" and new in (State.COMPLETED, State.COMPLETED_WITH_ERRORS):
            completed[number, attempt] += 1
    yield from (f"attempt {of[1]} of job {of[0]} ended {times} times" for of, times in completed.items() if times > 1)


def _results(cast: Cast) -> Iterator[str]:
    """A result is of the last attempt, and that attempt really came to its end; no attempt was begun twice."""
    for job, attempt, result in cast.look(_WRITTEN):
        said = orjson.loads(result)["attempt"]
        if said != attempt or (job, attempt) not in cast.ended:
            yield f"late write: job {job} has the result of attempt {said}, its last one is {attempt}"
    yield from (f"attempt {of[1]} of job {of[0]} was begun {n} times" for of, n in cast.began.items() if n > 1)


_WRITTEN = "SELECT id, attempt, result FROM gm_job WHERE state IN (2, 3) AND result IS NOT NULL"


def _items(cast: Cast) -> Iterator[str]:
    """What a completed producer gave is there, all of it and once, in every `each` stage after it."""
    for job, run, stage, key, there in cast.look(_PRODUCERS):
        wanted = len(cast.given.get(("items", run, stage, key), ()))
        if there != wanted:
            yield f"job {job} gave {wanted} items to a stage, and {there} are there"
    yield from (f"job {job} gave nothing twice, and is told: {error}" for job, error in cast.look(_TWICE))


_TWICE = "SELECT job_id, error FROM gm_attempt WHERE error LIKE '%twice%'"
_PRODUCERS = """
SELECT j.id, j.run_id, j.stage_id, j.key, (SELECT count(*) FROM gm_job i WHERE i.stage_id = e.downstream_id
    AND i.parent_id = j.id) FROM gm_job j JOIN gm_run r ON r.id = j.run_id AND r.stop IS NULL
JOIN gm_edge e ON e.upstream_id = j.stage_id JOIN gm_stage d ON d.id = e.downstream_id AND d.each
WHERE j.state IN (2, 3) AND r.state <> 4 AND r.epoch = 1"""
