"""What must hold after a row, whatever it broke: read from the ledger, from the record outside, and from a log of changes.

The log is kept by triggers in the database itself, in the transactions that make the changes: a second end of a job, or
another result for one that had ended, is seen there even if the row looks the same afterwards.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import orjson

from chaos.play import LEASE, SWEEP, Play, Violation
from chaos.record import noted
from gristmill import Mill
from gristmill.clock import micros
from gristmill.states import JOB_TRANSITIONS, RUN_TRANSITIONS, TERMINAL, State
from tests.ledger import invariants

_TERMINAL = ", ".join(str(int(state)) for state in sorted(TERMINAL))
_SQLITE = """
CREATE TRIGGER chaos_{table}_update AFTER UPDATE ON gm_{table}
WHEN OLD.state <> NEW.state AND (OLD.state IN ({terminal}) OR NEW.state IN ({terminal}))
OR OLD.state IN ({terminal}) AND (OLD.finished_at IS NOT NEW.finished_at OR OLD.error IS NOT NEW.error{more}) BEGIN
INSERT INTO chaos_change (what, id, attempt, old, new) VALUES ('{table}', NEW.id, NEW.{attempt}, OLD.state, NEW.state); END;
CREATE TRIGGER chaos_{table}_insert AFTER INSERT ON gm_{table} WHEN NEW.state IN ({terminal}) BEGIN
INSERT INTO chaos_change (what, id, attempt, new) VALUES ('{table}', NEW.id, NEW.{attempt}, NEW.state); END;
"""
_POSTGRES = """
CREATE FUNCTION chaos_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
INSERT INTO chaos_change (what, id, attempt, old, new) VALUES ('{table}', NEW.id, NEW.{attempt},
CASE TG_OP WHEN 'UPDATE' THEN OLD.state END, NEW.state); RETURN NULL; END $$;
CREATE TRIGGER chaos_{table}_update AFTER UPDATE ON gm_{table} FOR EACH ROW
WHEN (OLD.state <> NEW.state AND (OLD.state IN ({terminal}) OR NEW.state IN ({terminal}))
OR OLD.state IN ({terminal}) AND (OLD.finished_at IS DISTINCT FROM NEW.finished_at
OR OLD.error IS DISTINCT FROM NEW.error{more})) EXECUTE FUNCTION chaos_{table}();
CREATE TRIGGER chaos_{table}_insert AFTER INSERT ON gm_{table} FOR EACH ROW
WHEN (NEW.state IN ({terminal})) EXECUTE FUNCTION chaos_{table}();
"""
_TABLE = {
    "sqlite": "CREATE TABLE chaos_change (n integer PRIMARY KEY, what text, id integer, attempt int, old int, new int);",
    "postgresql": "CREATE TABLE chaos_change (n serial PRIMARY KEY, what text, id bigint, attempt int, old int, new int);",
}


def watch(mill: Mill) -> None:
    """Has the database itself log every end of a job or a run, and every change of what had ended."""
    dialect = mill.ledger.engine.dialect.name
    statements = _TABLE[dialect]
    template, differs = (_SQLITE, "IS NOT") if dialect == "sqlite" else (_POSTGRES, "IS DISTINCT FROM")
    more = "".join(f" OR OLD.{column} {differs} NEW.{column}" for column in ("attempt", "result"))
    statements += template.format(table="job", attempt="attempt", terminal=_TERMINAL, more=more)
    statements += template.format(table="run", attempt="epoch", terminal=_TERMINAL, more="")
    with mill.ledger.alone() as driver:
        if dialect == "sqlite":
            driver.executescript(statements)
        else:
            driver.execute(statements)
            driver.commit()


def rows(mill: Mill, sql: str) -> list[Any]:
    with mill.ledger.engine.connect() as connection:
        return list(connection.exec_driver_sql(sql).all())


# ---- liveness


_LEFT = (
    "SELECT (SELECT count(*) FROM gm_job WHERE state IN (0, 1)), (SELECT count(*) FROM gm_run WHERE finished_at IS NULL),"
    " (SELECT coalesce(max(n), 0) FROM chaos_change)"
)


_FORGOTTEN = (
    "SELECT j.id, j.worker_id FROM gm_job j JOIN gm_worker w ON w.id = j.worker_id"
    " WHERE j.state = 1 AND w.lease_until < {before}"
)


def left(play: Play) -> tuple[int, int, int]:
    """Jobs and runs that are not over, and how many changes were logged."""
    jobs, runs, changes = rows(play.mill, _LEFT)[0]
    return jobs, runs, changes


def settle(play: Play, pause: float = 2 * LEASE + SWEEP, slack: float = 2.0) -> float:
    """Waits, after the faults have stopped, until all is over; the longest time in which nothing ended.

    While there is work, ends follow each other; what a dead worker held comes back within two leases and one sweep.
    """
    longest, last, since = 0.0, None, time.monotonic()
    while True:
        found = left(play)
        now = time.monotonic()
        if found != last:
            last, since = found, now
        longest = max(longest, now - since)
        if forgotten := rows(play.mill, _FORGOTTEN.format(before=micros(time.time() - pause - slack))):
            raise Violation(f"jobs of workers that are long gone were not taken back: {forgotten[:3]}")
        if not found[0] and not found[1]:
            return longest
        if now - since > pause + slack:
            raise Violation(
                f"stuck: {found[0]} jobs and {found[1]} runs are not over, and nothing ended for {now - since:.1f} s:"
                f" {'; '.join(_reasons(play))}"
            )
        time.sleep(0.05)


def _reasons(play: Play) -> Iterator[str]:
    """What is said of the first few that are not over."""
    for (job,) in rows(play.mill, "SELECT id FROM gm_job WHERE state IN (0, 1) ORDER BY id LIMIT 3"):
        yield f"{play.mill.job(job)}: {play.mill.why(job=job)}"
    for (run,) in rows(play.mill, "SELECT id FROM gm_run WHERE finished_at IS NULL ORDER BY id LIMIT 3"):
        yield f"run {run}: {play.mill.why(run=run)}"


# ---- safety


def check(play: Play, retried: bool = False, failing: bool = False) -> None:
    """Raises with all that does not hold. `retried`: someone queued again what had ended. `failing`: jobs may fail."""
    found = list(_violations(play, retried, failing))
    if found:
        raise Violation("\n  ".join(["the oracle says:", *found[:20], *([f"… {len(found)} in all"] if found[20:] else [])]))


def _violations(play: Play, retried: bool, failing: bool) -> Iterator[str]:
    for what, ids in invariants.broken(play.mill.ledger).items():
        yield f"does not hold: {what}: {ids[:5]}"
    yield from _acknowledged(play, failing)
    yield from _changes(play, retried)
    yield from _late(play)
    yield from _fan_ins(play)


def _acknowledged(play: Play, failing: bool) -> Iterator[str]:
    states = {
        what: {row[0]: row[1] for row in rows(play.mill, f"SELECT id, state FROM gm_{what}")} for what in ("job", "run")
    }
    for what, number, *_ in noted(play.folder, "acknowledged"):
        state = states[what].get(number)
        if state is None:
            yield f"lost: {what} {number} was acknowledged and is not in the ledger"
        elif state not in TERMINAL:
            yield f"not over: {what} {number} is {State(state).word}"
    if not failing:
        yield from _early(play)
        bad = Counter(State(state).word for each in states.values() for state in each.values() if state > State.COMPLETED)
        if bad:
            yield f"not completed, and nothing of this row should have failed: {dict(bad)}"


def _changes(play: Play, retried: bool) -> Iterator[str]:
    legal = {  # no job of a row has parts, and none is adopted: only workers complete
        "job": {(t.source, t.target) for t in JOB_TRANSITIONS if t.verb not in ("adopt", "end")},
        "run": {(t.source, t.target) for t in RUN_TRANSITIONS},
    }
    ends: Counter[tuple[str, int]] = Counter()
    for what, number, old, new in rows(play.mill, "SELECT what, id, old, new FROM chaos_change ORDER BY n"):
        if (None if old is None else State(old), State(new)) not in legal[what]:
            yield f"illegal change of {what} {number}: {old} -> {new}"
        if new in TERMINAL and old not in TERMINAL:
            ends[what, number] += 1
        if old in TERMINAL and not retried:
            yield f"{what} {number} had ended ({State(old).word}) and was changed to {State(new).word}"
    for (what, number), times in ends.items():
        if times != 1 and not retried:
            yield f"{what} {number} ended {times} times"
    over = {(what, number) for what in ("job", "run") for (number,) in rows(play.mill, _OVER.format(what=what))}
    for what, number in sorted(over - set(ends))[:3]:
        yield f"{what} {number} is over, and nobody saw it end"


_OVER = f"SELECT id FROM gm_{{what}} WHERE state IN ({_TERMINAL})"


def _late(play: Play) -> Iterator[str]:
    """A result is of the last attempt, and that attempt really got to its end."""
    ended = {(job, attempt) for job, attempt, *_ in noted(play.folder, "ended")}
    if not ended:
        return
    written = rows(play.mill, "SELECT id, attempt, result FROM gm_job WHERE state = 2 AND result IS NOT NULL")
    for job, attempt, result in written:
        said = orjson.loads(result)
        if isinstance(said, dict) and "attempt" in said and said["attempt"] != attempt:
            yield f"late write: job {job} has the result of attempt {said['attempt']}, its last one is {attempt}"
        elif isinstance(said, dict) and "attempt" in said and (job, attempt) not in ended:
            yield f"job {job} is completed, and its attempt {attempt} never came to its end"


def _fan_ins(play: Play) -> Iterator[str]:
    items = {number: more[0] for what, number, *more in noted(play.folder, "acknowledged") if what == "run" and more}
    if not items:
        return
    over = {}
    for run, name, total, closed in rows(
        play.mill,
        "SELECT run_id, name, total, completed + with_errors + failed + skipped + cancelled FROM gm_stage",
    ):
        over[run, name] = (total, closed)
    fired: dict[int, list[int]] = defaultdict(list)
    for run, _, seen, _ in noted(play.folder, "fanned_in"):
        fired[run].append(seen)
    for run, count in items.items():
        if over.get((run, "item")) != (count, count):
            yield f"run {run}: {over.get((run, 'item'))} items and ends, {count} were asked for"
        if over.get((run, "total")) != (1, 1):
            yield f"run {run}: its fan-in is there {over.get((run, 'total'))} times"
        if not fired[run]:
            yield f"run {run}: its fan-in never ran"
        if early := [seen for seen in fired[run] if seen != count]:
            yield f"run {run}: its fan-in ran when {early[0]} of {count} items were over"


_ITEMS = "SELECT j.id, j.run_id FROM gm_job j JOIN gm_stage s ON s.id = j.stage_id WHERE s.name = 'item'"


def _early(play: Play) -> Iterator[str]:
    """By the record outside: when a fan-in began, each of its items had come to its end. (Where none may fail.)"""
    of: dict[int, list[int]] = defaultdict(list)
    for job, run in rows(play.mill, _ITEMS):
        of[run].append(job)
    ended: dict[int, float] = {}
    for job, *_, at in noted(play.folder, "ended"):
        ended[job] = min(at, ended.get(job, at))
    for run, _, _, at in noted(play.folder, "fanned_in"):
        if late := [job for job in of[run] if ended.get(job, at + 1) > at]:
            yield f"run {run}: its fan-in began before {len(late)} of its items had ended, such as job {late[0]}"


def executions(play: Play) -> Counter[int]:
    """How often each job was begun."""
    return Counter(job for job, *_ in noted(play.folder, "began"))


def once(play: Play) -> None:
    """What was asked for by name is there once if it was acknowledged, not at all if it was refused, never twice."""
    times: Counter[str] = Counter(name for (name,) in rows(play.mill, _SUBJECTS))
    times.update(orjson.loads(args)["name"] for (args,) in rows(play.mill, _NAMED))
    wrong = [f"{name} is there {count} times" for name, count in times.items() if count > 1]
    wrong += [f"{name} was acknowledged and is not there" for name, _ in noted(play.folder, "named") if not times[name]]
    wrong += [f"{name} was refused and is there: {why}" for name, why in noted(play.folder, "refused") if times[name]]
    if wrong:
        raise Violation("; ".join(wrong[:5]))


_SUBJECTS = "SELECT gm_subject.name FROM gm_run JOIN gm_subject ON gm_subject.id = gm_run.subject_id"
_NAMED = "SELECT args FROM gm_job JOIN gm_task ON gm_task.id = gm_job.task_id WHERE gm_task.name = 'named'"


def overlapping(play: Play) -> list[int]:
    """Jobs of which an attempt was still at work (`ticked`) when the next one had begun."""
    began = {(job, attempt): at for job, attempt, _, _, at in noted(play.folder, "began")}
    late = (job for job, attempt, _, _, at in noted(play.folder, "ticked") if at > began.get((job, attempt + 1), at))
    return sorted(set(late))
