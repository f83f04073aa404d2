"""Schedules: what is due, and firing it. A fire time and what it starts are one transaction, under the schedule's lock.

So nothing is started twice, whoever fires at the same time and wherever a process dies; and a clock that was set back
finds in the history what was started already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from gristmill.clock import SECOND, to_datetime
from gristmill.errors import Invalid, NotFound, Refused, did_you_mean, quoted
from gristmill.ledger import stale, start
from gristmill.ledger.columns import FIRE, SCHEDULE, columns
from gristmill.ledger.read import now
from gristmill.ledger.sql import Sql
from gristmill.ledger.start import IfActive, NewJob, PlannedStage
from gristmill.ledger.stop import audit
from gristmill.ledger.store import Tx
from gristmill.model import Firing, ScheduleEntry
from gristmill.schedule import Schedule, Turn
from gristmill.states import TERMINAL, State

_KEPT = 1000  # entries of its history that each schedule keeps
_AGAIN = SECOND  # how soon to look again at one that waits for its last job or run


class Outcome(StrEnum):
    """What became of a fire time."""

    STARTED = "started"
    OVERLAP = "overlap"  #: skipped: what the last one started has not ended
    WINDOW = "window"  #: skipped: in a maintenance window
    MISSED = "missed"  #: nobody was there to fire it, and it was not caught up
    FAILED = "failed"  #: what it should start was refused


class NewRun(NamedTuple):
    """A run to start for one subject."""

    pipeline: str
    subject: str
    args: str
    priority: int
    plan: Sequence[PlannedStage]


What = NewJob | NewRun | stale.Wanted


class Fired(NamedTuple):
    """What one fire time came to; no outcome: there was nothing to do. Not `moved`: it has to wait."""

    outcome: Outcome | None = None
    detail: str | None = None
    job: int | None = None
    runs: tuple[int, ...] = ()
    moved: bool = True


_COLUMNS = columns(SCHEDULE)
_LATE = 120 * SECOND  # that a schedule may be: workers look every second
_SHOWN = f"{_COLUMNS}, due_at < {{now}} - {_LATE} AS overdue"
_ALL = Sql(f"SELECT {_SHOWN} FROM gm_schedule ORDER BY name")
_ONE = Sql(f"SELECT {_SHOWN} FROM gm_schedule WHERE name = :name")
_LOCK = Sql(f"SELECT {_COLUMNS} FROM gm_schedule WHERE id = :schedule {{lock}}")
_LOCK_NAMED = Sql(f"SELECT {_COLUMNS} FROM gm_schedule WHERE name = :name {{lock}}")
_NEXT = Sql("SELECT {now} AS at, (SELECT min(due_at) FROM gm_schedule WHERE due_at IS NOT NULL) AS due")
_DUE = Sql("SELECT id, name, spec, {now} - due_at AS late FROM gm_schedule WHERE due_at <= {now} ORDER BY due_at, id")
_COMING = Sql("SELECT id, name, spec, fire_at FROM gm_schedule WHERE due_at > {now} ORDER BY id")
_ADD = Sql(
    "INSERT INTO gm_schedule (name, spec, declared, fire_at, due_at, created_at)"
    " VALUES (:name, :spec, :declared, :fire, :due, {now}) ON CONFLICT DO NOTHING RETURNING id"
)
_SET = Sql(
    "UPDATE gm_schedule SET spec = :spec, declared = :declared, undeclared_at = NULL, fire_at = :fire, due_at = :due"
    " WHERE id = :schedule"
)
_UNDECLARE = Sql("UPDATE gm_schedule SET undeclared_at = {now} WHERE id {in ids} AND undeclared_at IS NULL")
_PLACE = Sql("UPDATE gm_schedule SET fire_at = :fire, due_at = :due WHERE id = :schedule")
_LAST = Sql(
    "UPDATE gm_schedule SET last_at = :fire, last_started_at = {now}, last_job_id = :job, last_run_id = :run"
    " WHERE id = :schedule"
)
_PAUSE = Sql("UPDATE gm_schedule SET paused_at = {now}, paused_by = :by, fire_at = NULL, due_at = NULL WHERE id = :schedule")
_RESUME = Sql(
    "UPDATE gm_schedule SET paused_at = NULL, paused_by = NULL, fire_at = :fire, due_at = :due WHERE id = :schedule"
)
_REMOVE = Sql("DELETE FROM gm_schedule WHERE id = :schedule")
_SEEN = Sql(
    "SELECT 1 FROM gm_fire WHERE schedule_id = :schedule AND fire_at = :fire AND who IS NULL"
    f" AND outcome = '{Outcome.STARTED}'"
)
# A fire time that was passed over can come again, when the clock was wrong; one that started something cannot.
_RECORD = Sql(
    "INSERT INTO gm_fire (schedule_id, fire_at, at, outcome, job_id, runs, detail, who)"
    " VALUES (:schedule, :fire, {now}, :outcome, :job, :runs, :detail, :who)"
    " ON CONFLICT (schedule_id, fire_at) WHERE who IS NULL DO UPDATE SET at = excluded.at, outcome = excluded.outcome,"
    " job_id = excluded.job_id, runs = excluded.runs, detail = excluded.detail"
    f" WHERE gm_fire.outcome <> '{Outcome.STARTED}' RETURNING id"
)
_FORGET = Sql(
    "DELETE FROM gm_fire WHERE schedule_id = :schedule AND id <="
    " (SELECT id FROM gm_fire WHERE schedule_id = :schedule ORDER BY id DESC LIMIT 1 OFFSET :kept)"
)
_HISTORY = f"SELECT {columns(FIRE, 'f')}, s.name FROM gm_fire f JOIN gm_schedule s ON s.id = f.schedule_id"
_NAME = Sql("SELECT name FROM gm_schedule WHERE id = :schedule")
_NAMED = 10  # runs of a firing that its event names
_JOB_STATE = Sql("SELECT state FROM gm_job WHERE id = :job")
_RUN_STATE = Sql("SELECT state FROM gm_run WHERE id = :run")


# ---- looking


def next_due(tx: Tx) -> tuple[int, int | None]:
    """What time it is, and when the next schedule is due."""
    row = tx.one(_NEXT)
    return row.at, row.due


def due(tx: Tx) -> list[Any]:
    """(id, name, spec, for how long) of what is due, the oldest first."""
    return tx.all(_DUE)


def entries(tx: Tx) -> list[ScheduleEntry]:
    return [_entry(row) for row in tx.all(_ALL)]


def entry(tx: Tx, name: str) -> ScheduleEntry:
    row = tx.one(_ONE, name=name)
    if row is None:
        raise _unknown(tx, name)
    return _entry(row)


def _unknown(tx: Tx, name: str) -> NotFound:
    return NotFound(f"there is no schedule {quoted(name)}{did_you_mean(name, [row.name for row in tx.all(_ALL)])}")


def _entry(row: Any) -> ScheduleEntry:
    spec = orjson.loads(row.spec)
    try:
        words, problem = Schedule.read(row.name, row.spec).cron.words(), None
    except (Invalid, TypeError) as error:  # newer code added it, or this machine lacks its time zone
        words, problem = spec.get("cron", ""), str(error)
    state = "paused" if row.paused_at is not None else "broken" if problem else "on" if row.fire_at is not None else "off"
    return ScheduleEntry(
        name=row.name,
        state=state,
        when=words,
        spec=spec,
        next_at=to_datetime(row.due_at),
        last_at=to_datetime(row.last_at),
        last_started_at=to_datetime(row.last_started_at),
        last_job=row.last_job_id,
        last_run=row.last_run_id,
        declared=bool(row.declared),
        undeclared_at=to_datetime(row.undeclared_at),
        paused_at=to_datetime(row.paused_at),
        paused_by=row.paused_by,
        problem=problem,
        late=state == "on" and bool(row.overdue),
    )


def spec_of(tx: Tx, name: str) -> str:
    row = tx.one(_ONE, name=name)
    if row is None:
        raise _unknown(tx, name)
    return str(row.spec)


def history(tx: Tx, name: str | None, most: int) -> list[Firing]:
    """What became of fire times, newest first."""
    if name is None:
        return _firings(tx, "", most)
    spec_of(tx, name)  # or it is unknown
    return _firings(tx, " WHERE s.name = :name", most, name=name)


def firing(tx: Tx, number: int) -> Firing:
    return _firings(tx, " WHERE f.id = :number", 1, number=number)[0]


def _firings(tx: Tx, where: str, most: int, **values: Any) -> list[Firing]:
    return [
        Firing(
            schedule=row.name,
            fire_at=to_datetime(row.fire_at),
            at=to_datetime(row.at),
            outcome=row.outcome,
            job=row.job_id,
            runs=tuple(orjson.loads(row.runs)) if row.runs else (),
            detail=row.detail,
            by=row.who,
        )
        for row in tx.all(Sql(f"{_HISTORY}{where} ORDER BY f.fire_at DESC, f.id DESC LIMIT :most"), most=most, **values)
    ]


# ---- setting


def declare(tx: Tx, declared: Sequence[Schedule], known: Collection[str]) -> list[str]:
    """Writes down what an application declares, and says which it declared before and does not any more: those whose
    task or pipeline is `known` to it. They go on, until somebody removes them. An operator's pause stays."""
    rows = {row.name: row for row in tx.all(_ALL)}
    for schedule in sorted(declared, key=lambda one: one.name):
        row = rows.get(schedule.name)
        if row is None or row.spec != schedule.spec or not row.declared or row.undeclared_at is not None:
            _write(tx, schedule, declared=True)
    ours = {schedule.name for schedule in declared}
    gone = [row for row in rows.values() if row.declared and row.name not in ours and _target(row.spec) in known]
    tx.run(_UNDECLARE, ids=[row.id for row in gone])
    return [row.name for row in gone]


def _target(spec: str) -> str:
    found = orjson.loads(spec)
    return f"task {found['task']}" if found.get("task") else f"pipeline {found.get('pipeline')}"


def add(tx: Tx, schedule: Schedule, *, replace: bool, by: str) -> None:
    """Adds a schedule by hand."""
    row = tx.one(_LOCK_NAMED, name=schedule.name)
    if row is not None and row.declared and row.undeclared_at is None:
        raise Refused(f"schedule {schedule.name!r} is declared in code: change it there, or pause it")
    if (row is not None or not _write(tx, schedule, declared=False)) and not replace:
        raise Refused(f"there is a schedule {schedule.name!r} already; --replace puts this one in its place")
    if row is not None:
        _write(tx, schedule, declared=False)
    audit(tx, by, "schedule.add", f"schedule {schedule.name}", **orjson.loads(schedule.spec))


def _write(tx: Tx, schedule: Schedule, *, declared: bool) -> bool:
    """Adds it, or changes the one of that name; says which."""
    at = now(tx)
    fire = schedule.cron.after(at)
    new = {"spec": schedule.spec, "declared": declared, "fire": fire, "due": schedule.due(fire)}
    if tx.value(_ADD, name=schedule.name, **new) is not None:
        return True
    row = tx.one(_LOCK_NAMED, name=schedule.name)
    if row is None:
        raise Refused(f"schedule {schedule.name!r} was removed at this moment; try again")
    if row.paused_at is not None:
        fire = None
    elif row.fire_at is not None and _same_times(row.spec, schedule):
        fire = row.fire_at  # what was missed is not forgotten
    tx.run(_SET, **{**new, "fire": fire, "due": schedule.due(fire)}, schedule=row.id)
    return False


def _same_times(spec: str, schedule: Schedule) -> bool:
    before = orjson.loads(spec)
    return (before.get("cron"), before.get("tz")) == (schedule.cron.text, schedule.cron.tz)


def remove(tx: Tx, name: str, *, by: str) -> bool:
    """Removes a schedule and its history; what it started stays. Says whether it is declared in code."""
    row = _locked(tx, name)
    tx.run(_REMOVE, schedule=row.id)
    audit(tx, by, "schedule.remove", f"schedule {name}", **orjson.loads(row.spec))
    return bool(row.declared) and row.undeclared_at is None


def pause(tx: Tx, name: str, *, by: str) -> None:
    """Nothing fires until it is resumed."""
    row = _locked(tx, name)
    if row.paused_at is None:
        tx.run(_PAUSE, schedule=row.id, by=by)
        audit(tx, by, "schedule.pause", f"schedule {name}")


def resume(tx: Tx, name: str, *, by: str) -> None:
    """Goes on with the next fire time; those during the pause are not caught up."""
    row = _locked(tx, name)
    if row.paused_at is None:
        return
    schedule = Schedule.read(row.name, row.spec)
    fire = schedule.cron.after(now(tx))
    tx.run(_RESUME, schedule=row.id, fire=fire, due=schedule.due(fire))
    audit(tx, by, "schedule.resume", f"schedule {name}")


def _locked(tx: Tx, name: str) -> Any:
    row = tx.one(_LOCK_NAMED, name=name)
    if row is None:
        raise _unknown(tx, name)
    return row


# ---- firing


def fire(tx: Tx, number: int, spec: str, what: What | None, problem: str = "") -> Fired | None:
    """Fires a schedule, if it is due and still what it was when `what` it starts was made ready. None: it is not.

    One fire time at a time; whatever else is to be caught up is due at once. Without a `what`, the `problem` is recorded.
    """
    row = tx.one(_LOCK, schedule=number)
    at = now(tx)
    if row is None or row.spec != spec or row.due_at is None or row.due_at > at:
        return None
    schedule = Schedule.read(row.name, spec)
    turn = schedule.turn(row.fire_at, at)
    fired = _decide(tx, row, schedule, turn, at, what, problem)
    if fired is None:
        tx.run(_PLACE, schedule=number, fire=row.fire_at, due=at + _AGAIN)
        return Fired(moved=False)
    if turn.missed:
        count = f"{turn.missed} fire times" if turn.missed > 1 else "1 fire time"
        _record(
            tx,
            number,
            turn.last_missed,
            Fired(Outcome.MISSED, f"{count} from {to_datetime(row.fire_at):%Y-%m-%d %H:%M} UTC on"),
        )
    if turn.fire is not None:
        _record(tx, number, turn.fire, fired)
    tx.run(_PLACE, schedule=number, fire=turn.next, due=schedule.due(turn.next))
    return fired


def _decide(tx: Tx, row: Any, schedule: Schedule, turn: Turn, at: int, what: What | None, problem: str) -> Fired | None:
    """What this fire time comes to, done; None: it has to wait."""
    if turn.fire is None or tx.one(_SEEN, schedule=row.id, fire=turn.fire) is not None:
        return Fired()
    if schedule.in_window(turn.fire, at):
        return Fired(Outcome.WINDOW, "in a maintenance window")
    busy = _unfinished(tx, schedule, row)
    if busy and schedule.catch_up == "all":
        return None
    if busy:
        return Fired(Outcome.OVERLAP, busy)
    if what is None:
        return Fired(Outcome.FAILED, problem)
    return _start(tx, schedule, what, (turn.next or at) - turn.fire)


def _unfinished(tx: Tx, schedule: Schedule, row: Any) -> str | None:
    """What the last fire time started, if it has not ended and this one must not run beside it, in words."""
    if schedule.overlap or schedule.stalest is not None:  # which chooses among those that do not run
        return None
    for word, number, sql in (("job", row.last_job_id, _JOB_STATE), ("run", row.last_run_id, _RUN_STATE)):
        state = None if number is None else tx.value(sql, **{word: number})
        if state is not None and State(state) not in TERMINAL:
            return f"{word} {number} of the last time is {State(state).word}"
    return None


def _start(tx: Tx, schedule: Schedule, what: What, gap: int) -> Fired:
    if isinstance(what, NewJob):
        return Fired(Outcome.STARTED, None, start.enqueue(tx, what)[0])
    if isinstance(what, stale.Wanted):
        chosen = stale.start_stalest(tx, what._replace(gap=max(SECOND, gap)))
        names = ", ".join(one.subject for one in chosen[:5]) + (" …" if len(chosen) > 5 else "")
        return Fired(Outcome.STARTED, names, None, tuple(one.run for one in chosen)) if chosen else Fired()
    try:
        started = start.start(tx, *what, IfActive.WAIT if schedule.overlap else IfActive.REFUSE)
    except Refused as refused:
        return Fired(Outcome.OVERLAP, str(refused))
    return Fired(Outcome.STARTED, None, None, (started.run_id,))


def _record(tx: Tx, number: int, fire_at: int | None, fired: Fired, who: str | None = None) -> int | None:
    if fired.outcome is None:
        return None
    runs = orjson.dumps(fired.runs).decode() if fired.runs else None
    said = {"outcome": str(fired.outcome), "job": fired.job, "runs": runs, "detail": fired.detail}
    entry: int | None = tx.value(_RECORD, schedule=number, fire=fire_at, who=who, **said)
    fact = {"outcome": str(fired.outcome), "job": fired.job, "runs": list(fired.runs)[:_NAMED]}
    tx.notes.add("schedule", name=tx.value(_NAME, schedule=number), **fact)
    if fired.outcome is Outcome.STARTED:
        one = fired.runs[0] if len(fired.runs) == 1 else None
        tx.run(_LAST, schedule=number, fire=fire_at, job=fired.job, run=one)
    tx.run(_FORGET, schedule=number, kept=_KEPT)
    return entry


def run_now(tx: Tx, name: str, spec: str, what: What, *, by: str) -> int:
    """Starts what a schedule starts, out of turn; its times stay as they are. Refused while the last one's goes on. Says
    the number of its entry in the history."""
    row = _locked(tx, name)
    if row.spec != spec:
        raise Refused(f"schedule {name!r} was changed at this moment; try again")
    schedule = Schedule.read(name, spec)
    busy = _unfinished(tx, schedule, row)
    if busy:
        raise Refused(f"schedule {name!r}: {busy}")
    at = now(tx)
    fired = _start(tx, schedule, what, schedule.gap(at))
    if fired.outcome is Outcome.OVERLAP:
        raise Refused(fired.detail or name)
    entry = _record(tx, row.id, at, fired, by)
    if entry is None:
        raise Refused(f"schedule {name!r}: none of its subjects is due")
    audit(tx, by, "schedule.run-now", f"schedule {name}", job=fired.job, runs=fired.runs)
    return entry


# ---- a clock that was set back


def astray(tx: Tx) -> list[tuple[int, str, int]]:
    """(id, name, fire time) of those whose next time is too far away: a clock put it there before it was set right."""
    at = now(tx)
    found: list[tuple[int, str, int]] = []
    for row in tx.all(_COMING):
        following = _following(row, at)
        if following is not None and following < row.fire_at:
            found.append((row.id, row.name, row.fire_at))
    return found


def _following(row: Any, at: int) -> int | None:
    try:
        return Schedule.read(row.name, row.spec).cron.after(at)
    except (Invalid, TypeError):
        return None


def rewind(tx: Tx, number: int, fire_at: int) -> None:
    """Brings a fire time back to where it belongs."""
    row = tx.one(_LOCK, schedule=number)
    if row is None or row.fire_at != fire_at:
        return
    schedule = Schedule.read(row.name, row.spec)
    following = schedule.cron.after(now(tx))
    tx.run(_PLACE, schedule=number, fire=following, due=schedule.due(following))
