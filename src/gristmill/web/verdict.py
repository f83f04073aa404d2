"""Is everything all right? One sentence, and what is wrong, the worst first, each with where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gristmill.model import Diagnosis, LimitState, Queue, Run, ScheduleEntry, Signature, Status
from gristmill.web.phrases import cause
from gristmill.wording import count, first_line, plural, short, span

_OLD = timedelta(hours=1)  # that a ready job may wait, as in ops/alerts.yml
_LONGEST = 120  # characters of an error
_NAMED = 2  # things that a sentence names
_SAID = frozenset({"workers", "queues", "limits", "schedules"})  # what doctor finds and the verdict says in its own words
_HALTING = frozenset({"schema", "permissions", "disk", "needs"})  # with these, work stands still


@dataclass(frozen=True)
class Concern:
    """Something that is wrong. `bad`: work stands still; else somebody should look at it some time."""

    bad: bool
    sentence: str
    path: str
    what: str  #: what the link says


@dataclass(frozen=True)
class Seen:
    """What was looked at."""

    status: Status
    errors: Sequence[Signature]
    limits: Sequence[LimitState]
    schedules: Sequence[ScheduleEntry]
    stuck: Sequence[Run] = ()
    doctor: Sequence[Diagnosis] = ()
    more_errors: bool = False  #: there are others, which were not counted


def concerns(seen: Seen) -> list[Concern]:
    found = [
        *_workers(seen.status, seen.schedules),
        *_stuck(seen.stuck),
        *_queues(seen.status),
        *_old(seen.status),
        *_circuits(seen.limits),
        *_schedules(seen.schedules, seen.status.at),
        *_doctor(seen.doctor),
        *_errors(seen.errors, seen.more_errors),
    ]
    return sorted(found, key=lambda concern: not concern.bad)


def all_well(status: Status) -> str:
    """What is said if nothing is wrong."""
    if not status.queues:
        return "Nothing has been asked for yet."
    running = sum(queue.in_progress for queue in status.queues)
    waiting = sum(queue.ready for queue in status.queues)
    if running or waiting:
        jobs = f"{plural(running, 'job')} in progress, {count(waiting)} ready"
        return f"Everything is all right: {jobs}, {plural(len(status.workers), 'worker')}."
    delayed = sum(queue.delayed for queue in status.queues)
    later = f"{plural(delayed, 'job')} to run later" if delayed else "Nothing is waiting"
    return f"Everything is all right. {later}; {plural(len(status.workers), 'worker')} ready."


def waiting_in(queue: Queue) -> int:
    return queue.ready + queue.limited


def blocked(run: Run, queues: dict[str, Queue]) -> str | None:
    """Why an active run cannot go on, as far as its queues tell: all that it could do waits in such a one."""
    open_stages = [stage for stage in run.stages if stage.state in ("open", "sealed") and stage.done < stage.total]
    reasons = [_closed(queues.get(stage.queue)) for stage in open_stages]
    return reasons[0] if reasons and all(reasons) else None


def _closed(queue: Queue | None) -> str | None:
    if queue is None or queue.in_progress:
        return None
    if queue.paused:
        return f"queue {queue.name} is paused"
    return f"no worker serves queue {queue.name}" if not queue.workers else None


def _workers(status: Status, schedules: Sequence[ScheduleEntry]) -> Iterator[Concern]:
    gone = [worker for worker in status.workers if worker.late]
    if gone:
        names = _names([f"worker {worker.id} on {worker.host}" for worker in gone])
        yield Concern(True, f"{names} {_are(gone)} not heard of any more.", "/workers", "Look at the workers")
    if status.workers:
        return
    waiting = sum(waiting_in(queue) for queue in status.queues if not queue.paused)
    said = _wait(waiting) if waiting else _to_come(status, schedules)
    if said:
        yield Concern(waiting > 0, f"No worker is running, and {said}.", "/workers", "Look at the workers")


def _to_come(status: Status, schedules: Sequence[ScheduleEntry]) -> str:
    """What will need a worker, if it does not yet."""
    delayed = sum(queue.delayed for queue in status.queues if not queue.paused)
    if delayed:
        return f"{plural(delayed, 'job')} {'is' if delayed == 1 else 'are'} to run later"
    on = [entry for entry in schedules if entry.state == "on"]
    return f"{plural(len(on), 'schedule')} {_are(on)} on" if on else ""


def _stuck(runs: Sequence[Run]) -> Iterator[Concern]:
    """Nothing that is left in them could move them on."""
    if len(runs) == 1:
        said = f"{runs[0].subject} is stuck: its run has no job left that could move it on."
        yield Concern(True, said, f"/runs/{runs[0].id}", "Look at the run")
    elif runs:
        said = f"{_names([run.subject for run in runs])} are stuck: their runs have no job left that could move them on."
        yield Concern(True, said, "/runs?q=is%3Astuck", "Look at the runs")


def _queues(status: Status) -> Iterator[Concern]:
    unserved = [q for q in status.queues if q.ready and not q.workers and not q.paused] if status.workers else []
    if unserved:
        names, jobs = _names([queue.name for queue in unserved]), sum(queue.ready for queue in unserved)
        yield Concern(True, f"No worker serves {_queue(unserved)} {names}: {_wait(jobs)}.", "/queues", "Look at the queues")
    paused = [queue for queue in status.queues if queue.paused]
    if paused:
        jobs = sum(waiting_in(queue) for queue in paused)
        names = _names([queue.name for queue in paused])
        said = f"{_queue(paused, True)} {names} {_are(paused)} paused{f': {_wait(jobs)}' if jobs else ''}."
        yield Concern(False, said, "/queues", "Look at the queues")


def _old(status: Status) -> Iterator[Concern]:
    """There are workers, and yet jobs wait for hours: they are too few, or hang, or cannot take these."""
    before = status.at - _OLD
    old = [q for q in status.queues if q.ready and q.workers and not q.paused and q.oldest and q.oldest < before]
    for bad in (True, False):
        queues = [queue for queue in old if bool(queue.in_progress) is not bad]
        if queues:
            names, jobs = _names([queue.name for queue in queues]), sum(queue.ready for queue in queues)
            longest = span((status.at - min(queue.oldest for queue in queues if queue.oldest)).total_seconds())
            waits = f"{_wait(jobs)}, the oldest for {longest}"
            it, its = ("it", "its") if len(queues) == 1 else ("them", "their")
            said = f"nothing of {it} is in progress" if bad else f"{its} workers do not keep up"
            yield Concern(bad, f"{_queue(queues, True)} {names}: {waits}, and {said}.", "/queues", "Look at the queues")


def _doctor(found: Sequence[Diagnosis]) -> Iterator[Concern]:
    """One sentence for each check that something did not pass, unless it is said already."""
    ill = [diagnosis for diagnosis in found if not diagnosis.ok and diagnosis.check not in _SAID]
    for check in dict.fromkeys(diagnosis.check for diagnosis in ill):
        same = [diagnosis for diagnosis in ill if diagnosis.check == check]
        more = f" ({count(len(same) - 1)} more like it)" if len(same) > 1 else ""
        said = f"The doctor says of {check}: {short(first_line(same[0].sentence))}{more}."
        yield Concern(check in _HALTING, said, "/settings", "Look at what mends it")


def _circuits(limits: Sequence[LimitState]) -> Iterator[Concern]:
    opened = [limit for limit in limits if limit.circuit == "open"]
    if opened:
        names = _names([f"{limit.name} {limit.key}".strip() for limit in opened])
        jobs = sum(limit.waiting for limit in opened)
        said = f"After failures, {names} {_are(opened)} left alone for a while{f': {_wait(jobs)}' if jobs else ''}."
        yield Concern(jobs > 0, said, "/limits", "Look at the limits")


def _schedules(schedules: Sequence[ScheduleEntry], at: datetime) -> Iterator[Concern]:
    broken = [entry for entry in schedules if entry.state == "broken"]
    if broken:
        said = f"{_schedule(broken)} {_names([entry.name for entry in broken])} cannot be read by this code."
        yield Concern(True, said, "/schedules", "Look at the schedules")
    late = [entry for entry in schedules if entry.late]
    if late:
        since = span((at - min(entry.next_at for entry in late if entry.next_at)).total_seconds())
        said = f"{_schedule(late)} {_names([entry.name for entry in late])} should have fired {since} ago."
        yield Concern(True, said, "/schedules", "Look at the schedules")


def _errors(errors: Sequence[Signature], more: bool) -> Iterator[Concern]:
    """Those of the last day."""
    failing = [signature for signature in errors if signature.failed]
    if not failing:
        return
    jobs = sum(signature.failed for signature in failing)
    if more:
        said = f"At least {plural(jobs, 'job')} failed within a day, by the first {len(errors)} of more causes."
        yield Concern(False, said, "/errors", "Look at the errors")
    elif len(failing) == 1:
        only = failing[0]
        all_by = "" if jobs == 1 else ", all by one error"
        said = f"{plural(jobs, 'job')} failed within a day{all_by}: {short(cause(only), _LONGEST).rstrip('.')}."
        yield Concern(False, said, f"/errors/{only.fingerprint}", "Look at the error")
    else:
        said = f"{plural(jobs, 'job')} failed within a day; {plural(len(failing), 'cause')} explain them."
        yield Concern(False, said, "/errors", "Look at the errors")


# ---- words


def _names(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return " and ".join(names)
    return f"{', '.join(names[:_NAMED])} and {count(len(names) - _NAMED)} more"


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def _queue(queues: Sequence[Queue], begins: bool = False) -> str:
    word = "queue" if len(queues) == 1 else "queues"
    return word.capitalize() if begins else word


def _schedule(entries: Sequence[ScheduleEntry]) -> str:
    return "Schedule" if len(entries) == 1 else "Schedules"


def _wait(jobs: int) -> str:
    return f"{plural(jobs, 'job')} {'waits' if jobs == 1 else 'wait'}"
